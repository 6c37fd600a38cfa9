"""The one rule: what may be released now."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.backfill import BOOKINGS
from scheduler.dispatch import Turns, dispatch, hopeless_heads, turns
from scheduler.plans import Placement, PlanInForce
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.decode_admission import decode_admission
from solver.problem import Problem

NOW = 1_800_000_000_000
UNLIMITED = 10**9


@dataclass(eq=False)
class Queue:
    """A ClusterQueue or, with children, a Cohort; one resource, quotas by flavor."""

    nominal: list[int]
    borrowing: list[int | None]
    lending: list[int | None]
    strict: bool = False
    preemption: pb.Preemption = field(default_factory=pb.Preemption)
    parent: Queue | None = None
    children: list[Queue] = field(default_factory=list, repr=False)


@dataclass
class Row:
    """One workload: GPUs, its state, and what the plan says (None: the plan does not know it)."""

    queue: int
    gpus: int
    state: int
    duration: int = 100
    release: int = 0
    due: int = 0
    created: int = 0
    priority: int = 0
    start: int | None = None
    not_before: int = 0
    releasable: bool = True
    excluded: frozenset[int] = frozenset()
    flavor: int = 0  # of running work
    pods: int = 1
    min_pods: int = 0


def request_of(queues: list[Queue], rows: list[Row]) -> pb.PlanRequest:
    flavors = len(queues[0].nominal)

    def quotas(node: Queue) -> list[pb.FlavorQuotas]:
        limits = [
            pb.ResourceQuota(resource=0, nominal=n, borrowing_limit=b, lending_limit=lend)
            for n, b, lend in zip(node.nominal, node.borrowing, node.lending, strict=True)
        ]
        return [pb.FlavorQuotas(flavor=f, resources=[limit]) for f, limit in enumerate(limits)]

    quota = pb.Quota(resources=["gpu"], flavors=[pb.ResourceFlavor(name=f"f{f}") for f in range(flavors)])
    cohorts: list[Queue] = []
    for number, queue in enumerate(queues):
        if queue.parent and queue.parent not in cohorts:
            cohorts.append(queue.parent)
        quota.cluster_queues.add(
            name=f"q{number}",
            cohort=f"c{cohorts.index(queue.parent)}" if queue.parent else "",
            resource_groups=[pb.ResourceGroup(covered_resources=[0], flavors=quotas(queue))],
            queueing_strategy=pb.STRICT_FIFO if queue.strict else pb.BEST_EFFORT_FIFO,
            preemption=queue.preemption,
        )
    for number, cohort in enumerate(cohorts):
        if cohort.parent and cohort.parent not in cohorts:
            cohorts.append(cohort.parent)
        parent = f"c{cohorts.index(cohort.parent)}" if cohort.parent else ""
        quota.cohorts.add(name=f"c{number}", parent=parent, quotas=quotas(cohort))
    for number, cohort in enumerate(cohorts[len(quota.cohorts) :], len(quota.cohorts)):
        quota.cohorts.add(name=f"c{number}", quotas=quotas(cohort))
    request = pb.PlanRequest(schema=1, now_ms=NOW, quota=quota)
    for number, row in enumerate(rows):
        request.shapes.add(
            pod_sets=[
                pb.PodSet(
                    count=row.pods,
                    min_count=row.min_pods,
                    resources=[0],
                    amounts=[row.gpus],
                    excluded_flavors=sorted(row.excluded),
                )
            ]
        )
        request.assignments.add(flavors=[row.flavor], resources=[0], amounts=[row.gpus * row.pods])
        w = request.workloads
        w.id.append(f"w{number}")
        w.cluster_queue.append(row.queue)
        w.shape.append(number)
        w.assignment.append(number)
        w.state.append(row.state)  # type: ignore[arg-type]
        w.duration_ms.append(row.duration)
        w.release_ms.append(NOW + row.release if row.release else 0)
        w.due_ms.append(NOW + row.due if row.due else 0)
        w.created_ms.append(NOW - 1000 + row.created)
        w.priority.append(row.priority)
    return request


def problem_of(queues: list[Queue], rows: list[Row]) -> Problem:
    return decode(request_of(queues, rows))


def plan_of(rows: list[Row]) -> PlanInForce:
    known = sorted((row.start, number) for number, row in enumerate(rows) if row.start is not None)
    placements = {
        f"w{number}": Placement(
            rank, NOW + start, NOW + rows[number].not_before if rows[number].not_before else 0, 0, 0, 0, {}
        )
        for rank, (start, number) in enumerate(known)
    }
    return PlanInForce(NOW, placements, {}, "test", (), 0.0, 0.0)


def due(queues: list[Queue], rows: list[Row], honour: bool = True) -> list[tuple[int, tuple[int, ...]]]:
    request = request_of(queues, rows)
    problem = decode(request)
    releasable = [rows[row].releasable for row in problem.row]
    admission, turn = decode_admission(request, problem), turns(problem, plan_of(rows))
    found = dispatch(problem, admission, turn, releasable, hopeless_heads(problem, request), honour)
    return [(int(problem.row[row]), evicts) for row, evicts in found]


def released(queues: list[Queue], rows: list[Row], honour: bool = True) -> list[int]:
    return [row for row, _ in due(queues, rows, honour)]


# --- the rule, restated naively: Kueue's arithmetic by its recursion, everything else by words ------------------------


class Naive:
    """Use of quota by node and flavor, as Kueue's formulas have it."""

    def __init__(self) -> None:
        self.direct: dict[tuple[int, int], int] = {}
        self.to_come: list[tuple[int, Queue, int, int]] = []

    def subtree(self, node: Queue, f: int) -> int:
        return node.nominal[f] + sum(self.subtree(child, f) - self.local(child, f) for child in node.children)

    def local(self, node: Queue, f: int) -> int:
        lending = node.lending[f]
        return 0 if lending is None else max(0, self.subtree(node, f) - lending)

    def usage(self, node: Queue, f: int) -> int:
        shared = sum(max(0, self.usage(child, f) - self.local(child, f)) for child in node.children)
        return self.direct.get((id(node), f), 0) + shared

    def available(self, node: Queue, f: int) -> int:
        subtree, local, usage = self.subtree(node, f), self.local(node, f), self.usage(node, f)
        if node.parent is None:
            return subtree - usage
        borrowing = node.borrowing[f]
        shared = subtree - local - max(0, usage - local) + (UNLIMITED if borrowing is None else borrowing)
        return max(0, local - usage) + min(self.available(node.parent, f), shared)

    def potential(self, node: Queue, f: int) -> int:
        if node.parent is None:
            return self.subtree(node, f)
        borrowing = node.borrowing[f]
        most = self.subtree(node, f) + (UNLIMITED if borrowing is None else borrowing)
        return min(self.local(node, f) + self.potential(node.parent, f), most)

    def take(self, node: Queue, f: int, gpus: int) -> None:
        self.direct[id(node), f] = self.direct.get((id(node), f), 0) + gpus

    def copy(self) -> Naive:
        other = Naive()
        other.direct = dict(self.direct)
        return other

    def admit(self, queues: list[Queue], rows: list[Row], order: list[int]) -> list[int]:
        """As Kueue would, one after another; those that come away empty-handed."""
        left = []
        for n in order:
            f = self.choose(queues[rows[n].queue], rows[n])
            if f is None:
                left.append(n)
            else:
                self.take(queues[rows[n].queue], f, rows[n].gpus)
        return left

    def flavors(self, node: Queue, row: Row) -> list[int]:
        return [f for f in range(len(node.nominal)) if f not in row.excluded and row.gpus <= self.potential(node, f)]

    def choose(self, node: Queue, row: Row) -> int | None:
        for f in self.flavors(node, row):
            if row.gpus <= max(0, self.available(node, f)):
                return f
        return None

    def room_at(self, node: Queue, f: int, instant: int) -> int:
        """What is expected to be available then."""
        then = self.copy()
        for at, where, flavor, gpus in self.to_come:
            if at <= instant:
                then.take(where, flavor, gpus)
        return max(0, then.available(node, f))

    def first_room(self, node: Queue, f: int, gpus: int, begin: int, length: int) -> int | None:
        """From when on that many are expected to be available for so long."""
        instants = [begin, *sorted(at for at, *_ in self.to_come if at > begin)]
        for start in instants:
            meanwhile = [start, *(at for at in instants if start < at < start + length)]
            if all(gpus <= self.room_at(node, f, at) for at in meanwhile):
                return start
        return None

    def run(self, node: Queue, f: int, gpus: int, length: int) -> None:
        """Take it now, for so long."""
        self.take(node, f, gpus)
        self.to_come.append((length, node, f, -gpus))

    def book(self, node: Queue, row: Row, begin: int) -> None:
        """Keep the first room that a row is expected to get."""
        starts = [(self.first_room(node, f, row.gpus, begin, row.duration), f) for f in self.flavors(node, row)]
        found = [(start, f) for start, f in starts if start is not None]
        if found:
            start, f = min(found, key=lambda each: each[0])
            self.to_come += [(start, node, f, row.gpus), (start + row.duration, node, f, -row.gpus)]


