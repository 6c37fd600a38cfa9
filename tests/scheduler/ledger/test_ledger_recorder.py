"""What the ledger has of work on a cluster that is moved by hand."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.annotations import DURATION
from scheduler.estimates import LEDGER, REMEMBERED, Estimates, History, Said
from scheduler.ledger import DeadlineEdit, Entry, Ledger, Outcome, Run
from scheduler.ledger_recorder import Recorder
from scheduler.ledger_writer import LedgerWriter, Past
from scheduler.plans import Placement, PlanInForce
from scheduler.settings import DAY, HOUR, SECOND, Settings
from scheduler.snapshot import Snapshotter
from tests.scheduler.memory_cluster import START, MemoryCluster, rfc3339

LIMIT = Said(None, 100 * HOUR, "limit", HOUR)


def evict(cluster: MemoryCluster, job: str, reason: str = "Preempted") -> None:
    """What Kueue does when it takes quota back."""

    def change(workload: dict[str, Any]) -> None:
        status = workload["status"]
        del status["admission"]
        since = {"lastTransitionTime": rfc3339(cluster.time), "message": ""}
        status["conditions"] = [
            {"type": "QuotaReserved", "status": "False", "reason": "Pending", **since},
            {"type": "Admitted", "status": "False", "reason": "NoReservation", **since},
            {"type": "Evicted", "status": "True", "reason": reason, **since},
        ]
        (count,) = status.setdefault("schedulingStats", {}).setdefault("evictions", [{"reason": reason, "count": 0}])
        count["count"] += 1

    cluster.edit("Workload", cluster.key_of(job), change)


def admit(cluster: MemoryCluster, job: str) -> None:
    """What Kueue does, keeping what it has counted."""
    key = cluster.key_of(job)
    counted = cluster.objects("Workload")[key]["status"].get("schedulingStats")
    cluster.admit(job)
    if counted:
        cluster.edit("Workload", key, lambda workload: workload["status"].update(schedulingStats=counted))


def plan(starts: dict[str, int]) -> PlanInForce:
    """A plan of nothing but starts, by uid."""
    placements = {uid: Placement(0, start, 0, start + HOUR, 0, 0, {}) for uid, start in starts.items()}
    return PlanInForce(0, placements, {}, "test", (), 0.0, 0.0)


class Controller:
    """What a controller does for the ledger. Starting another one is a restart."""

    def __init__(self, cluster: MemoryCluster, writer: LedgerWriter | Direct | None) -> None:
        self.cluster, self.writer = cluster, writer
        self.estimates = Estimates()
        self.recorder = Recorder(writer, self.estimates)  # type: ignore[arg-type]
        self.snapshotter = Snapshotter(Settings(), self.estimates)

    def look(self, starts: dict[str, int] | None = None) -> None:
        """One round."""
        snapshot = self.snapshotter.take(self.cluster)
        self.recorder.look(snapshot, self.snapshotter.works, plan(starts) if starts is not None else None)
        if isinstance(self.writer, LedgerWriter):
            assert self.writer.flush(30)


@pytest.fixture
def cluster() -> MemoryCluster:
    """A queue of 4 GPUs."""
    cluster = MemoryCluster()
    cluster.queue()
    return cluster


@pytest.fixture
def dsn(tmp_path: Path) -> str:
    """On SQLite alone: what is written is the same on both."""
    return str(tmp_path / "ledger.db")


@pytest.fixture
def start(dsn: str, cluster: MemoryCluster) -> Iterator[Callable[[], Controller]]:
    """Starts controllers, one after another, that know the past."""
    running: list[LedgerWriter] = []

    def start() -> Controller:
        for each in running:
            each.stop()
        writer = LedgerWriter(Ledger(dsn), keep_ms=0, gather=0)
        running[:] = [writer]
        writer.start()
        controller = Controller(cluster, writer)
        snapshot = controller.snapshotter.take(cluster)
        while writer._past is None:  # known before its first look, for tests that say what happens when
            assert writer._thread.is_alive()
            time.sleep(0.01)
        controller.recorder.look(snapshot, controller.snapshotter.works, None)
        return controller

    yield start
    for each in running:
        each.stop()


def entries(dsn: str) -> list[Entry]:
    """What is in the ledger, by name."""
    with Ledger(dsn).open_for_reading() as ledger:
        return sorted(ledger.recent(details=True), key=lambda entry: entry.name)


def test_one_job_from_its_creation_to_its_end(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """What was said, planned, granted and done is in its entry, each from where it is known best."""
    uid = cluster.job("nightly-7", 2, deadline="8h", duration="2h", weight="3", lateness="hard")["metadata"]["uid"]
    controller = start()
    controller.look({uid: START + 60 * SECOND})
    cluster.time += 30 * SECOND
    controller.look({uid: START + 90 * SECOND})
    cluster.time += 70 * SECOND
    cluster.admit("nightly-7")
    controller.look({})
    cluster.time += HOUR
    cluster.condition("nightly-7", "Finished", "True", "Succeeded")
    controller.look({})
    (entry,) = entries(dsn)
    started, ended = START + 100 * SECOND, START + 100 * SECOND + HOUR
    family = entry.family
    assert (family.namespace, family.local_queue, family.cluster_queue) == ("team", "lq", "cq")
    assert (family.kind, family.stem, family.shape) == ("Job", "nightly", "1x(nvidia.com/gpu=2)")
    assert replace(entry, family=family) == Entry(
        uid=uid,
        name="nightly-7",
        family=family,
        submitted=START,
        updated=ended,
        managed=True,
        deadline=START + 8 * HOUR,
        weight=3.0,
        hard=True,
        planned_start=START + 90 * SECOND,
        started=started,
        ended=ended,
        flavor="gpu",
        gpus=2,
        usage=(("gpu", "nvidia.com/gpu", 2),),
        estimate=2 * HOUR,
        estimate_source=DURATION,
        user_estimate=2 * HOUR,
        outcome=Outcome.SUCCEEDED,
        reason="Succeeded",
        runs=(Run(started, START + 90 * SECOND, ended, "Finished"),),
        deadlines=(DeadlineEdit(START, START + 8 * HOUR),),
    )
    assert entry.late is False


def test_what_nobody_watched_is_read_from_the_cluster(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """A controller that comes later writes down finished Workloads, and estimates learn from them."""
    cluster.job("nightly-1")
    cluster.time += SECOND
    cluster.admit("nightly-1")
    cluster.time += HOUR
    cluster.condition("nightly-1", "Finished", "True", "Succeeded")
    cluster.time += DAY
    controller = start()
    controller.look()
    (entry,) = entries(dsn)
    assert (entry.started, entry.ended, entry.outcome) == (START + SECOND, START + SECOND + HOUR, Outcome.SUCCEEDED)
    assert (entry.gpus, entry.flavor, entry.estimate, entry.planned_start) == (2, "gpu", None, None)
    assert controller.estimates.kin(entry.family).estimate(LIMIT)[:2] == (HOUR, LEDGER)


def test_what_was_deleted_meanwhile_is_not_known(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """Gone while a controller watched: deleted, then. Gone while none did: unknown, and not learnt from."""
    for job in ("seen", "unseen"):
        cluster.job(job)
    controller = start()
    controller.look()
    for job in ("seen", "unseen"):
        cluster.admit(job)
    controller.look()
    cluster.time += HOUR
    cluster.drop("Workload", cluster.key_of("seen"))
    controller.look()
    cluster.drop("Workload", cluster.key_of("unseen"))
    cluster.time += HOUR
    start().look()
    seen, unseen = entries(dsn)
    assert (seen.outcome, seen.ended, seen.runs[-1].ending) == (Outcome.DELETED, START + HOUR, "Deleted")
    assert (unseen.outcome, unseen.ended, unseen.name) == (Outcome.UNKNOWN, START + 2 * HOUR, "unseen")
    assert unseen.family == replace(seen.family, stem="unseen")


def test_an_edit_of_a_deadline_is_noticed(cluster: MemoryCluster, start: Callable[[], Controller], dsn: str) -> None:
    """Also one that was made while no controller ran."""

    def set_deadline(text: str) -> None:
        cluster.edit(
            "Job", "team/a", lambda job: job["metadata"]["annotations"].update({"punctual.kueue/deadline": text})
        )

    cluster.job("a", deadline="8h")
    controller = start()
    controller.look()
    cluster.time += HOUR
    set_deadline("9h")
    controller.look()
    cluster.time += HOUR
    set_deadline("10h")
    start().look()
    (entry,) = entries(dsn)
    assert entry.deadlines == tuple(DeadlineEdit(START + n * HOUR, START + (8 + n) * HOUR) for n in range(3))
    assert entry.deadline == START + 10 * HOUR


def test_an_estimate_is_the_one_that_it_started_with(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """What is learnt while it runs, and a restart, change the estimate, but not what is written of the old one."""
    cluster.job("nightly-1", duration="2h")
    cluster.job("nightly-2", duration="2h")
    controller = start()
    controller.look()
    cluster.admit("nightly-1")
    cluster.admit("nightly-2")
    controller.look()
    cluster.time += 10 * SECOND
    cluster.condition("nightly-1", "Finished", "True", "Succeeded")
    controller.look()
    controller.look()
    again = start()
    again.look()
    (running,) = again.snapshotter.take(cluster).items
    assert (running.estimate_source, running.estimate_basis) == (LEDGER, "1 run of team/nightly, and the user's 2h")
    assert running.estimate < 2 * HOUR
    cluster.condition("nightly-2", "Finished", "True", "Succeeded")
    again.look()
    assert [(entry.estimate, entry.estimate_source) for entry in entries(dsn)] == [(2 * HOUR, DURATION)] * 2


def test_a_broken_object_is_not_a_deleted_one(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """A Workload that cannot be read for a while is not given up."""
    cluster.job("a")
    controller = start()
    controller.look()
    key = cluster.key_of("a")
    cluster.edit("Workload", key, lambda workload: workload["spec"].update(podSets="nonsense"))
    controller.look()
    (entry,) = entries(dsn)
    assert entry.outcome is None
    cluster.drop("Workload", key)
    controller.look()
    (entry,) = entries(dsn)
    assert entry.outcome is Outcome.DELETED


def test_one_that_makes_no_sense_keeps_no_other_out(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """Junk in a condition that only the ledger reads: the others are written."""
    for job in ("a", "b"):
        cluster.job(job)
    cluster.condition("a", "Admitted", "False")
    cluster.edit(
        "Workload", cluster.key_of("a"), lambda w: w["status"]["conditions"][0].update(lastTransitionTime="yesterday")
    )
    start().look()
    assert [entry.name for entry in entries(dsn)] == ["b"]


def test_what_is_said_stands_where_the_policy_wants_it(cluster: MemoryCluster) -> None:
    """With ``estimates.learn: false`` the past corrects nothing, with a high quantile it is cautious."""
    controller = Controller(cluster, None)
    for number in range(20):
        cluster.job(f"nightly-{number}")
        cluster.admit(f"nightly-{number}")
        cluster.time += (number + 1) * HOUR
        cluster.condition(f"nightly-{number}", "Finished", "True", "Succeeded")
        controller.look()
    cluster.job("nightly-20", duration="1h")
    estimates = []
    for policy in (Settings(learn=False), Settings(), Settings(estimate_quantile=0.9)):
        controller.snapshotter.settings = policy
        (item,) = controller.snapshotter.take(cluster).items
        estimates.append(item.estimate)
    said, middle, cautious = estimates
    assert said == HOUR < middle < cautious


def test_services_and_other_namespaces_are_observed(
    cluster: MemoryCluster, start: Callable[[], Controller], dsn: str
) -> None:
    """Work that was never gated is in the ledger too, and is told from ours; our own canary is not."""
    cluster.put({"kind": "Namespace", "metadata": {"name": "other", "labels": {}}})
    queue = {"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "other"}, "spec": {"clusterQueue": "cq"}}
    cluster.put(queue)
    cluster.job("theirs", namespace="other", gates="")
    cluster.job("ours", bypassed_by="alice")
    ours = cluster.objects("Workload")[cluster.key_of("ours")]
    cluster.put({**ours, "metadata": {"name": "punctual-canary", "namespace": "other", "uid": "canary"}})
    start().look()
    found = [(entry.name, entry.managed, entry.bypassed_by) for entry in entries(dsn)]
    assert found == [("ours", True, "alice"), ("theirs", False, "")]


def test_without_a_ledger_estimates_learn_all_the_same(cluster: MemoryCluster) -> None:
    """What the cluster shows is enough to begin with."""
    cluster.job("nightly-1")
    controller = Controller(cluster, None)
    cluster.admit("nightly-1")
    controller.look()
    cluster.time += 2 * HOUR
    cluster.condition("nightly-1", "Finished", "True", "Succeeded")
    controller.look()
    cluster.job("nightly-2", spec={"activeDeadlineSeconds": 360_000})
    (item,) = controller.snapshotter.take(cluster).items
    assert (item.estimate_source, item.estimate_basis) == (LEDGER, "1 run of team/nightly")
    assert item.estimate == 2 * HOUR


def test_what_was_dropped_is_written_again(cluster: MemoryCluster, tmp_path: Path) -> None:
    """When too much waited for the database, all that the cluster still has is there after it is back."""
    (tmp_path / "volume").write_text("in the way")
    dsn = str(tmp_path / "volume" / "ledger.db")
    writer = LedgerWriter(Ledger(dsn), keep_ms=0, gather=0, first_pause=0.02, waiting=2)
    writer.start()
    controller = Controller(cluster, writer)
    for number in range(6):
        cluster.job(f"job-{number}")
    cluster.admit("job-0")
    cluster.condition("job-0", "Finished", "True", "Succeeded")
    snapshot = controller.snapshotter.take(cluster)
    controller.recorder.look(snapshot, controller.snapshotter.works, None)
    (tmp_path / "volume").unlink()
    while not writer._read_past:
        assert writer._thread.is_alive()
        time.sleep(0.01)
    # Two fit at a time: what the cluster shows comes in as many rounds as it takes.
    for _ in range(4):
        controller.look()
        assert writer.flush(30)
        time.sleep(0.05)
    writer.stop()
    assert [entry.name for entry in entries(dsn)] == [f"job-{number}" for number in range(6)]
    assert entries(dsn)[0].outcome is Outcome.SUCCEEDED


# --- whatever happens ------------------------------------------------------------------------------------------------


class Direct:
    """A writer that writes at once, and that knows the past of one example only."""

    keep_ms = 0

    def __init__(self, ledger: Ledger, example: str) -> None:
        self._ledger = ledger
        past = LedgerWriter(ledger, keep_ms=0)._read()
        history = History()
        for uid, family, duration in ledger.completed(REMEMBERED):
            if example in uid:
                history.learn(family, duration)
        unfinished = tuple(entry for entry in past.unfinished if example in entry.uid)
        self._past: Past | None = replace(past, unfinished=unfinished, history=history)

    def put(self, entries: Iterable[Entry]) -> None:
        self._ledger.write(entries)

    def past(self) -> Past | None:
        past, self._past = self._past, None
        return past

    def wanted(self) -> set[str]:
        return set()

    def waits(self, uid: str) -> bool:
        return False


@dataclass
class Truth:
    """What really happened to a job."""

    runs: list[Run] = field(default_factory=list)
    outcome: Outcome | None = None
    ended: int | None = None

    def over(self, at: int, ending: str) -> bool:
        """Its run is over, if it has one."""
        if not self.runs or self.runs[-1].ended is not None:
            return False
        self.runs[-1] = replace(self.runs[-1], ended=at, ending=ending)
        return True


class World:
    """A cluster with three places for jobs, and what really happened there, by uid."""

    def __init__(self) -> None:
        self.example = f"e{next(_examples)}x"
        self.cluster = MemoryCluster()
        self.cluster.queue()
        self.truth: dict[str, Truth] = {}
        self._there: dict[int, tuple[str, Truth]] = {}

    def do(self, action: str, place: int) -> None:
        """Let something happen, if it can."""
        self.cluster.time += 10 * SECOND
        cluster, now = self.cluster, self.cluster.time
        name, truth = self._there.get(place, ("", Truth()))
        if not name:
            if action == "submit":
                name = f"{self.example}-{len(self.truth)}"
                truth = self.truth[cluster.job(name)["metadata"]["uid"]] = Truth()
                self._there[place] = name, truth
        elif action == "delete":
            cluster.drop("Workload", cluster.key_of(name))
            cluster.drop("Job", f"team/{name}")
            del self._there[place]
            if truth.outcome is None:
                truth.over(now, "Deleted")
                truth.outcome, truth.ended = Outcome.DELETED, now
        elif truth.outcome is not None:
            return
        elif action == "admit" and (not truth.runs or truth.runs[-1].ended is not None):
            admit(cluster, name)
            truth.runs.append(Run(now))
        elif action == "evict" and truth.over(now, "Preempted"):
            evict(cluster, name)
        elif action in ("Succeeded", "Failed") and truth.over(now, "Finished"):
            cluster.condition(name, "Finished", "True", action)
            truth.outcome, truth.ended = Outcome(action), now

    def there(self) -> set[str]:
        """Uids of the Workloads that the cluster shows."""
        return {str(item["metadata"]["uid"]) for item in self.cluster.objects("Workload").values()}


_examples = itertools.count()
ACTIONS = st.sampled_from(["submit", "admit", "evict", "Succeeded", "Failed", "delete"])
STEPS = st.lists(st.tuples(ACTIONS, st.integers(0, 2), st.booleans()), max_size=30)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ledger]:
    """One ledger for all examples: making one takes longer than they do."""
    with Ledger(str(tmp_path_factory.mktemp("shared") / "ledger.db")).open() as ledger:
        yield ledger


def known(ledger: Ledger, world: World) -> dict[str, Entry]:
    """What the ledger has of a world; each Workload once."""
    entries = [entry for entry in ledger.recent(details=True) if world.example in entry.uid]
    found = {entry.uid: entry for entry in entries}
    assert len(found) == len(entries)
    return found


def successes(controller: Controller, entries: Iterable[Entry]) -> tuple[int, int]:
    """How many estimates have learnt from, and how many there are."""
    done = [entry for entry in entries if entry.completed]
    return controller.estimates.kin(done[0].family)._like[0].seen if done else 0, len(done)


@settings(max_examples=30)
@given(STEPS)
def test_what_is_watched_is_known_exactly(shared: Ledger, steps: list[tuple[str, int, bool]]) -> None:
    """Whatever happens to jobs, with a restart anywhere: all their runs, ends and outcomes are there, each once."""
    world = World()
    controller = Controller(world.cluster, Direct(shared, world.example))
    for action, place, restart in steps:
        world.do(action, place)
        if restart:
            # It looks before it goes: what is deleted while nobody looks cannot be known exactly.
            controller.look()
            controller = Controller(world.cluster, Direct(shared, world.example))
        controller.look()
    found = known(shared, world)
    assert {uid: (entry.runs, entry.outcome, entry.ended) for uid, entry in found.items()} == {
        uid: (tuple(truth.runs), truth.outcome, truth.ended) for uid, truth in world.truth.items()
    }
    for entry in found.values():
        assert entry.interruptions == sum(run.ending == "Preempted" for run in entry.runs)
    learnt, done = successes(controller, found.values())
    assert learnt == done


@settings(max_examples=30)
@given(STEPS)
def test_what_is_not_watched_is_read_back(shared: Ledger, steps: list[tuple[str, int, bool]]) -> None:
    """Controllers come and go and look now and then: what the cluster still shows in the end is known as it is.

    What is gone has an outcome, no success is invented, and none is learnt twice.
    """
    world = World()
    for action, place, look in steps:
        world.do(action, place)
        if look:
            controller = Controller(world.cluster, Direct(shared, world.example))
            controller.look()
    controller = Controller(world.cluster, Direct(shared, world.example))
    controller.look()
    found = known(shared, world)
    assert world.there() <= found.keys() <= world.truth.keys()
    for uid, entry in found.items():
        truth = world.truth[uid]
        if uid in world.there():
            running = [run.started for run in truth.runs if run.ended is None]
            assert [run.started for run in entry.runs if run.ended is None] == running
            assert (entry.outcome, entry.ended) == (truth.outcome, truth.ended)
            if running or truth.outcome is not None:  # Kueue no longer shows when an interrupted run began
                assert entry.started == truth.runs[-1].started
            assert entry.interruptions == sum(run.ending == "Preempted" for run in truth.runs)
        else:
            assert entry.outcome in (truth.outcome, Outcome.UNKNOWN)
    learnt, done = successes(controller, found.values())
    assert learnt == done
