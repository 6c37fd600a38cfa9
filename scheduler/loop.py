"""The control loop: look, adopt the plan that came, release what is due, tell owners, ask for the next plan.

Nothing on the way from a change to a release waits for the planner. All state is in the cluster: what the loop
remembers (what it has just released, whom it has told what) only bridges the time until the cluster shows it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from scheduler.cluster import Cluster, Reference, Release, ReleaseResult
from scheduler.dispatch import Due, Turns, dispatch, hopeless_heads, turns
from scheduler.idle import idle
from scheduler.letgo import AT_ONCE, Leaving, LetGo
from scheduler.metrics import Metrics
from scheduler.news import News, let_go
from scheduler.outcomes import Outcomes
from scheduler.planner_client import Answer, Planner, PlannerError, PlannerRefused
from scheduler.plans import PlanInForce
from scheduler.settings import SECOND, Settings
from scheduler.snapshot import Complaint, Item, Snapshot, Snapshotter, Stranded
from scheduler.unsupported import Cause
from solver.api import planner_pb2 as pb
from solver.decode import InvalidRequest, decode
from solver.decode_admission import decode_admission
from solver.problem import NEVER, Problem, State
from solver.quota import Bools

if TYPE_CHECKING:
    from scheduler.ledger_recorder import Recorder

log = logging.getLogger(__name__)

SLIPPED = SECOND
"""A planned start that passed this long ago without a release shows that the plan is out of date (milliseconds)."""

FAILURES = 3
"""After more failed attempts than this to release an object its room is not kept any more until the next."""

FRESH = 5 * SECOND
"""For so long after it was released work may be admitted any moment (milliseconds). What still waits then waits for
others to end, and takes nobody's choice of flavor away."""

RETRY = 2 * SECOND
"""Least time between two requests when the first one failed, or the plan has slipped (milliseconds)."""

BREATH = 0.05
"""Longest pause between two rounds when changes never end (seconds)."""

TOLD_EVERY = 1.0
"""Longest time that what there is to tell waits when changes never end (seconds)."""

LAST_SECONDS = 5.0
"""How long a loop that was stopped waits for its last releases."""

REFUSED_PAUSE, LONGEST_PAUSE = 2 * SECOND, 60 * SECOND
"""How long an object that the cluster would not let us release is left alone, first and at most (milliseconds). An
apiserver that has just started refuses what it will allow in a moment."""

_REJECTED = {
    int(pb.NEVER_FITS): ("NeverFits", "can never be admitted: {}"),
    int(pb.INVALID): ("Unplannable", "cannot be planned: {}"),
    int(pb.QUEUE_STOPPED): ("QueueStopped", "{}"),
}


def always() -> bool:
    """Leave to act of a loop that has no rival."""
    return True


@runtime_checkable
class ReleasesInBackground(Protocol):
    """A cluster that releases while the loop goes on."""

    def begin_release(self, target: Reference) -> Future[ReleaseResult]:
        """Release soon, in the order of the calls; the next wait ends when it is done."""


@runtime_checkable
class KnowsWhatWoke(Protocol):
    """A cluster that knows which change ended the last wait, and whether others have come since."""

    woken_by: float | None
    """When that came, on :func:`time.monotonic`'s clock; None when nothing changed."""

    @property
    def changing(self) -> bool:
        """Whether something has changed since the last wait."""


@dataclass(frozen=True)
class _Sent:
    """A release under way."""

    item: Item
    result: Future[ReleaseResult]
    now: int
    """When it was decided."""
    room_since: float | None
    planned: int | None
    evicts: Sequence[Reference]
    lost: Stranded | None
    """Why it is let go, if it is not its turn."""


@dataclass(frozen=True)
class Step:
    """What one round of the loop saw and did."""

    snapshot: Snapshot
    plan: PlanInForce | None
    releases: tuple[tuple[Item, ReleaseResult], ...]
    """Those that have ended."""
    asked: bool
    """Whether a new plan was asked for."""
    pause: float
    """Seconds until something is due though nothing changes; at most ``settings.idle_seconds``."""
    problem: Problem | None
    """The snapshot as dispatch reads it; None when nothing waits for us."""
    complaints: tuple[Complaint, ...]
    """About work that cannot be planned."""
    leaving: Collection[str]
    """Uids of stranded Workloads that are let go soon."""