def naive(queues: list[Queue], rows: list[Row]) -> list[int]:
    use = Naive()
    for row in rows:
        if row.state == pb.RUNNING:
            use.run(queues[row.queue], row.flavor, row.gpus, row.duration)

    def wait(row: Row, start: int) -> None:
        use.book(queues[row.queue], row, start)

    plannable = [n for n, row in enumerate(rows) if use.flavors(queues[row.queue], row) and row.state != pb.RUNNING]
    has_room: set[int] = set()

    def place(n: int) -> tuple[int, ...]:
        """In Kueue's order; what can never fit stands first among equals."""
        return -rows[n].priority, rows[n].created, n in plannable, rows[n].state == pb.PENDING, n

    def behind_a_head(n: int) -> bool:
        return any(rows[head].queue == rows[n].queue and place(head) < place(n) for head in heads)

    ungated = [n for n, row in enumerate(rows) if row.state in (pb.IN_FLIGHT, pb.FOREIGN) and not row.release > 0]
    heads = [n for n in ungated if n not in plannable and queues[rows[n].queue].strict]
    held = use.copy()
    by_kueue = sorted(ungated, key=lambda n: (rows[n].state != pb.IN_FLIGHT, -rows[n].priority, rows[n].created))
    for n in by_kueue:
        row = rows[n]
        if n not in plannable:
            continue
        f = None if behind_a_head(n) else use.choose(queues[row.queue], row)
        if f is not None:
            use.run(queues[row.queue], f, row.gpus, row.duration)
            has_room.add(n)
            if row.state == pb.FOREIGN:
                held.take(queues[row.queue], f, row.gpus)
            continue
        if queues[row.queue].strict:
            heads.append(n)
        if row.state == pb.IN_FLIGHT:
            wait(row, max(0, row.start or 0))

    def turn(n: int) -> tuple[Any, ...]:
        row = rows[n]
        if row.start is not None:
            return (0, row.start, n)
        return (1, row.due or float("inf"), row.created, n)

    result: list[int] = []
    chosen: dict[int, int] = {}
    for n in sorted(plannable, key=turn):
        row = rows[n]
        planned = max(0, row.start or 0)
        if row.state == pb.FOREIGN and n not in has_room:
            wait(row, max(planned, row.release))
        if row.state != pb.PENDING or not row.releasable or behind_a_head(n):
            continue
        f = use.choose(queues[row.queue], row) if max(row.release, row.not_before) <= 0 else None
        if f is not None and use.first_room(queues[row.queue], f, row.gpus, 0, row.duration) == 0:
            use.run(queues[row.queue], f, row.gpus, row.duration)
            result.append(n)
            chosen[n] = f
            continue
        wait(row, max(planned, row.release, row.not_before))

    def root(n: int) -> Queue:
        node = queues[rows[n].queue]
        while node.parent:
            node = node.parent
        return node

    coming = [n for n in has_room if rows[n].state == pb.IN_FLIGHT]
    orders = [sorted(coming + result, key=place), sorted(result, key=place) + sorted(coming, key=place)]
    empty = {id(root(n)) for order in orders for n in held.copy().admit(queues, rows, order)}
    return [n for n in result if id(root(n)) not in empty or held.choose(queues[rows[n].queue], rows[n]) == chosen[n]]


