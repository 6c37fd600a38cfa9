"""On a real Kueue: quota is lent only until its owner's work is due."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.kueue.observer import Observer
from tests.kueue.punctual import Punctual
from tests.kueue.team import KUEUE, Team, wait_for

pytestmark = [pytest.mark.kueue, pytest.mark.long]

SOON = timedelta(seconds=9)
"""When the owner's work is to start."""

CHANCE = 2.5
"""Kueue brings back what it tried without room once a second (seconds)."""

PREFIX = "punctual.kueue"


@pytest.mark.parametrize("reclaims", [True, False])
def test_lending_ends_before_the_owners_work_is_due(
    make_team: Callable[..., Team], punctual: Punctual, reclaims: bool
) -> None:
    """Best effort that ends in time is let into lent quota, what would not waits until the owner's work is done, and
    the owner starts when planned without evicting anybody, whether or not it might."""
    cohort = f"lending-{reclaims}".lower()
    preemption = {"preemption": {"reclaimWithinCohort": "Any"}} if reclaims else {}
    owner = make_team(2, cohort=cohort, **preemption)
    same_flavor = owner.cluster.api("GET", f"{KUEUE}/clusterqueues/{owner.name}")["spec"]["resourceGroups"]
    (flavor,) = same_flavor[0]["flavors"]
    nothing = [{**quota, "nominalQuota": 0} for quota in flavor["resources"]]
    group = {**same_flavor[0], "flavors": [{**flavor, "resources": nothing}]}
    borrower = make_team(0, cohort=cohort, resourceGroups=[group])
    start = datetime.now(UTC).replace(microsecond=0) + SOON
    wishes = {
        f"{PREFIX}/earliest-start": start.isoformat(),
        f"{PREFIX}/deadline": (start + timedelta(seconds=10)).isoformat(),
        f"{PREFIX}/duration": "2s",
    }
    with Observer(owner.cluster) as observer:
        owner.job("due", gpus=2, run_for=1, annotations=wishes)
        borrower.job("long", gpus=2, run_for=1, annotations={f"{PREFIX}/duration": "60s"})
        borrower.job("short", gpus=2, run_for=2, annotations={f"{PREFIX}/duration": "3s"})
        jobs = [(owner, "due"), (borrower, "long"), (borrower, "short")]
        wait_for(lambda: all(observer.run(team.name, job).finished for team, job in jobs), "all to finish", timeout=60)
    due, long, short = (observer.run(team.name, job) for team, job in jobs)
    assert short.reserved < short.finished < start.timestamp()
    assert 0 <= due.reserved - start.timestamp() < CHANCE
    assert long.reserved > due.finished
    assert (due.evictions, long.evictions, short.evictions) == (0, 0, 0)
