"""A schedule beside the real one: what would have run when, had work of the past been started by other rules.

The past is replayed: work arrives when it was submitted, asks for what it was granted, and runs for as long as it did.
What a rule may know is what could be known then: estimates, not run times. Two rules are replayed, through the same
arithmetic of quota: ours (the planner's rules and :func:`scheduler.dispatch.dispatch`), and Kueue's own order. The
second one shows how far a replay is from what happened, so that the first one can be believed.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, cast

import numpy as np

from scheduler.dispatch import Turns, dispatch, turns
from scheduler.family import is_gpu
from scheduler.idle import idle
from scheduler.plans import PlanInForce, read_plan
from scheduler.settings import SECOND, Settings
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.decode_admission import decode_admission
from solver.encode import encode
from solver.greedy import rule_plans
from solver.problem import NEVER, Problem
from solver.schedule import Scheduler
from solver.worth import worth

START_LAG = 2 * SECOND
"""From the end of one workload to the start of the next, at least: so long Kubernetes and Kueue take (milliseconds)."""

PLANS = 1_000
"""Plans made at most for one replay: in a long one, newcomers wait longer for a plan that knows them."""

RULES = 3
"""Rules of the planner that are tried for each plan: its best on average. Search and CP-SAT would do better."""

Usage = tuple[tuple[str, str, int], ...]
"""Flavor, resource, amount."""

Breath = Callable[[], None]
"""Called between two steps of a replay."""


@dataclass(frozen=True, slots=True)
class PastWork:
    """A Workload as it was. Instants are milliseconds since the Unix epoch.

    Attributes
    ----------
    ours
        Whether a replay may start it at another time; else it holds its quota when it really did.
    not_before
        Its earliest start.
    duration
        How long it ran, or, of what has not ended, as far as is known how long it will.
    usage
        What it was granted; empty if it never ran.
    shape
        What it asks for, where nothing was granted yet.
    started, ended
        Of its last run; None if there was none, or it has not ended.
    gone
        It was deleted before it had started: since when it waits no more.
    counts
        Whether meeting its deadline says anything: it ran to an end of its own, or is there still.
    """

    uid: str
    cluster_queue: str
    submitted: int
    ours: bool
    estimate: int
    duration: int
    usage: Usage = ()
    shape: pb.RequestShape | None = None
    deadline: int | None = None
    not_before: int = 0
    weight: float = 1.0
    hard: bool = False
    priority: int = 0
    name: str = ""
    """Of its root object: ``namespace/name``."""
    started: int | None = None
    ended: int | None = None
    gone: int | None = None
    counts: bool = True

    @property
    def gpus(self) -> int:
        """Number of GPUs that it was granted."""
        return sum(held for _, resource, held in self.usage if is_gpu(resource))


class Idle(NamedTuple):
    """GPUs that lay idle though work waited that could have used some, from an instant on."""

    since: int
    gpus: float


@dataclass
class Course:
    """What would have been, or what was.

    Attributes
    ----------
    start, end
        By uid, of what started within the time replayed, or before it; an end may lie after it.
    idle
        In order of time.
    """

    start: dict[str, int] = field(default_factory=dict)
    end: dict[str, int] = field(default_factory=dict)
    idle: list[Idle] = field(default_factory=list)


class Replay:
    """The past of one cluster.

    Parameters
    ----------
    quota
        The queues; taken to have been as they are now.
    work
        All that held or wanted quota from ``since`` to ``until`` (milliseconds since the Unix epoch).
    settings
        The policy to plan by.
    breath
        Called between two steps: to let others run, or to give up by an exception.
    """

    def __init__(
        self,
        quota: pb.Quota,
        work: Sequence[PastWork],
        settings: Settings,
        since: int,
        until: int,
        breath: Breath = lambda: None,
    ) -> None:
        queues = {queue.name: position for position, queue in enumerate(quota.cluster_queues)}
        self._tables = _Tables(quota)
        self._work = sorted((w for w in work if w.cluster_queue in queues), key=lambda w: (w.submitted, w.uid))
        self._queue = queues
        self._settings = settings
        self._since, self._until = since, until
        self._breath = breath

    def real(self) -> Course:
        """What happened."""
        course = Course()
        changes: list[tuple[int, bool, PastWork]] = []
        for work in self._work:
            if work.started is not None:
                course.start[work.uid] = work.started
                course.end[work.uid] = end = _end(work)
                changes += [(work.started, True, work), (end, False, work)]
        arrivals = [(work.submitted, work) for work in self._work if work.ours]
        arrivals += [(work.not_before, work) for work in self._work if work.ours and work.not_before]
        instants = {self._since, *(at for at, _ in arrivals), *(at for at, _, _ in changes)}
        instants |= {work.gone for work in self._work if work.gone is not None}
        changes.sort(key=lambda change: (change[0], change[1]))
        arrivals.sort(key=lambda arrival: arrival[0])
        running: dict[str, tuple[PastWork, int]] = {}
        waiting: dict[str, PastWork] = {}
        begun, came = 0, 0
        for now in sorted(instants):
            while came < len(arrivals) and arrivals[came][0] <= now:
                work = arrivals[came][1]
                came += 1
                if not _over(work.started, now) and not _over(work.gone, now):
                    waiting[work.uid] = work
            while begun < len(changes) and changes[begun][0] <= now:
                _, begins, work = changes[begun]
                begun += 1
                waiting.pop(work.uid, None)
                if begins:
                    running[work.uid] = work, course.end[work.uid]
                else:
                    running.pop(work.uid, None)
            for uid in [uid for uid, work in waiting.items() if _over(work.gone, now)]:
                del waiting[uid]
            if self._since <= now < self._until:
                self._breath()
                self._note_idle(course, now, list(waiting.values()), list(running.values()))
        return course

    def planned(self) -> Course:
        """What our rules would have done."""
        return self._replay(_Planned(self._settings, self._until - self._since))

    def by_kueue(self) -> Course:
        """What comes out when Kueue's own order is replayed: priority, then age, whatever fits."""
        return self._replay(_by_age)

    def _replay(self, rule: Rule) -> Course:
        course, now = Course(), self._since
        ends: list[tuple[int, str, PastWork]] = []
        arrivals: list[PastWork] = []
        later: list[tuple[int, PastWork]] = []
        for work in self._work:
            before = work.started is not None and work.started <= now
            if not work.ours or before:
                # It runs when it really did: begun before the time that is replayed, or not ours to start.
                if work.started is not None and not _over(work.ended, now):
                    later.append((work.started, work))
            elif work.gone is None or work.gone > now:
                arrivals.append(work)
        arrivals.reverse()
        later.sort(key=lambda entry: entry[0], reverse=True)
        running: dict[str, tuple[PastWork, int]] = {}
        waiting: dict[str, PastWork] = {}
        while now < self._until:
            self._breath()
            while ends and ends[0][0] <= now:
                running.pop(heapq.heappop(ends)[1])
            while later and later[-1][0] <= now:
                began, work = later.pop()
                if (end := _end(work)) > now:
                    self._start(course, running, ends, work, began, end)
            while arrivals and arrivals[-1].submitted <= now:
                work = arrivals.pop()
                waiting[work.uid] = work
            for uid in [uid for uid, work in waiting.items() if _over(work.gone, now)]:
                del waiting[uid]
            dates, problem = [self._until], None
            if waiting:
                asking, holding = list(waiting.values()), list(running.values())
                request = self._request(now, asking, holding)
                problem = decode(request)
                turn, again = rule(request, problem, now)
                for rejected in problem.rejected:  # its queue has no such quota any more: as it was, then
                    work = waiting.pop(problem.ids[rejected.row])
                    if work.started is not None:
                        insort(later, (max(now, work.started), work), key=lambda entry: -entry[0])
                admission = decode_admission(request, problem)
                due = dispatch(problem, admission, turn, np.ones(len(problem), dtype=np.bool_), (), False)
                for row, _ in due:
                    work = waiting.pop(problem.ids[problem.row[row]])
                    self._start(course, running, ends, work, now, now + START_LAG + work.duration)
                if due and (np.diff(problem.options.first) > 1).any():
                    dates.append(now + 1)  # what could take the flavor of these waits until they have it
                dates += [again, *(work.not_before for work in waiting.values() if work.not_before > now)]
                dates += [work.gone for work in waiting.values() if work.gone is not None]
                dates += [now + int(wait) for wait in turn.not_before if wait > 0]
                problem = None if due else problem
            self._note_idle(course, now, list(waiting.values()), list(running.values()), problem)
            if ends:
                dates.append(ends[0][0])
            if arrivals:
                dates.append(arrivals[-1].submitted)
            if later:
                dates.append(later[-1][0])
            now = max(now + 1, min(dates))
        return course

    @staticmethod
    def _start(
        course: Course,
        running: dict[str, tuple[PastWork, int]],
        ends: list[tuple[int, str, PastWork]],
        work: PastWork,
        start: int,
        end: int,
    ) -> None:
        course.start[work.uid], course.end[work.uid] = start, end
        running[work.uid] = work, end
        heapq.heappush(ends, (end, work.uid, work))

    def _request(self, now: int, waiting: list[PastWork], running: list[tuple[PastWork, int]]) -> pb.PlanRequest:
        """As a snapshot of that instant would have it."""
        rows, tables, settings = [*waiting, *(work for work, _ in running)], self._tables, self._settings
        return pb.PlanRequest(
            schema=1,
            now_ms=now,
            policy=pb.Policy(
                objective=cast(list[pb.ObjectiveLevel], settings.objective),
                ageing_ms=settings.ageing_ms,
                preemption=pb.WAIT,
            ),
            shapes=[tables.shape(work) for work in waiting],
            assignments=[tables.held(work.usage) for work, _ in running],
            quota=tables.quota,
            workloads=pb.Workloads(
                id=[work.uid for work in rows],
                cluster_queue=[self._queue[work.cluster_queue] for work in rows],
                shape=[*range(len(waiting)), *(0 for _ in running)],
                assignment=[*(0 for _ in waiting), *range(len(running))],
                state=[pb.PENDING] * len(waiting) + [pb.RUNNING] * len(running),
                created_ms=[work.submitted for work in rows],
                release_ms=[work.not_before if work.not_before > now else 0 for work in rows],
                duration_ms=[
                    *(work.estimate for work in waiting),
                    *(self._remaining(work, end, now) for work, end in running),
                ],
                due_ms=[work.deadline or 0 for work in rows],
                hard=[work.hard for work in rows],
                weight=[work.weight for work in rows],
                priority=[work.priority for work in rows],
            ),
        )

    def _remaining(self, work: PastWork, end: int, now: int) -> int:
        """What would be expected of running work, by its estimate."""
        elapsed = now - (end - work.duration)
        least = max(self._settings.minimum_remaining_ms, work.estimate // 10)
        return work.estimate - elapsed if elapsed < work.estimate else least

    def _note_idle(
        self,
        course: Course,
        now: int,
        waiting: list[PastWork],
        running: list[tuple[PastWork, int]],
        problem: Problem | None = None,
    ) -> None:
        """Note what is idle; ``problem``: what waits and runs, if somebody has it already."""
        gpus = 0.0
        if waiting:
            problem = problem or decode(self._request(now, waiting, running))
            free = idle(problem, problem.release <= 0)
            gpus = sum(amount for (_, resource), amount in free.items() if is_gpu(resource))
        if not course.idle or course.idle[-1].gpus != gpus:
            course.idle.append(Idle(now, gpus))


Rule = Callable[[pb.PlanRequest, Problem, int], tuple[Turns, int]]
"""Says in which turn rows of a problem may start, and when to ask it again though nothing happens."""


class _Planned:
    """The planner's quick rules, asked anew when work has come or gone, as the control loop does it."""

    def __init__(self, settings: Settings, span: int) -> None:
        self._pace = max(settings.settle_ms, span // PLANS)
        self._plan: PlanInForce | None = None
        self._made = 0
        self._seen: frozenset[str] = frozenset()

    def __call__(self, request: pb.PlanRequest, problem: Problem, now: int) -> tuple[Turns, int]:
        there = frozenset(problem.ids)
        if there == self._seen:
            return turns(problem, self._plan), NEVER
        if self._plan is not None and now - self._made < self._pace:
            return turns(problem, self._plan), self._made + self._pace
        candidates = islice(rule_plans(Scheduler(problem), request.policy), RULES)
        plan = min(candidates, key=lambda plan: worth(problem, plan, request.policy))
        self._plan, self._made, self._seen = read_plan(request, encode(problem, plan, request.policy)), now, there
        return turns(problem, self._plan), NEVER


def _by_age(request: pb.PlanRequest, problem: Problem, now: int) -> tuple[Turns, int]:
    """Kueue's own order. Nobody waits for anybody: what fits starts."""
    n = len(problem)
    order = np.lexsort((problem.created, -problem.priority.astype(np.int64))).astype(np.int64)
    return Turns(order, np.full(n, NEVER, dtype=np.int64), np.zeros(n, dtype=np.int64)), NEVER


class _Tables:
    """The quota, with flavors and resources that work of the past had and no queue has any more."""

    def __init__(self, quota: pb.Quota) -> None:
        self.quota = pb.Quota()
        self.quota.CopyFrom(quota)
        self._flavor = {flavor.name: position for position, flavor in enumerate(self.quota.flavors)}
        self._resource = {name: position for position, name in enumerate(self.quota.resources)}
        self._shapes: dict[Usage, pb.RequestShape] = {}
        self._held: dict[Usage, pb.Assignment] = {}

    def shape(self, work: PastWork) -> pb.RequestShape:
        """What work asks for: what it was granted, in the same flavors."""
        if not work.usage and work.shape is not None:
            return work.shape
        if work.usage not in self._shapes:
            held = self.held(work.usage)
            self._shapes[work.usage] = pb.RequestShape(
                pod_sets=[
                    pb.PodSet(
                        count=1,
                        resources=held.resources,
                        amounts=held.amounts,
                        excluded_flavors=sorted({*self._flavor.values()} - {*held.flavors}),
                    )
                ]
            )
        return self._shapes[work.usage]

    def held(self, usage: Usage) -> pb.Assignment:
        """The same as something that is held."""
        if usage not in self._held:
            self._held[usage] = pb.Assignment(
                flavors=[self._flavor_of(flavor) for flavor, _, _ in usage],
                resources=[self._resource_of(resource) for _, resource, _ in usage],
                amounts=[held for _, _, held in usage],
            )
        return self._held[usage]

    def _flavor_of(self, name: str) -> int:
        if name not in self._flavor:
            self._flavor[name] = len(self._flavor)
            self.quota.flavors.add(name=name)
        return self._flavor[name]

    def _resource_of(self, name: str) -> int:
        if name not in self._resource:
            self._resource[name] = len(self._resource)
            self.quota.resources.append(name)
        return self._resource[name]


def _over(instant: int | None, now: int) -> bool:
    return instant is not None and instant <= now


def _end(work: PastWork) -> int:
    """When it ended that has started, or, as far as is known, will end."""
    assert work.started is not None
    return work.started + work.duration if work.ended is None else work.ended


def sustained(steps: Sequence[Idle], until: int, at_least: int) -> float:
    """The most GPUs that lay idle for ``at_least`` milliseconds on end."""
    worst = 0.0
    ends = [*(step.since for step in steps[1:]), until]
    for k, step in enumerate(steps):
        least, j = step.gpus, k
        while least > worst:
            if ends[j] - step.since >= at_least:
                worst = least
                break
            j += 1
            if j == len(steps):
                break
            least = min(least, steps[j].gpus)
    return worst


def gpu_seconds(steps: Sequence[Idle], until: int) -> float:
    """GPUs × seconds that lay idle."""
    return sum(gpus * (end - since) for since, end, gpus in _spans(steps, until)) / SECOND


def _spans(steps: Sequence[Idle], until: int) -> Iterator[tuple[int, int, float]]:
    for k, step in enumerate(steps):
        yield step.since, steps[k + 1].since if k + 1 < len(steps) else until, step.gpus