@st.composite
def cases(draw: Any) -> tuple[list[Queue], list[Row]]:
    flavors = draw(st.integers(1, 2))
    small = st.integers(0, 6)

    def node(parent: Queue | None) -> Queue:
        limit = st.none() | small if parent else st.none()
        nominal = [draw(small) for _ in range(flavors)]
        made = Queue(nominal, [draw(limit) for _ in range(flavors)], [draw(limit) for _ in range(flavors)])
        made.lending = [None if lend is None else min(lend, n) for lend, n in zip(made.lending, nominal, strict=True)]
        made.parent = parent
        if parent:
            parent.children.append(made)
        return made

    root = node(None)
    middle = node(root)
    queues = [node([None, root, middle][draw(st.integers(0, 2))]) for _ in range(draw(st.integers(1, 4)))]
    if not any(queue.parent is middle for queue in queues):
        root.children.remove(middle)  # nothing in the request would name it
    for queue in queues:
        queue.strict = draw(st.booleans())
    rows = []
    for _ in range(draw(st.integers(1, 12))):
        state = draw(st.sampled_from([pb.PENDING] * 5 + [pb.IN_FLIGHT, pb.RUNNING, pb.FOREIGN]))
        when = st.sampled_from([0, 0, 0, 50, 200])
        start = draw(st.none() | st.sampled_from([-100, 0, 50, 100, 300]))
        rows.append(
            Row(
                queue=draw(st.integers(0, len(queues) - 1)),
                gpus=draw(st.integers(1, 4)),
                state=state,
                duration=draw(st.sampled_from([10, 50, 100, 300])),
                release=draw(when) if state in (pb.PENDING, pb.FOREIGN) else 0,
                due=draw(st.sampled_from([0, 100, 200, 300])),
                created=draw(st.integers(0, 5)),
                priority=draw(st.integers(0, 1)),
                start=start,
                not_before=draw(when) if start is not None else 0,
                releasable=draw(st.integers(0, 5)) > 0,
                excluded=frozenset(draw(st.sets(st.integers(0, flavors - 1), max_size=flavors - 1))),
                flavor=draw(st.integers(0, flavors - 1)),
            )
        )
    return queues, rows


