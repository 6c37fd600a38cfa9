"""Taking our gate off: exactly ours, exactly there, whatever others do at the same moment."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cluster import GATE, GATES_ANNOTATION, Reference, Release
from scheduler.ungate import gate_names, ungate, without_gate
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, a_job

JOBS = "/apis/batch/v1/jobs"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
OTHER = "budget.example.com/check"


@pytest.fixture
def fake() -> Iterator[FakeApiServer]:
    server = FakeApiServer()
    yield server
    server.stop()


def reference(item: dict) -> Reference:  # type: ignore[type-arg]
    metadata = item["metadata"]
    return Reference(item["kind"], metadata["namespace"], metadata["name"], metadata["uid"])


def gates(fake: FakeApiServer, item: dict) -> str | None:  # type: ignore[type-arg]
    key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
    return fake.objects[JOBS][key]["metadata"]["annotations"].get(GATES_ANNOTATION)


names = st.sampled_from([GATE, OTHER, "punctual.kueue/planner", "x.punctual.kueue/plan", "a.example/b"])
space = st.sampled_from(["", " ", "  "])


@given(st.lists(st.tuples(space, names, space)))
def test_takes_out_ours_and_nothing_else(gates: list[tuple[str, str, str]]) -> None:
    """Other gates stay, in their order, however the annotation is spaced; ours is gone, however often it was there."""
    value = ",".join(map("".join, gates))
    assert gate_names(without_gate(value)) == [name for _, name, _ in gates if name != GATE]


@pytest.mark.parametrize(
    ("before", "after"),
    [(GATE, None), (f"{OTHER},{GATE}", OTHER), (f"{GATE}, {OTHER}", OTHER), (f" {GATE} ", None)],
)
@pytest.mark.parametrize("known", [True, False])
def test_releases(fake: FakeApiServer, before: str, after: str | None, known: bool) -> None:
    """Our gate is taken off and others' stay, whether or not the object was seen before; once more does nothing."""
    job = fake.put(JOBS, a_job(gates=before))
    assert ungate(fake.api(), reference(job), job if known else None).release == Release.DONE
    assert gates(fake, job) == after
    assert ungate(fake.api(), reference(job)).release == Release.NOT_GATED


def test_touches_nothing_but_the_annotation(fake: FakeApiServer) -> None:
    """A release changes the one annotation and nothing else of the object."""
    job = fake.put(JOBS, a_job(gates=GATE))
    ungate(fake.api(), reference(job))
    now = fake.objects[JOBS][f"team-a/{job['metadata']['name']}"]
    del job["metadata"]["annotations"][GATES_ANNOTATION]
    job["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"]
    assert now == job


def test_leaves_a_namesake_alone(fake: FakeApiServer) -> None:
    """An object of the same name that was made later keeps its gate, also when only the old one was seen."""
    old = fake.put(JOBS, a_job("same", gates=GATE))
    fake.delete(JOBS, "team-a/same")
    new = fake.put(JOBS, a_job("same", gates=GATE))
    assert ungate(fake.api(), reference(old)).release == Release.GONE
    assert ungate(fake.api(), reference(old), old).release == Release.GONE
    assert gates(fake, new) == GATE


def test_says_when_the_object_is_gone(fake: FakeApiServer) -> None:
    """A deleted object is gone, whether it was seen before or not."""
    job = fake.put(JOBS, a_job("gone", gates=GATE))
    fake.delete(JOBS, "team-a/gone")
    assert ungate(fake.api(), reference(job)).release == Release.GONE
    assert ungate(fake.api(), reference(job), job).release == Release.GONE


def test_loses_no_gate_of_others(fake: FakeApiServer) -> None:
    """Another gate that is taken off between our look and our patch stays off: the patch is made anew."""
    job = fake.put(JOBS, a_job("both", gates=f"{OTHER},{GATE}"))

    def race(method: str, path: str) -> None:
        if method == "PATCH":
            fake.hooks.clear()
            changed = {**job, "metadata": {**job["metadata"], "annotations": {GATES_ANNOTATION: GATE}}}
            fake.put(JOBS, changed)

    fake.hooks.append(race)
    assert ungate(fake.api(), reference(job), job).release == Release.DONE
    assert gates(fake, job) is None