class Loop:
    """Releases work when its turn has come.

    Work that has just appeared waits a moment, for others of its kind to appear and for a plan that knows them all
    (``settings.settle_ms``, ``settings.newcomer_wait_ms``): a start cannot be taken back.

    Parameters
    ----------
    cluster
        Real or simulated.
    planner
        Where plans come from; dispatching never waits for it.
    may_act
        Asked before each release: whether this replica still leads. Without leave the loop plans but changes nothing.
    metrics
        What it counts into; its own by default.
    current
        Asked before each round: the settings from then on. The same object, as long as nothing has changed.
    recorder
        What writes the ledger and learns from it; None: the past counts for nothing.

    Attributes
    ----------
    plan
        The plan in force, None before the first one.
    """

    def __init__(
        self,
        cluster: Cluster,
        planner: Planner,
        settings: Settings | None = None,
        may_act: Callable[[], bool] = always,
        metrics: Metrics | None = None,
        current: Callable[[], Settings] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.plan: PlanInForce | None = None
        self._current = current
        self._cluster = cluster
        self._planner = planner
        self._settings = settings or Settings()
        self._may_act = may_act
        self._metrics = metrics or Metrics()
        self._recorder = recorder
        self._snapshotter = Snapshotter(self._settings, recorder.estimates if recorder else None)
        self._news = News(cluster, self._settings)
        self._outcomes = Outcomes(self._metrics, self._settings, self._snapshotter.finished)
        self._released: dict[str, int] = {}
        """When we released Workloads, or began to, by uid; as long as they are there: the cluster may not show it."""
        self._sent: list[_Sent] = []
        self._refusals: Counter[str] = Counter()
        """How often the release of Workloads was refused, by uid."""
        self._failures: Counter[str] = Counter()
        """How often it failed though it may work later."""
        self._seen: dict[str, int] = {}
        """When each waiting Workload was first seen, by uid."""
        self._row: Mapping[str, int] = {}
        """Of the last snapshot."""
        self._shunned: dict[str, int] = {}
        """Until when Workloads that could not be released are left alone, by uid."""
        self._stranded = LetGo(self._settings.stranded_ms)
        self._unsupported: Mapping[str, tuple[Cause, ...]] = {}
        """As the log was told last."""
        self._now = 0
        """Of the last round."""
        self._running: frozenset[str] = frozenset()
        """Uids of the Workloads that held quota in the last round."""
        self._bypassing: frozenset[str] = frozenset()
        """Uids of the Workloads that somebody let pass by the plan, in the last round."""
        self._planner_away = False
        self._asked: int | None = None
        """Signature of what the last plan was asked for; None: ask anew."""
        self._asked_at = 0

    def step(self) -> Step:
        """One round: what has to be done at once, then what is told.

        Never waits for the planner, unless that plans inline.
        """
        step = self.act()
        self.tell(step)
        return step

    def act(self) -> Step:
        """Look at the cluster, release what is due, ask for a plan."""
        self._metrics.beat()
        if self._current is not None and (settings := self._current()) is not self._settings:
            self._use(settings)
        self._adopt()
        releases = self._ended()
        snapshot = self._snapshotter.take(self._cluster, self._released)
        if snapshot.now < self._now - SECOND:
            self._clock_was_set(self._now - snapshot.now)
        self._now = snapshot.now
        room_since = self._room_since(snapshot)
        self._remember(snapshot)
        problem = self._problem(snapshot)
        complaints: list[Complaint] = []
        due: list[tuple[Item, Sequence[Reference]]] = []
        pause = self._settings.idle_seconds
        if problem is not None:
            with self._contained("dispatch"):
                complaints = _rejections(snapshot, problem)
                due, pause = self._due(snapshot, problem)
        placements = self.plan.placements if self.plan else {}
        leaving = self._stranded.look(snapshot.stranded, snapshot.now, self._shunned, placements)
        if self._may_act():
            self._release(due, snapshot.now, room_since)
            self._let_go(leaving, snapshot.now)
            if not self._sent:  # else the end of one wakes us
                pause = min(pause, leaving.pause)
            releases += self._ended()
        asked = self._ask(snapshot)
        if asked and not self._planner.busy():
            pause = 0.0  # the answer is here already
        return Step(snapshot, self.plan, tuple(releases), asked, pause, problem, tuple(complaints), leaving.later)

    def tell(self, step: Step) -> None:
        """Say, count and write down what a round has seen."""
        if self._may_act():
            with self._contained("news"):
                self._news.tell(step.snapshot, step.plan, step.complaints, self._released, step.leaving)
        with self._contained("metrics"):
            self._count(step.snapshot, step.problem)
        if self._recorder is not None:
            with self._contained("ledger"):
                self._recorder.look(step.snapshot, self._snapshotter.works, step.plan)

    def run(self, stop: threading.Event) -> None:
        """Rounds until told to stop: at once when something changes, else when something is due.

        While one change follows another, what there is to tell waits, for a second at most: releases go first. Those
        that are under way at the end get a moment to end.
        """
        told = 0.0
        while not stop.is_set():
            begun, pause = time.thread_time(), self._settings.idle_seconds
            try:
                step = self.act()
                pause = step.pause
                changing = isinstance(self._cluster, KnowsWhatWoke) and self._cluster.changing
                if not changing or time.monotonic() - told >= TOLD_EVERY:
                    self.tell(step)
                    told = time.monotonic()
            except Exception:
                log.exception("a round of the loop failed")
                self._metrics.error("step")
                stop.wait(pause)
            # While very much changes, the watches and the planner need the processor as well.
            stop.wait(min(BREATH, time.thread_time() - begun))
            if not stop.is_set():
                self._cluster.wait(pause)
        futures.wait([sent.result for sent in self._sent], LAST_SECONDS)
        self._ended()

    def _use(self, settings: Settings) -> None:
        """Go by other settings, from the next snapshot on."""
        self._settings = settings
        self._snapshotter.settings = settings
        self._news.settings = settings
        self._outcomes.settings = settings
        self._asked = None  # the plan in force was made for others

    # --- plans ---------------------------------------------------------------------------------------------------

    def _adopt(self) -> None:
        while (answer := self._planner.answer()) is not None:
            if answer.plan is None:
                self._failed(answer)
                continue
            if self._planner_away:
                log.info("the planner answers again", extra={"engine": answer.plan.engine})
            self._planner_away = False
            self.plan = answer.plan
            self._metrics.planned(answer.plan.engine, answer.seconds, answer.plan.gap)
            log.debug(
                "plan adopted",
                extra={
                    "engine": answer.plan.engine,
                    "workloads": len(answer.plan.placements),
                    "objective": list(answer.plan.objective),
                    "gap": answer.plan.gap,
                    "seconds": round(answer.seconds, 3),
                },
            )

    def _failed(self, answer: Answer) -> None:
        error = answer.error
        reason = error.reason if isinstance(error, PlannerError) else "error"
        self._metrics.plan_failed(reason)
        if not isinstance(error, PlannerRefused):
            self._asked = None  # worth asking the same again
        if not self._planner_away:
            log.warning(
                "no plan came; going on with the last one, newcomers stand behind it by due date",
                extra={"reason": reason, "error": str(error)},
                exc_info=None if isinstance(error, PlannerError) else error,
            )
        self._planner_away = True

    def _ask(self, snapshot: Snapshot) -> bool:
        """Ask for a new plan if something has changed that matters to it, or the one in force has aged."""
        waiting = [item for item in snapshot.items if item.state == State.PENDING and item.uid not in self._released]
        if not waiting:
            return False
        age = snapshot.now - self._asked_at
        changed = snapshot.signature != self._asked if self._asked is not None else age >= RETRY
        if not (changed or age >= self._settings.replan_ms or (age >= RETRY and self._slipped(waiting, snapshot.now))):
            return False
        self._asked, self._asked_at = snapshot.signature, snapshot.now
        self._planner.ask(snapshot.request_after(self.plan))
        return True

    def _slipped(self, waiting: list[Item], now: int) -> bool:
        """Whether work should have started by now and has not: something runs longer than was planned."""
        placements = self.plan.placements if self.plan else {}
        return any(
            placement.start + SLIPPED < now for item in waiting if (placement := placements.get(item.uid)) is not None
        )

    # --- releases ------------------------------------------------------------------------------------------------

    def _problem(self, snapshot: Snapshot) -> Problem | None:
        """The snapshot as dispatch reads it; None when nothing waits for us, or the queues make no sense."""
        if not any(item.state == State.PENDING for item in snapshot.items):
            return None
        try:
            return decode(snapshot.request)
        except InvalidRequest as error:
            log.error("nothing can be released: the queues make no sense", extra={"error": str(error)})
            self._metrics.error("queues")
            return None

    def _due(self, snapshot: Snapshot, problem: Problem) -> tuple[list[tuple[Item, Sequence[Reference]]], float]:
        """What is to be released now, in order, each with whom Kueue is expected to evict for it.

        And seconds until more may be due though nothing changes.
        """
        now = snapshot.now
        turn = turns(problem, self.plan)
        # What may be tried again soon keeps its room meanwhile; what was refused does not.
        refused = (uid for uid in self._shunned if self._refusals[uid] or self._failures[uid] > FAILURES)
        free = snapshot.releasable.copy()
        free[[snapshot.row[uid] for uid in (*self._released, *refused) if uid in snapshot.row]] = False
        free = free[problem.row]
        heads = hopeless_heads(problem, snapshot.request)
        admission = decode_admission(snapshot.request, problem)
        fresh = self._fresh(problem, now)

        def fitting(releasable: Bools, honour: bool) -> list[Due]:
            return dispatch(problem, admission, turn, releasable, heads, honour, fresh)

        dates = [until - now for until in self._shunned.values()]
        settled = self._settled(problem, turn, now, dates, free, lambda: [row for row, _ in fitting(free, False)])
        found = fitting(free & settled, snapshot.request.policy.preemption == pb.HONOUR)
        due: list[tuple[Item, Sequence[Reference]]]
        due = [
            (item, [snapshot.items[victim].workload for victim in victims])
            for row, victims in found
            if (item := snapshot.items[problem.row[row]]).uid not in self._shunned
        ]
        waits = np.maximum(problem.release, turn.not_before)
        dates.append(int(waits.min(where=waits > 0, initial=NEVER)))
        pause = min((date for date in dates if date > 0), default=self._settings.idle_seconds * SECOND) / SECOND
        return due, min(pause, self._settings.idle_seconds)

    def _fresh(self, problem: Problem, now: int) -> Bools:
        """Which rows Kueue has had for so short a time that it may be about to admit them."""
        since = (self._released.get(uid, self._seen.get(uid, now)) for uid in problem.row_ids())
        age = now - np.fromiter(since, np.int64, len(problem))
        fresh: Bools = (problem.state != State.PENDING) & (age < FRESH)
        return fresh

    def _settled(
        self,
        problem: Problem,
        turn: Turns,
        now: int,
        dates: list[int],
        free: Bools,
        fitting: Callable[[], list[int]],
    ) -> Bools:
        """Which rows have been there long enough for their turn to be trusted. Adds instants when that changes.

        A row is not settled while others that might compete with it have just come: more may be right behind them. Nor
        while the plan does not know some of them, unless these are due later than the row, which the plan has in time,
        or all that waits fits together.

        Parameters
        ----------
        free
            Rows that would be released if it was their turn.
        fitting
            Tells which of them could be released together now, were all of them settled.
        """
        settle = self._settings.settle_ms
        wait = max(settle, self._settings.newcomer_wait_ms)
        age = now - np.fromiter(map(self._seen.get, problem.row_ids(), repeat(now)), np.int64, len(problem))
        known, rival = turn.start >= 0, (problem.state == State.PENDING) & (problem.release <= 0)
        young, unknown = rival & (age < settle), rival & ~known & (not self._planner_away)
        root = problem.tree.root[problem.options.node[problem.pair]]
        quiet: Bools = ~np.isin(root, root[young])
        first = np.full(len(problem.tree.parent), NEVER + 1, dtype=np.int64)
        np.minimum.at(first, root[unknown], problem.due[unknown])
        in_time = known & (turn.start + problem.shortest <= problem.due)
        settled: Bools = (age >= wait) | (quiet & ((first[root] > NEVER) | (in_time & (problem.due <= first[root]))))
        if (quiet & ~settled).any():
            left_out = free & rival
            left_out[fitting()] = False
            settled |= quiet & ~np.isin(root, root[left_out])
        left = np.concatenate([settle - age[young], wait - age[~settled]])
        dates.append(int(left.min(where=left > 0, initial=NEVER)))
        return settled

    def _release(self, due: list[tuple[Item, Sequence[Reference]]], now: int, room_since: float | None) -> None:
        """Begin to take our gate off.

        ``room_since``: when quota came free that these take, on :func:`time.monotonic`'s clock.
        """
        for item, evicts in due:
            self._send(item, now, room_since, evicts)

    def _let_go(self, leaving: Leaving, now: int) -> None:
        """Begin to take our gate off work that cannot be planned. What is due must not wait for many of these."""
        for lost in leaving.now[: max(0, AT_ONCE - len(self._sent))]:
            self._send(lost.item, now, lost=lost)

    def _send(
        self,
        item: Item,
        now: int,
        room_since: float | None = None,
        evicts: Sequence[Reference] = (),
        lost: Stranded | None = None,
    ) -> None:
        if isinstance(self._cluster, ReleasesInBackground):
            result = self._cluster.begin_release(item.root)
        else:
            result = Future()
            result.set_result(self._release_one(item))
        placement = self.plan.placements.get(item.uid) if self.plan else None
        planned = placement.start if placement else None
        self._released[item.uid] = now
        self._sent.append(_Sent(item, result, now, room_since, planned, evicts, lost))

    def _ended(self) -> list[tuple[Item, ReleaseResult]]:
        """The releases that have ended by now; what came of them is remembered."""
        ended: list[_Sent] = []
        under_way: list[_Sent] = []
        for sent in self._sent:  # asked once each: one may end at any moment
            (ended if sent.result.done() else under_way).append(sent)
        self._sent = under_way
        return [(sent.item, self._note(sent)) for sent in ended]

    def _release_one(self, item: Item) -> ReleaseResult:
        if not self._may_act():
            return ReleaseResult(Release.TRY_AGAIN, "this replica does not lead any more")
        try:
            return self._cluster.release(item.root)
        except Exception as error:
            return self._broken(item, error)

    def _broken(self, item: Item, error: Exception) -> ReleaseResult:
        log.exception("a release failed", extra={"root": str(item.root)}, exc_info=error)
        self._metrics.error("release")
        return ReleaseResult(Release.TRY_AGAIN, str(error))

    def _note(self, sent: _Sent) -> ReleaseResult:
        """Remember, count and tell what came of a release."""
        item = sent.item
        error = sent.result.exception()
        result = self._broken(item, error) if isinstance(error, Exception) else sent.result.result()
        outcome, latency = result.release, None
        self._metrics.released(outcome.value, result.seconds)
        if sent.room_since is not None and result.sent is not None:
            latency = result.sent - sent.room_since
            self._metrics.release_latency(latency)
        if outcome not in (Release.DONE, Release.NOT_GATED):
            self._released.pop(item.uid, None)
            pause = SECOND
            if outcome == Release.TRY_AGAIN:
                self._failures[item.uid] += 1
            else:
                pause = min(LONGEST_PAUSE, REFUSED_PAUSE * 4 ** min(9, self._refusals[item.uid]))
                self._refusals[item.uid] += 1
            self._shunned[item.uid] = self._cluster.now() + pause
        if outcome == Release.REFUSED and self._refusals[item.uid] > 1:
            self._news.once(Complaint(item.root, "ReleaseRefused", f"cannot be released: {result.message}"))
        if outcome == Release.DONE and sent.lost is not None:
            self._news.once(let_go(sent.lost))
        log.log(
            logging.INFO if outcome in (Release.DONE, Release.NOT_GATED) else logging.WARNING,
            "release",
            extra={
                "outcome": outcome.value,
                "detail": result.message,
                "root": str(item.root),
                "workload": f"{item.workload.namespace}/{item.workload.name}",
                "cluster_queue": item.cluster_queue,
                "deadline_ms": item.deadline,
                "planned_start_ms": sent.planned,
                "evicts": [f"{victim.namespace}/{victim.name}" for victim in sent.evicts],
                "now_ms": sent.now,
                "latency_seconds": latency if latency is None else round(latency, 4),
            },
        )
        return result

    # --- memory and numbers --------------------------------------------------------------------------------------

    def _remember(self, snapshot: Snapshot) -> None:
        there = {*snapshot.row, *(lost.item.uid for lost in snapshot.stranded)}
        self._released = {uid: at for uid, at in self._released.items() if uid in there}
        if snapshot.row is not self._row:
            self._row = snapshot.row
            self._seen = dict(zip(self._row, map(self._seen.get, self._row, repeat(snapshot.now)), strict=True))
        self._shunned = {uid: until for uid, until in self._shunned.items() if until > snapshot.now}
        self._refusals = Counter({uid: count for uid, count in self._refusals.items() if uid in there})
        self._failures = Counter({uid: count for uid, count in self._failures.items() if uid in there})

    def _clock_was_set(self, back: int) -> None:
        """Forget what is remembered by a clock that has been set back: all of it would be in the future for so long."""
        log.warning("the clock was set back", extra={"seconds": back / SECOND})
        self._seen, self._row, self._shunned, self._stranded = {}, {}, {}, LetGo(self._settings.stranded_ms)
        self._released = {uid: at - back for uid, at in self._released.items()}
        self._asked, self._asked_at = None, 0

    def _room_since(self, snapshot: Snapshot) -> float | None:
        """When quota came free that was held in the last round; None when none did."""
        before, self._running = self._running, frozenset(i.uid for i in snapshot.items if i.state == State.RUNNING)
        freed = before - self._running
        return self._cluster.woken_by if freed and isinstance(self._cluster, KnowsWhatWoke) else None

    def _count(self, snapshot: Snapshot, problem: Problem | None) -> None:
        counts: dict[int, Counter[str]] = {int(state): Counter() for state in State}
        late: Counter[str] = Counter()
        bypassing = [item for item in snapshot.items if item.bypassed_by]
        placements = self.plan.placements if self.plan else {}
        for item in snapshot.items:
            counts[item.state][item.cluster_queue] += 1
            placement = placements.get(item.uid)
            if item.state == State.PENDING and placement and item.deadline and placement.finish > item.deadline:
                late[item.cluster_queue] += 1
        self._metrics.queues(
            gated=counts[State.PENDING],
            in_flight=counts[State.IN_FLIGHT],
            running=counts[State.RUNNING],
            late=late,
            bypassing=Counter(item.cluster_queue for item in bypassing),
        )
        for item in bypassing:
            if item.uid not in self._bypassing:
                log.warning("passes by the plan", extra={"root": str(item.root), "by": item.bypassed_by})
        self._bypassing = frozenset(item.uid for item in bypassing)
        self._metrics.leads(snapshot.leads)
        self._outcomes.look(snapshot, self.plan)
        if problem is None:
            self._metrics.idle({})
        else:
            items = [snapshot.items[row] for row in problem.row.tolist()]
            waits = np.array([item.releasable and item.uid not in self._released for item in items], dtype=np.bool_)
            self._metrics.idle(idle(problem, waits & (problem.release <= 0)))
        if snapshot.unsupported != self._unsupported:
            self._unsupported = snapshot.unsupported
            self._metrics.unsupported(
                (queue, cause.name) for queue, causes in self._unsupported.items() for cause in causes
            )
            why = {queue: [cause.message for cause in causes] for queue, causes in self._unsupported.items()}
            log.warning("queues that are not supported: their work is left to Kueue", extra={"queues": why})

    @contextmanager
    def _contained(self, where: str) -> Iterator[None]:
        """Whatever goes wrong inside is logged and counted, and the loop goes on."""
        try:
            yield
        except Exception:
            log.exception("the loop goes on after an error", extra={"where": where})
            self._metrics.error(where)


def _rejections(snapshot: Snapshot, problem: Problem) -> list[Complaint]:
    """What to tell the owners of work that cannot be planned."""
    complaints = []
    for rejected in problem.rejected:
        item = snapshot.items[rejected.row]
        if item.state == State.PENDING:
            reason, message = _REJECTED[rejected.kind]
            complaints.append(Complaint(item.root, reason, message.format(item.refused or rejected.message)))
    return complaints