@settings(max_examples=120, deadline=None)
@given(cases())
def test_the_rule(case: tuple[list[Queue], list[Row]]) -> None:
    """Releases are those of the rule restated naively, in the same order."""
    assert released(*case) == naive(*case)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_order_in_which_kueue_comes_to_them_matters_to_nobody(case: tuple[list[Queue], list[Row]]) -> None:
    """Whatever order Kueue looks in: all that is released finds its quota, though each may have another flavor."""
    queues, rows = case
    rows = [row for row in rows if row.state in (pb.PENDING, pb.RUNNING)]
    use = Naive()
    for row in rows:
        if row.state == pb.RUNNING:
            use.take(queues[row.queue], row.flavor, row.gpus)
    mine = released(queues, rows) if rows else []
    for order in (mine, sorted(mine, key=lambda n: (-rows[n].priority, rows[n].created, n))):
        assert not use.copy().admit(queues, rows, order)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_never_more_than_quota(case: tuple[list[Queue], list[Row]]) -> None:
    """Whatever the plan says: all that is released fits beside all that runs or may start, admitted in any order."""
    queues, rows = case
    use = Naive()
    for row in rows:
        if row.state == pb.RUNNING:
            use.take(queues[row.queue], row.flavor, row.gpus)
    mine = released(queues, rows)
    assert all(rows[n].state == pb.PENDING and rows[n].releasable for n in mine)
    assert all(max(rows[n].release, rows[n].not_before) <= 0 for n in mine)
    for n in mine:
        f = use.choose(queues[rows[n].queue], rows[n])
        assert f is not None
        use.take(queues[rows[n].queue], f, rows[n].gpus)


# --- examples -------------------------------------------------------------------------------------------------------


def pool(gpus: int, **more: Any) -> list[Queue]:
    return [Queue([gpus], [None], [None], **more)]


def test_plan_order_not_age() -> None:
    """Two of four jobs fit: those that the plan has first, whatever their age."""
    rows = [Row(0, 2, pb.PENDING, start=start) for start in (100, 100, 0, 0)]
    assert released(pool(4), rows) == [2, 3]