def test_gives_up_for_now_when_others_never_stop(fake: FakeApiServer) -> None:
    """Conflict after conflict ends as something to try again, with the gate still on."""
    job = fake.put(JOBS, a_job(gates=GATE))

    def conflict(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refusal(409, "the object has been modified")

    fake.hooks.append(conflict)
    result = ungate(fake.api(), reference(job))
    assert result.release == Release.TRY_AGAIN
    assert "has been modified" in result.message
    assert gates(fake, job) == GATE


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(403, Release.REFUSED), (422, Release.REFUSED), (400, Release.REFUSED),
     (401, Release.TRY_AGAIN), (429, Release.TRY_AGAIN), (500, Release.TRY_AGAIN), (503, Release.TRY_AGAIN)],
)  # fmt: skip
def test_tells_why_it_was_refused(fake: FakeApiServer, status: int, outcome: Release) -> None:
    """What will never work is told apart from what may work later, with the cluster's own words."""
    job = fake.put(JOBS, a_job(gates=GATE))

    def refuse(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refusal(status, "only the planner may take off the gate")

    fake.hooks.append(refuse)
    result = ungate(fake.api(), reference(job))
    assert (result.release, result.message) == (outcome, "only the planner may take off the gate")


def test_an_apiserver_that_is_away_may_come_back(fake: FakeApiServer) -> None:
    """Without an answer the release is to be tried again."""
    job = fake.put(JOBS, a_job(gates=GATE))
    fake.stop()
    result = ungate(fake.api(), reference(job), job)
    assert result.release == Release.TRY_AGAIN
    assert "no answer" in result.message
    fake.start()
    assert ungate(fake.api(), reference(job), job).release == Release.DONE


def test_a_closed_connection_is_no_failure(fake: FakeApiServer) -> None:
    """A kept connection that the apiserver closed meanwhile is replaced without anybody noticing."""
    api = fake.api(connections=1)
    for _ in range(5):
        job = fake.put(JOBS, a_job(gates=GATE))
        assert ungate(api, reference(job)).release == Release.DONE
        fake.cut()


def test_asks_for_leave_before_each_patch(fake: FakeApiServer) -> None:
    """A replica that does not lead any more patches nothing, also not in a second attempt."""
    job = fake.put(JOBS, a_job(gates=GATE))
    leave = iter([True, False])

    def conflict(method: str, path: str) -> None:
        if method == "PATCH":
            raise Refusal(409, "conflict")

    fake.hooks.append(conflict)
    result = ungate(fake.api(), reference(job), None, lambda: next(leave))
    assert result.release == Release.TRY_AGAIN
    assert sum(method == "PATCH" for method, _, _ in fake.requests) == 1


def test_a_workload_of_a_job_is_not_released_itself(fake: FakeApiServer) -> None:
    """The gate of an owned Workload stays: without it Kueue would reserve quota for a Job that can never start."""
    owner = {"kind": "Job", "name": "train", "uid": "1", "controller": True}
    workload = {**a_job("w", gates=GATE, ownerReferences=[owner]), "kind": "Workload"}
    owned = fake.put(WORKLOADS, workload)
    result = ungate(fake.api(), reference(owned))
    assert result.release == Release.REFUSED
    assert "Job train" in result.message
    free = fake.put(WORKLOADS, {**a_job("free", gates=GATE), "kind": "Workload"})
    assert ungate(fake.api(), reference(free)).release == Release.DONE


def test_a_job_of_a_cronjob_is_a_root(fake: FakeApiServer) -> None:
    """A Job that a CronJob made carries the gate itself, so it is what is released."""
    owner = {"kind": "CronJob", "name": "nightly", "uid": "1", "controller": True}
    job = fake.put(JOBS, a_job(gates=GATE, ownerReferences=[owner]))
    assert ungate(fake.api(), reference(job)).release == Release.DONE


def test_an_unknown_kind_is_refused(fake: FakeApiServer) -> None:
    """A kind that nobody taught us is refused in words, not with a traceback."""
    result = ungate(fake.api(), Reference("Deployment", "team-a", "x", "1"))
    assert result.release == Release.REFUSED
    assert "Deployment" in result.message
