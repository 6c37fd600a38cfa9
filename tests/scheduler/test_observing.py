"""The control loop while the policy is edited: from enforce to observe and back, queue by queue."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import MemoryCluster

from scheduler.cluster import GATE, GATES_ANNOTATION
from scheduler.loop import Loop
from scheduler.planner_client import InlinePlanner
from scheduler.policy import read_policy
from scheduler.settings import SECOND, Settings
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan
from solver.problem import State

ENFORCE, OBSERVE = "version: 1\nengine: greedy\n", "version: 1\nengine: greedy\nmode: observe\n"
LATER = "2099-01-01T00:00:00Z"


def solve(request: pb.PlanRequest) -> pb.PlanResponse:
    problem = decode(request)
    return encode(problem, plan(problem, request.policy, pb.Budget(work_limit=1), request.seed))


class Office:
    """A loop whose policy a test edits."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.settings = Settings()
        self.edit(ENFORCE)
        self.loop = Loop(cluster, InlinePlanner(solve), self.settings, current=lambda: self.settings)

    def edit(self, policy: str) -> None:
        self.settings = read_policy(policy).settings()

    def work(self, seconds: float) -> None:
        """Let the loop come round as it wants to for some time."""
        until = self.cluster.time + round(seconds * SECOND)
        while True:
            step = self.loop.step()
            if step.pause == 0:
                continue
            if self.cluster.time >= until:
                return
            self.cluster.time = min(until, self.cluster.time + max(1, round(step.pause * SECOND)))

    def states(self) -> dict[str, State]:
        return {item.root.name: item.state for item in self.loop.step().snapshot.items}

    def gated(self) -> set[str]:
        jobs = self.cluster.objects("Job").values()
        return {job["metadata"]["name"] for job in jobs if GATES_ANNOTATION in job["metadata"]["annotations"]}


@pytest.fixture
def office() -> Office:
    cluster = MemoryCluster()
    cluster.queue()
    cluster.queue("other", local="other")
    return Office(cluster)


def test_to_observe_lets_go_in_the_order_of_the_plan(office: Office) -> None:
    """All that waits in the queue goes, earliest start or not, in the plan's order, and is told; others wait on."""
    cluster = office.cluster
    cluster.job("blocker", 4, duration="10h")
    office.work(3)
    cluster.admit("blocker")
    for name, deadline in (("third", "41h"), ("second", "31h"), ("first", "21h")):
        cluster.job(name, 4, duration="10h", deadline=deadline)
    cluster.job("parked", 1, earliest_start=LATER)
    cluster.job("elsewhere", 4, queue="other", earliest_start=LATER)
    office.work(3)
    assert cluster.released == ["blocker"]
    office.edit(ENFORCE + "clusterQueues: {cq: {mode: observe}}\n")
    office.work(3)
    assert cluster.released == ["blocker", "first", "second", "third", "parked"]
    assert len(cluster.told("LetGo")) == 4
    assert all("only observed" in message and "Kueue alone decides" in message for message in cluster.told("LetGo"))
    assert office.gated() == {"elsewhere"}
    states = office.states()
    assert {states[name] for name in ("first", "second", "third", "parked")} == {State.FOREIGN}
    assert states["elsewhere"] == State.PENDING


def test_what_still_comes_with_a_gate_is_let_go(office: Office) -> None:
    """The admission policies lag behind an edit by a second or two: what they gate meanwhile does not stay gated."""
    office.edit(OBSERVE)
    office.work(1)
    office.cluster.job("straggler")
    office.work(3)
    assert office.cluster.released == ["straggler"]


def test_work_held_by_others_is_not_let_go_for_them(office: Office) -> None:
    """Somebody else's gate stays, and ours with it until theirs is off: then the job is let go."""
    office.cluster.job("held", gates=f"{GATE},budget.example.com/check")
    office.edit(OBSERVE)
    office.work(3)
    assert office.cluster.released == []
    office.cluster.edit("Job", "team/held", lambda job: job["metadata"]["annotations"].update({GATES_ANNOTATION: GATE}))
    office.work(3)
    assert office.cluster.released == ["held"]


def test_to_enforce_leaves_what_kueue_has(office: Office) -> None:
    """Work that was never gated keeps its turn when a queue is enforced again; what is gated from then on waits."""
    office.edit(OBSERVE)
    office.cluster.job("free", 4, gates="")
    office.work(1)
    assert office.states() == {"free": State.FOREIGN}
    office.edit(ENFORCE)
    office.cluster.job("planned", 4)
    office.work(3)
    assert office.states() == {"free": State.IN_FLIGHT, "planned": State.PENDING}
    assert office.cluster.released == []
    office.cluster.admit("free")
    office.cluster.finish("free")
    office.work(1)
    assert office.cluster.released == ["planned"]


@given(st.lists(st.sampled_from(["enforce", "observe", "job", "wait"]), min_size=3, max_size=12))
@settings(max_examples=12, deadline=None)
def test_any_edits_lose_no_job(acts: list[str]) -> None:
    """However often the mode is switched while jobs come, each is released once; while observed, none stays gated."""
    cluster = MemoryCluster()
    cluster.queue(gpus=100)
    office = Office(cluster)
    jobs = 0
    for act in acts:
        if act == "job":
            jobs += 1
            cluster.job(f"job-{jobs}", 1)
        elif act == "wait":
            office.work(2)
        else:
            office.edit(ENFORCE if act == "enforce" else OBSERVE)
            office.work(0)
    office.edit(OBSERVE)
    office.work(4)
    assert sorted(cluster.released) == sorted(f"job-{k + 1}" for k in range(jobs))
    assert office.gated() == set()


def test_other_settings_count_at_once(office: Office) -> None:
    """An edit of weights and deadlines brings a new plan soon, though nothing in the cluster has changed."""
    cluster = office.cluster
    cluster.job("blocker", 4, duration="1h")
    office.work(3)
    cluster.admit("blocker")
    cluster.job("one", 4, duration="5h")
    office.work(5)
    before = office.loop.plan
    office.edit(ENFORCE + "defaults: {deadline: 2h}\n")
    office.work(5)
    assert before is not None
    assert [placement.tardiness for placement in before.placements.values()] == [0]
    assert office.loop.plan is not None
    (placement,) = office.loop.plan.placements.values()
    assert placement.tardiness > 0