def test_newcomers_last_by_due_date() -> None:
    """Work the plan does not know stands behind it, by due date; best effort last."""
    rows = [Row(0, 1, pb.PENDING), Row(0, 1, pb.PENDING, due=200), Row(0, 1, pb.PENDING, due=100)]
    rows.append(Row(0, 1, pb.PENDING, start=0))
    assert released(pool(4), rows) == [3, 2, 1, 0]
    assert released(pool(2), rows) == [3, 2]


def test_overtaking() -> None:
    """A large job waits for all four GPUs: only what ends before its planned start may use the two that are free."""
    running, large = Row(0, 2, pb.RUNNING, duration=100), Row(0, 4, pb.PENDING, start=100)
    short, long = Row(0, 1, pb.PENDING, duration=100, start=200), Row(0, 1, pb.PENDING, duration=101, start=200)
    assert released(pool(4), [running, large, long, short]) == [3]


def test_overtaking_beside() -> None:
    """What leaves the one that waits the room it is going to get may overtake it, however long it is."""
    running, large = Row(0, 2, pb.RUNNING, duration=100), Row(0, 3, pb.PENDING, start=100)
    long = Row(0, 1, pb.PENDING, duration=900, start=1000)
    assert released(pool(4), [running, large, long, long]) == [2]


def test_stale_plan() -> None:
    """Work whose planned start has passed waits until room is expected: what ends by then may overtake it."""
    late = [Row(0, 2, pb.RUNNING, duration=100), Row(0, 4, pb.PENDING, start=-50)]
    assert released(pool(4), [*late, Row(0, 1, pb.PENDING, duration=100, start=200)]) == [2]
    assert released(pool(4), [*late, Row(0, 1, pb.PENDING, duration=101, start=200)]) == []


def test_many_wait() -> None:
    """Only the first that wait book room; what others wait for may be used until their planned start."""
    running, waiting = Row(0, 99, pb.RUNNING, duration=100), [Row(0, 2, pb.PENDING, start=100)] * (BOOKINGS + 1)
    long, short = (Row(0, 1, pb.PENDING, duration=duration, start=200) for duration in (101, 100))
    assert released(pool(100), [running, *waiting[1:], long]) == [BOOKINGS + 1]
    assert released(pool(100), [running, *waiting, long]) == []
    assert released(pool(100), [running, *waiting, short]) == [BOOKINGS + 2]


def test_early_room_is_used() -> None:
    """Room that is there earlier than planned is used at once, in the plan's order."""
    rows = [Row(0, 2, pb.PENDING, start=500), Row(0, 2, pb.PENDING, start=600), Row(0, 1, pb.PENDING, start=700)]
    assert released(pool(4), rows) == [0, 1]


def test_not_before() -> None:
    """A not-before time or release date to come holds work back, and long work further down behind it too."""
    held = [Row(0, 4, pb.PENDING, start=100, not_before=100), Row(0, 4, pb.PENDING, start=100, release=100)]
    for row in held:
        assert released(pool(4), [row, Row(0, 1, pb.PENDING, duration=200, start=300)]) == []
        assert released(pool(4), [row, Row(0, 1, pb.PENDING, duration=100, start=300)]) == [1]


def test_separate_quota_is_no_competition() -> None:
    """Work of another queue that takes only its private quota, or of another tree, overtakes nobody."""
    root = Queue([0], [None], [None])
    a, b = Queue([2], [None], [0], parent=root), Queue([2], [None], [0], parent=root)
    root.children += [a, b]
    waiting = [Row(0, 2, pb.RUNNING), Row(0, 2, pb.PENDING, start=50)]
    assert released([a, b], [*waiting, Row(1, 2, pb.PENDING, duration=900, start=90)]) == [2]
    lone = Queue([2], [None], [None])
    assert released([a, lone], [*waiting, Row(1, 2, pb.PENDING, duration=900, start=90)]) == [2]


def test_in_flight_holds_its_request() -> None:
    """Room for work in flight is not given away, and it waits for more before anybody planned."""
    pending = Row(0, 2, pb.PENDING, duration=101, start=0)
    assert released(pool(4), [Row(0, 3, pb.IN_FLIGHT), pending]) == []
    assert released(pool(4), [Row(0, 2, pb.RUNNING), Row(0, 3, pb.IN_FLIGHT, start=60), pending]) == []


