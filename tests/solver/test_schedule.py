"""Schedules against a plain restatement: full tree, every instant looked at, nothing remembered between rows."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_nodes import Pods, pods_of_assignment, pods_of_option, within_counts
from small_requests import NOW, add, request, requests

from benchmarks.backlog import instance
from solver.api import planner_pb2 as pb
from solver.buckets import make_use, place
from solver.decode import decode
from solver.problem import NEVER, Problem, State
from solver.quota import fits, take
from solver.schedule import Scheduler
from solver.slots import compact, hold, room

rule = partial(settings, deadline=None)  # the first call compiles


def taken(problem: Problem, usage: np.ndarray, row: int, option: int) -> None:
    """Add what a row takes with an option."""
    options = problem.options
    for k in range(options.need[option], options.need[option + 1]):
        take(problem.tree.arrays, usage, options.node[problem.pair[row]], options.cell[k], options.amount[k])


def may_take(problem: Problem, usage: np.ndarray, row: int, option: int) -> bool:
    """Whether a row fits with an option."""
    options = problem.options
    k = slice(options.need[option], options.need[option + 1])
    node = options.node[problem.pair[row]]
    return fits(problem.tree.arrays, usage, node, options.cell[k], options.amount[k])


def options_of(problem: Problem, row: int) -> range:
    """Options of a row."""
    pair = problem.pair[row]
    return range(problem.options.first[pair], problem.options.first[pair + 1])


def length(problem: Problem, asked: pb.PlanRequest, row: int, option: int) -> int:
    """How long a row holds an option: until work has begun in the slowest of its flavors, and until it is done."""
    k = slice(problem.options.need[option], problem.options.need[option + 1])
    leads = [asked.quota.flavors[cell // len(asked.quota.resources)].lead_ms for cell in problem.options.cell[k]]
    return int(problem.duration[row]) + max(leads, default=0)


class Plainly:
    """Everything that is placed so far; use during a span of time is added up anew after each placement."""

    def __init__(self, problem: Problem, asked: pb.PlanRequest) -> None:
        self.problem, self.asked = problem, asked
        self.placed: list[tuple[int, int, int, int]] = []
        self._usage: dict[tuple[int, int, int], np.ndarray] = {}

    def usage(self, begin: int, end: int) -> np.ndarray:
        """Use by all that is held during a part of [begin, end)."""
        key = (begin, end, len(self.placed))
        if key in self._usage:
            return self._usage[key]
        problem, usage = self.problem, self.problem.tree.no_usage()
        for node, cell, amount, start, stop, *_ in zip(*problem.busy, strict=True):
            if start < end and stop > begin:
                take(problem.tree.arrays, usage, node, cell, amount)
        for row, option, start, stop in self.placed:
            if start < end and stop > begin:
                taken(problem, usage, row, option)
        self._usage[key] = usage
        return usage

    def pods(self, begin: int, end: int) -> Pods:
        """Pods that are there during a part of [begin, end)."""
        quota, work, busy = self.asked.quota, self.asked.workloads, self.problem.busy
        pods: Pods = Counter()
        ends = dict(zip(busy.row.tolist(), busy.end.tolist(), strict=True))
        for row, stop in ends.items():
            if row >= 0 and end > 0 and stop > begin:
                pods += pods_of_assignment(quota, self.asked.assignments[work.assignment[row]])
        for _, option, start, stop in self.placed:
            if start < end and stop > begin:
                pods += pods_of_option(self.problem, option)
        return pods

    def fits(self, row: int, option: int, instants: list[tuple[int, int]]) -> bool:
        """Whether a row fits during each of some spans."""
        if not all(may_take(self.problem, self.usage(*span), row, option) for span in instants):
            return False
        mine = pods_of_option(self.problem, option)
        return not mine or all(within_counts(self.asked.quota, self.pods(*span) + mine, mine) for span in instants)


def distance(problem: Problem, usage: np.ndarray, row: int, option: int) -> int:
    """How far up an option borrows: the height of the lowest part of the tree that has the room."""
    tree, options = problem.tree, problem.options
    queues = set(tree.queue_node.tolist())
    children = {
        node: [c for c in range(len(tree.parent)) if tree.parent[c] == node] for node in range(len(tree.parent))
    }

    def height(node: int) -> int:
        above = [0 if child in queues else height(child) + 1 for child in children[node]]
        return 0 if node in queues else max([1, *above])

    def of(cell: int, amount: int) -> int:
        node = int(options.node[problem.pair[row]])
        if tree.parent[node] < 0 or usage[node, cell] + amount <= tree.nominal[node, cell]:
            return 0
        while tree.parent[node] >= 0:
            amount -= max(0, int(tree.arrays.local[node, cell] - usage[node, cell]))
            node = int(tree.parent[node])
            if usage[node, cell] + amount <= tree.arrays.subtree[node, cell]:
                break
        return height(node)

    k = range(options.need[option], options.need[option + 1])
    return max((of(int(options.cell[i]), int(options.amount[i])) for i in k), default=0)


def by_kueue(problem: Problem, usage: np.ndarray, row: int, fitting: list[int]) -> int | None:
    """Which of the options that fit Kueue takes."""
    queue = list(problem.tree.queue_node).index(problem.options.node[problem.pair[row]])
    if not problem.tree.try_next_flavor[queue]:
        return fitting[0] if fitting else None
    return min(fitting, key=lambda option: distance(problem, usage, row, option), default=None)


def plain_buckets(
    problem: Problem, asked: pb.PlanRequest, edge: np.ndarray, order: np.ndarray, due: np.ndarray
) -> tuple[dict[int, int], dict[int, int]]:
    """Bucket and option of each row, by trying one bucket after the other."""
    plainly, start, option = Plainly(problem, asked), {}, {}
    floor: dict[int, int] = {}
    buckets = len(edge) - 1
    for row in order:
        queue = int(problem.options.node[problem.pair[row]])
        strict = queue in {int(problem.tree.queue_node[q]) for q in np.flatnonzero(problem.tree.strict_fifo)}
        for s in range(buckets):
            if edge[s] < problem.release[row] or (strict and s < floor.get(queue, 0)):
                continue
            end = {o: edge[s] + length(problem, asked, row, o) for o in options_of(problem, row)}
            last = {o: int(np.searchsorted(edge, end[o])) for o in end if end[o] <= due[row]}
            spans = {o: [(edge[t], edge[t + 1]) for t in range(s, e)] for o, e in last.items() if e <= buckets}
            fitting = [o for o in spans if plainly.fits(row, o, spans[o])]
            chosen = by_kueue(problem, plainly.usage(edge[s], edge[s + 1]), row, fitting)
            if chosen is not None:
                start[row], option[row], floor[queue] = s, chosen, s
                plainly.placed.append((row, chosen, edge[s], edge[last[chosen]]))
                break
    return start, option


def plain_exact(scheduler: Scheduler, asked: pb.PlanRequest, order: np.ndarray, chosen: np.ndarray) -> dict[int, int]:
    """Start of each row, by trying one millisecond after the other; ``chosen`` where it is −1 is filled in."""
    problem = scheduler.problem
    plainly, start, now = Plainly(problem, asked), {}, 0
    others = problem.state != State.PENDING
    for row in np.flatnonzero(others):
        begin, option = int(scheduler.fixed.start[row]), int(scheduler.fixed.option[row])
        plainly.placed.append((row, option, begin, begin + length(problem, asked, row, option)))
    for row in order:
        queue = scheduler.rows.queue[row]
        now = max(now, int(problem.release[row]), int(scheduler.floor[queue]) if queue >= 0 else 0)
        while True:
            option = int(chosen[row])
            if option < 0:
                fitting = [o for o in options_of(problem, row) if plainly.fits(row, o, [(now, now + 1)])]
                found = by_kueue(problem, plainly.usage(now, now + 1), row, fitting)
                option = -1 if found is None else found
            if option >= 0:
                end = now + length(problem, asked, row, option)
                if plainly.fits(row, option, [(t, t + 1) for t in range(now, end)]):
                    break
            now += 1
        start[row], chosen[row] = now, option
        plainly.placed.append((row, chosen[row], now, end))
    return start


@rule(max_examples=40)
@given(requests(), st.randoms(use_true_random=False))
def test_slots_are_the_tree(request_, random):
    """Whatever is in use, each row fits the slots of quota exactly when it fits the full tree."""
    problem = decode(request_)
    slots, needs, _, slot_of, nodes, _ = compact(problem)
    usage, use = problem.tree.no_usage(), np.zeros(len(slots.up), dtype=np.int64)
    for node, cell, amount, *_ in zip(*problem.busy, strict=True):
        if random.random() < 0.5:
            take(problem.tree.arrays, usage, node, cell, amount)
            if slot_of[node, cell] >= 0:
                hold(slots, use, slot_of[node, cell], amount)
    rows = list(range(len(problem)))
    random.shuffle(rows)
    for row in rows:
        option = random.choice(options_of(problem, row))
        k = [i for i in range(needs.first[option], needs.first[option + 1]) if needs.slot[i] < nodes]
        fit = all(needs.amount[i] <= max(0, room(slots, use, needs.slot[i])) for i in k)
        assert fit == may_take(problem, usage, row, option)
        taken(problem, usage, row, option)
        for i in k:
            hold(slots, use, needs.slot[i], needs.amount[i])


@rule(max_examples=40)
@given(requests(rows=10, states=(pb.PENDING, pb.PENDING, pb.RUNNING)), st.randoms(use_true_random=False))
def test_buckets_are_the_earliest(request_, random):
    """Each row gets the earliest bucket, and there the first option, that a plain search finds; late rows are left."""
    problem = decode(request_)
    scheduler = Scheduler(problem)
    edge = np.unique([0, *(random.randint(1, 60) for _ in range(12)), problem.horizon])
    order = np.array(random.sample(range(len(problem)), len(problem)), dtype=np.int64)
    due = problem.due if random.random() < 0.5 else np.full(len(problem), NEVER)
    slots, needs, held, *_ = scheduler.compact
    bucket, option = np.full(len(problem), -1, dtype=np.int32), np.full(len(problem), -1, dtype=np.int32)
    place(
        slots, needs, scheduler.hints, scheduler.rows, edge, make_use(slots, held, edge), order, due,
        np.zeros(len(scheduler.floor), dtype=np.int64), np.zeros(scheduler.hints.size, dtype=np.int32), bucket, option,
        scheduler.stop,
    )  # fmt: skip
    start, chosen = plain_buckets(problem, request_, edge, order, due)
    got = {row: int(bucket[row]) for row in range(len(problem)) if 0 <= bucket[row] < len(edge) - 1}
    assert got == start
    assert {row: int(option[row]) for row in got} == chosen


@rule(max_examples=40)
@given(requests(), st.randoms(use_true_random=False))
def test_exact_starts_are_the_earliest(request_, random):
    """Each row, in turn, starts at the first millisecond from the last start on at which it fits as long as it runs."""
    problem = decode(request_)
    scheduler = Scheduler(problem)
    order = np.array(random.sample(list(scheduler.ours), len(scheduler.ours)), dtype=np.int64)
    chosen = np.full(len(problem), -1, dtype=np.int32)
    for row in order:
        chosen[row] = random.choice([*options_of(problem, row), -1])
    start, option = scheduler.exactly(order, chosen)
    assert {row: int(start[row]) for row in order} == plain_exact(scheduler, request_, order, chosen)
    assert option[order].tolist() == chosen[order].tolist()


def test_the_next_flavor_rather_than_borrowing():
    """With TryNextFlavor a queue uses its own quota of each flavor before it borrows, and borrows near before far."""
    asked = request({"q": 0, "near": 0, "far": 0})
    asked.quota.flavors.add(name="other")
    asked.quota.cohorts.add(name="all")
    asked.quota.cohorts.add(name="team", parent="all")
    for queue, cohort, nominal in zip(
        asked.quota.cluster_queues, ("team", "team", "all"), ((1, 1), (0, 2), (3, 0)), strict=True
    ):
        queue.cohort = cohort
        del queue.resource_groups[0].flavors[:]
        for flavor, gpus in enumerate(nominal):
            queue.resource_groups[0].flavors.add(flavor=flavor).resources.add(resource=0, nominal=gpus)
    add(asked, 1, 10, times=6)
    for policy, flavors in ((pb.MAY_STOP_SEARCH, [0, 0, 0, 0, 1, 1]), (pb.TRY_NEXT_FLAVOR, [0, 1, 1, 1, 0, 0])):
        asked.quota.cluster_queues[0].flavor_fungibility = policy
        problem = decode(asked)
        scheduler = Scheduler(problem)
        for starts in (scheduler.schedule(scheduler.ours), scheduler.exactly(scheduler.ours)):
            assert starts.start.tolist() == [0] * 6
            assert problem.options.cell[problem.options.need[starts.option]].tolist() == flavors


@rule(max_examples=40)
@given(requests(), st.randoms(use_true_random=False))
def test_exact_starts_are_never_later_than_buckets(request_, random):
    """Taking the rounding out delays nobody, and what comes out passes the independent checker."""
    problem = decode(request_)
    scheduler = Scheduler(problem)
    order = np.array(random.sample(list(scheduler.ours), len(scheduler.ours)), dtype=np.int64)
    bucket, _ = scheduler.in_buckets(order)
    start, _ = scheduler.schedule(order)
    assert (start[order] <= scheduler.edge[bucket[order]]).all()


def test_time_jumps_over_what_is_held():
    """A row whose release date comes after something held began and ended starts at its release date."""
    asked = request({"q": 4})
    add(asked, 4, 1, release=5)
    asked.reservations.add(node="q", amount=4, start_ms=NOW + 1, end_ms=NOW + 3)
    scheduler = Scheduler(decode(asked))
    assert scheduler.exactly(scheduler.ours).start.tolist() == [5]


def test_buckets_are_short_beside_run_times():
    """However long the backlog is, a bucket is a small part of the time that a row takes."""
    for n in (300, 3_000):
        problem = decode(instance(n, 1.1, seed=1))
        edge = Scheduler(problem).edge
        assert edge[1] - edge[0] <= 0.025 * float(problem.size @ problem.duration) / float(problem.size.sum())
