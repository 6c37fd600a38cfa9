"""What the ledger has of jobs on a real Kueue."""

from __future__ import annotations

import pytest

from scheduler.annotations import DURATION, parse_instant
from scheduler.ledger import Entry, Ledger, Outcome
from tests.kueue.punctual import Punctual
from tests.kueue.team import Team, wait_for

pytestmark = pytest.mark.kueue

TOOK = {"punctual.kueue/duration": "3s"}


def entries(punctual: Punctual, team: Team) -> dict[str, Entry]:
    """What the ledger has of a team's jobs; each once."""
    with Ledger(str(punctual.ledger)).open_for_reading() as ledger:
        found = list(ledger.recent(namespace=team.name, details=True))
    by_name = {entry.name: entry for entry in found}
    assert len(by_name) == len(found)
    return by_name


def since(team: Team, job: str, condition: str) -> int:
    """When a condition of its Workload became true."""
    found = team.condition(job, condition)
    assert found["status"] == "True"
    return parse_instant(found["lastTransitionTime"])


@pytest.mark.long
def test_each_job_is_there_once_also_after_a_restart(team: Team, punctual: Punctual) -> None:
    """Jobs succeed, fail, are interrupted and deleted, and the controller is killed midway: the ledger has each once.

    Starts and ends are Kueue's own, also of what ended while no controller ran.
    """
    due = {"first": 20, "fails": 20, "second": 40, "gone": 540}
    for job, seconds in due.items():
        annotations = {**TOOK, "punctual.kueue/deadline": f"{seconds}s"}
        team.job(job, gpus=2, run_for=2, annotations=annotations, fails=job == "fails")
    wait_for(lambda: team.admitted("first") and team.admitted("fails"), "the first pair to run")
    punctual.kill("controller")
    wait_for(lambda: team.finished("first") and team.finished("fails"), "the first pair to end")
    punctual.start_controller()
    wait_for(lambda: team.admitted("second"), "the second pair to run")
    path = f"{team.workloads}/{team.workload_of('second')['metadata']['name']}"
    for active in (False, True):
        team.cluster.api("PATCH", path, {"spec": {"active": active}})
        wait_for(
            lambda active=active: team.admitted("second") == active, "Kueue to interrupt it, and to admit it again"
        )
    wait_for(lambda: team.finished("second"), "it to end")
    wait_for(lambda: "gone" in entries(punctual, team), "the last one to be known")
    team.cluster.api("DELETE", f"{team.jobs}/gone?propagationPolicy=Background")
    wait_for(
        lambda: len(known := entries(punctual, team)) == 4 and all(each.outcome for each in known.values()),
        "all outcomes to be in the ledger",
    )
    found = entries(punctual, team)
    assert punctual.metric("punctual_ledger_up") == 1
    for job in ("first", "fails", "second"):
        entry = found[job]
        assert (entry.started, entry.ended) == (since(team, job, "Admitted"), since(team, job, "Finished")), job
        assert (entry.gpus, entry.flavor, entry.family.cluster_queue) == (2, team.name, team.name)
        assert (entry.user_estimate, entry.deadline) == (3000, entry.submitted + due[job] * 1000)
    assert [found[job].outcome for job in due if job != "gone"] == [
        Outcome.SUCCEEDED,
        Outcome.FAILED,
        Outcome.SUCCEEDED,
    ]
    assert found["first"].estimate_source == DURATION
    assert [len(found[job].runs) for job in ("first", "fails", "second")] == [1, 1, 2]
    assert (found["second"].interruptions, found["second"].runs[0].ending) == (1, "Deactivated")
    assert all(run.planned_start is not None for run in found["second"].runs[:1])
    assert found["gone"].outcome in (Outcome.DELETED, Outcome.SUCCEEDED)