def test_foreign_work_keeps_its_turn() -> None:
    """Ungated work that fits now takes its room first, by priority, then age; what does not fit takes none."""
    rows = [Row(0, 3, pb.FOREIGN, created=0), Row(0, 4, pb.FOREIGN, created=1), Row(0, 1, pb.PENDING, start=0)]
    assert released(pool(4), rows) == [2]
    rows[1].priority = 1
    assert released(pool(4), rows) == []


def test_foreign_work_with_room_holds_nobody_up() -> None:
    """Ungated work that takes its room at once is no reason for others to wait; that does not fit, it is."""
    fits = [Row(0, 2, pb.FOREIGN, start=0), Row(0, 2, pb.PENDING, start=50)]
    assert released(pool(4), fits) == [1]
    blocked = [Row(0, 2, pb.RUNNING), Row(0, 3, pb.FOREIGN, start=90), Row(0, 2, pb.PENDING, duration=101, start=95)]
    assert released(pool(4), blocked) == []


def test_strict_fifo() -> None:
    """Nothing is released behind the blocked ungated head of a StrictFIFO queue; other queues go on."""
    queues = pool(4, strict=True) + pool(4)
    rows = [
        Row(0, 2, pb.RUNNING),
        Row(0, 4, pb.FOREIGN),
        Row(0, 1, pb.PENDING, start=0),
        Row(1, 1, pb.PENDING, start=0),
    ]
    assert released(queues, rows) == [3]


def test_strict_fifo_by_priority() -> None:
    """A blocked head holds up what stands behind it in Kueue's order, and nothing that Kueue would put before it."""
    head = Row(0, 4, pb.FOREIGN, start=500, created=5)
    running = Row(0, 2, pb.RUNNING)
    for other, expected in (
        (Row(0, 1, pb.PENDING, start=0, created=6), []),
        (Row(0, 1, pb.PENDING, start=0, created=5), []),
        (Row(0, 1, pb.PENDING, start=0, created=4), [2]),
        (Row(0, 1, pb.PENDING, start=0, created=6, priority=1), [2]),
        (Row(0, 1, pb.PENDING, start=0, created=4, priority=-1), []),
    ):
        assert released(pool(4, strict=True), [running, head, other]) == expected


@pytest.mark.parametrize("state", [pb.FOREIGN, pb.IN_FLIGHT])
def test_strict_fifo_for_ever(state: int) -> None:
    """A head that can never fit blocks a StrictFIFO queue as well, and no other."""
    rows = [Row(0, 9, state), Row(0, 1, pb.PENDING, start=0, created=1), Row(0, 1, pb.PENDING, start=0, priority=1)]
    assert released(pool(4, strict=True), rows) == [2]
    assert released(pool(4), rows) == [1, 2]
    rows[0].release = 50 if state == pb.FOREIGN else 0
    assert released(pool(4, strict=True), rows) == ([1, 2] if state == pb.FOREIGN else [2])


def test_held_by_others() -> None:
    """Work that somebody else gates too is passed over, and holds nobody up."""
    rows = [Row(0, 4, pb.PENDING, start=0, releasable=False), Row(0, 4, pb.PENDING, start=100)]
    assert released(pool(4), rows) == [1]


def test_second_flavor() -> None:
    """The first flavor that fits is taken, and counts for the next in line."""
    rows = [Row(0, 2, pb.PENDING, start=0), Row(0, 2, pb.PENDING, start=0), Row(0, 2, pb.PENDING, start=0)]
    assert released([Queue([2, 2], [None] * 2, [None] * 2)], rows) == [0, 1]
    rows[0].excluded = frozenset({0})
    assert released([Queue([2, 2], [None] * 2, [None] * 2)], rows) == [0, 1]


def test_nothing_to_do() -> None:
    """An empty problem is no problem."""
    assert released(pool(4), []) == []


def test_turns() -> None:
    """Turns count instants from the problem's now, though the plan is older."""
    rows = [Row(0, 1, pb.PENDING, start=-7), Row(0, 1, pb.PENDING), Row(0, 1, pb.PENDING, start=9, not_before=5)]
    problem = problem_of(pool(4), rows)
    turn = turns(problem, plan_of(rows))
    assert isinstance(turn, Turns)
    assert (turn.order.tolist(), turn.start.tolist()) == ([0, 2, 1], [0, -1, 9])
    assert turn.not_before.tolist() == [0, 0, 5]
    assert np.array_equal(turns(problem, None).start, [-1, -1, -1])


@pytest.mark.long
@pytest.mark.timeout(1800)
@settings(max_examples=10_000, deadline=None)
@given(cases())
def test_the_rule_many_times(case: tuple[list[Queue], list[Row]]) -> None:
    """The same as :func:`test_the_rule`, far more often."""
    assert released(*case) == naive(*case)


# --- whom Kueue would evict -------------------------------------------------------------------------------------------

RECLAIMS = pb.Preemption(reclaim_within_cohort=pb.PREEMPTION_ANY)


def lent(**more: Any) -> tuple[list[Queue], list[Row]]:
    """An owner of four GPUs has lent them, two each, to a queue without any; and has work of its own that waits."""
    cohort = Queue([0], [None], [None])
    owner, borrower = (Queue([gpus], [None], [None], parent=cohort) for gpus in (4, 0))
    cohort.children = [owner, borrower]
    owner.preemption = RECLAIMS
    rows = [Row(1, 2, pb.RUNNING, created=0), Row(1, 2, pb.RUNNING, created=1), Row(0, 2, pb.PENDING, **more)]
    return [owner, borrower], rows


def test_a_queue_gets_its_quota_back() -> None:
    """Work that would be late, or has no due date, is released into quota that its queue has lent."""
    assert due(*lent()) == [(2, (0,))]
    assert due(*lent(start=100, due=150)) == [(2, (0,))]


def test_nobody_is_evicted_without_need() -> None:
    """Work that is on time with its planned start waits for that."""
    assert due(*lent(start=100, due=200)) == []


def test_a_policy_may_prefer_to_wait() -> None:
    """With preemption: wait nobody is ever released into quota that others hold."""
    assert released(*lent(), honour=False) == released(*lent(start=100, due=150), honour=False) == []


def test_nobody_is_evicted_twice() -> None:
    """Each release that needs an eviction has victims of its own, and there is no third where two were."""
    queues, rows = lent()
    assert due(queues, [*rows, Row(0, 2, pb.PENDING, created=1), Row(0, 2, pb.PENDING, created=2)]) == [
        (2, (0,)),
        (3, (1,)),
    ]


def test_what_kueue_evicts_for_others_is_not_there_for_us() -> None:
    """Work in flight takes its victims' quota; ours gets what is left of it."""
    queues, rows = lent()
    rows[2].state = pb.FOREIGN
    assert due(queues, [*rows, Row(0, 2, pb.PENDING, created=1)]) == [(3, (1,))]
    assert due(queues, [*rows, Row(0, 4, pb.PENDING, created=1)]) == []


def test_a_queue_without_the_right_evicts_nobody() -> None:
    """Without reclaimWithinCohort the owner waits for what it has lent."""
    queues, rows = lent()
    queues[0].preemption = pb.Preemption()
    assert due(queues, rows) == []


# --- fewer pods -------------------------------------------------------------------------------------------------------


def test_fewer_pods_if_that_is_no_later() -> None:
    """A start with half the pods takes twice as long: it is made when it ends no later than the planned one."""
    running = Row(0, 2, pb.RUNNING)
    assert released(pool(4), [running, Row(0, 1, pb.PENDING, pods=4, min_pods=1, start=99)]) == []
    assert released(pool(4), [running, Row(0, 1, pb.PENDING, pods=4, min_pods=1, start=100)]) == [1]
    assert released(pool(4), [running, Row(0, 1, pb.PENDING, pods=4, min_pods=3, start=100)]) == []


def test_work_that_can_only_have_fewer_pods_is_as_long_as_planned() -> None:
    """A plan counts on the most pods that can ever be there: with so many a start is none too late."""
    assert released(pool(4), [Row(0, 1, pb.PENDING, pods=6, min_pods=2, start=0)]) == [0]
    running = Row(0, 2, pb.RUNNING)
    assert released(pool(4), [running, Row(0, 1, pb.PENDING, pods=6, min_pods=2, start=50)]) == []
    assert released(pool(4), [running, Row(0, 1, pb.PENDING, pods=6, min_pods=2, start=100)]) == [1]


def test_fewer_pods_without_a_plan() -> None:
    """Work that no plan knows starts with the pods there is room for, and what it takes is not there for others."""
    running, other = Row(0, 3, pb.RUNNING), Row(0, 1, pb.PENDING, created=1)
    assert released(pool(7), [running, Row(0, 1, pb.PENDING, pods=6, min_pods=1), other]) == [1]
    assert released(pool(8), [running, Row(0, 2, pb.PENDING, pods=4, min_pods=1), other]) == [1, 2]


# --- what Kueue tries for ever ----------------------------------------------------------------------------------------


def test_nothing_is_released_behind_what_never_ends() -> None:
    """Kueue goes on and on with a workload whose attempts get out of step, and looks at nothing behind it."""
    queues = [Queue([16, 16], [None, None], [None, None])]
    running = [Row(0, 12, pb.RUNNING, flavor=flavor) for flavor in (0, 1)]
    rows = [*running, Row(0, 1, pb.FOREIGN), Row(0, 1, pb.PENDING, created=1), Row(0, 1, pb.PENDING, created=-1)]
    request = request_of(queues, rows)
    del request.shapes[2].pod_sets[:]
    request.shapes[2].pod_sets.extend(pb.PodSet(count=n, resources=[0], amounts=[1]) for n in (3, 3, 9))
    problem = decode(request)
    found = dispatch(problem, decode_admission(request, problem), turns(problem, None), [True] * 3)
    assert [int(problem.row[row]) for row, _ in found] == [4]


def two_kinds() -> list[Queue]:
    """One GPU of each of two kinds."""
    return [Queue([1, 1], [None, None], [None, None])]


def test_who_could_take_anothers_flavor_comes_later() -> None:
    """Older work that may have either kind of GPU is released when what needs the first kind has it: else it would
    take that, and the other one, which is due, would wait for its end."""
    first_only = Row(0, 1, pb.PENDING, created=10, start=0, due=200, excluded=frozenset({1}))
    either = Row(0, 1, pb.PENDING, created=0, start=0, duration=10_000)
    assert released(two_kinds(), [first_only, either]) == [0]
    first_only.state = pb.IN_FLIGHT
    assert released(two_kinds(), [first_only, either]) == []
    first_only.state = pb.RUNNING
    assert released(two_kinds(), [first_only, either]) == [1]


def test_who_could_take_anothers_pods_comes_later() -> None:
    """What would start with fewer pods because another one goes first is released when that has its quota."""
    whole = Row(0, 4, pb.PENDING, created=10, start=0, due=200)
    cut = Row(0, 1, pb.PENDING, created=0, pods=6, min_pods=2)
    assert released(pool(8), [whole, cut]) == [0]
    whole.state = pb.RUNNING
    assert released(pool(8), [whole, cut]) == [1]


def test_work_of_one_kind_is_released_together() -> None:
    """Where any of them may have any flavor, it does not matter who comes first; nor in another tree."""
    either = [Row(0, 1, pb.PENDING, created=k) for k in range(2)]
    assert released(two_kinds(), either) == [0, 1]
    other = Row(1, 1, pb.PENDING, excluded=frozenset({1}))
    assert released([*two_kinds(), *two_kinds()], [other, *either]) == [0, 1, 2]


def test_a_flavor_that_begins_late_is_held_longer() -> None:
    """Work in a flavor whose nodes come late holds its quota until then and for its run time: it does not pass who is
    planned to start before that."""
    queues = [Queue([2, 4], [None, None], [None, None])]
    rows = [
        Row(0, 2, pb.RUNNING, duration=300, flavor=0),
        Row(0, 2, pb.RUNNING, duration=300, flavor=1),
        Row(0, 4, pb.PENDING, start=300, excluded=frozenset({0})),
        Row(0, 1, pb.PENDING, start=400, duration=250),
    ]
    request = request_of(queues, rows)
    for lead, expected in ((0, [1]), (100, [])):
        request.quota.flavors[1].lead_ms = lead
        problem = decode(request)
        found = dispatch(problem, decode_admission(request, problem), turns(problem, plan_of(rows)), [True] * 2)
        assert [row for row, _ in found] == expected
