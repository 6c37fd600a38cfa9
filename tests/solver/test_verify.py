"""The verifier against a simulation of Kueue that recomputes everything at each instant, and against broken plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from solver.api import planner_pb2 as pb
from solver.verify import REPORTED, verify

NOW = 1_790_000_000_000
Cell = tuple[int, int]


def relaxed(examples: int) -> settings:
    """So many examples, however busy the machine is."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Kueue:
    """Kueue's quota formulas word for word, for one instant: dictionaries, recursion, no sharing of results."""

    def __init__(self, quota: pb.Quota) -> None:
        self.parent: dict[str, str] = {}
        self.quota: dict[tuple[str, int, int], pb.ResourceQuota] = {}
        for cohort in quota.cohorts:
            self._node(f"c/{cohort.name}", cohort.parent, cohort.quotas)
        for queue in quota.cluster_queues:
            self._node(f"q/{queue.name}", queue.cohort, [f for g in queue.resource_groups for f in g.flavors])

    def _node(self, name: str, parent: str, quotas: list[pb.FlavorQuotas]) -> None:
        self.parent[name] = f"c/{parent}" if parent else ""
        if parent:
            self.parent.setdefault(f"c/{parent}", "")
        for flavor in quotas:
            for amount in flavor.resources:
                self.quota[name, flavor.flavor, amount.resource] = amount

    def children(self, node: str) -> Iterator[str]:
        return (child for child, parent in self.parent.items() if parent == node)

    def subtree(self, node: str, cell: Cell) -> int:
        own = self.quota.get((node, *cell), pb.ResourceQuota()).nominal
        return own + sum(self.subtree(c, cell) - self.local(c, cell) for c in self.children(node))

    def local(self, node: str, cell: Cell) -> int:
        amount = self.quota.get((node, *cell), pb.ResourceQuota())
        return max(0, self.subtree(node, cell) - amount.lending_limit) if amount.HasField("lending_limit") else 0

    def usage(self, node: str, cell: Cell, held: dict[tuple[str, Cell], int]) -> int:
        above = (max(0, self.usage(c, cell, held) - self.local(c, cell)) for c in self.children(node))
        return held.get((node, cell), 0) + sum(above)

    def available(self, node: str, cell: Cell, held: dict[tuple[str, Cell], int]) -> int:
        subtree, usage = self.subtree(node, cell), self.usage(node, cell, held)
        if not self.parent[node]:
            return subtree - usage
        local = self.local(node, cell)
        amount = self.quota.get((node, *cell), pb.ResourceQuota())
        shared = self.available(self.parent[node], cell, held)
        if amount.HasField("borrowing_limit"):
            shared = min(shared, subtree - local - max(0, usage - local) + amount.borrowing_limit)
        return max(0, local - usage) + shared


@dataclass
class Held:
    """Something that takes quota for a while; ``row`` is −1 for reservations, −2 for running work."""

    row: int
    node: str
    cells: dict[Cell, int]
    start: int
    end: int


@dataclass
class Case:
    """A request, small enough to look at each instant, and helpers to make plans for it."""

    request: pb.PlanRequest
    kueue: Kueue = field(init=False)
    fixed: list[Held] = field(init=False)

    def __post_init__(self) -> None:
        self.kueue = Kueue(self.request.quota)
        work = self.request.workloads
        self.fixed = [
            Held(-2, self.node(row), totals(self.request.assignments[work.assignment[row]]), 0, work.duration_ms[row])
            for row, state in enumerate(work.state)
            if state == pb.RUNNING
        ]
        for r in self.request.reservations:
            node = f"q/{r.node}" if f"q/{r.node}" in self.kueue.parent else f"c/{r.node}"
            start, end = max(0, r.start_ms - NOW), r.end_ms - NOW
            if start < end:
                self.fixed.append(Held(-1, node, {(r.flavor, r.resource): r.amount}, start, end))

    def node(self, row: int) -> str:
        return f"q/{self.request.quota.cluster_queues[self.request.workloads.cluster_queue[row]].name}"

    def rows(self) -> list[int]:
        return [row for row, state in enumerate(self.request.workloads.state) if state != pb.RUNNING]

    def options(self, row: int) -> list[dict[Cell, int]]:
        """Every assignment that the row's queue may give it."""
        queue = self.request.quota.cluster_queues[self.request.workloads.cluster_queue[row]]
        parts: list[list[dict[Cell, int]]] = []
        for pod_set in self.request.shapes[self.request.workloads.shape[row]].pod_sets:
            asked = {r: a * pod_set.count for r, a in zip(pod_set.resources, pod_set.amounts, strict=True) if a}
            for group in queue.resource_groups:
                mine = {r: asked.pop(r) for r in list(asked) if r in group.covered_resources}
                offers = [f.flavor for f in group.flavors if f.flavor not in pod_set.excluded_flavors]
                if mine:
                    parts.append([{(f, r): a for r, a in mine.items()} for f in offers])
            if asked:
                return []
        return [added(*choice) for choice in product(*parts)]

    def held(self, row: int, start: int, cells: dict[Cell, int]) -> Held:
        return Held(row, self.node(row), cells, start, start + self.request.workloads.duration_ms[row])

    def short(self, planned: list[Held]) -> set[int]:
        """Rows that start without quota, instant by instant; −1 when a reservation is left without room."""
        wrong = set()
        for one in [*planned, *(h for h in self.fixed if h.row == -1)]:
            left = self._left(one, [*self.fixed, *planned])
            alone = self._left(one, self.fixed) if one.row == -1 else [0] * len(left)
            if any(a < min(0, b) for a, b in zip(left, alone, strict=True)):
                wrong.add(one.row)
        return wrong

    def _left(self, one: Held, everything: list[Held]) -> list[int]:
        held: dict[tuple[str, Cell], int] = {}
        for other in everything:
            if other.start <= one.start < other.end:
                for cell, amount in other.cells.items():
                    held[other.node, cell] = held.get((other.node, cell), 0) + amount
        return [self.kueue.available(one.node, cell, held) for cell, amount in one.cells.items() if amount]

    def schedule(self) -> list[Held]:
        """One row after another as early as it can start. Rows that cannot be held at all are left out."""
        planned: list[Held] = []
        for row in self.rows():
            options = [o for o in self.options(row) if self._fits_alone(row, o)]
            start = 0 if self.request.workloads.state[row] == pb.IN_FLIGHT else self.release(row)
            while options:
                found = (self.held(row, start, o) for o in options)
                if one := next((h for h in found if not self.short([*planned, h])), None):
                    planned.append(one)
                    break
                start += 1
        return planned

    def _fits_alone(self, row: int, cells: dict[Cell, int]) -> bool:
        return all(self.kueue.available(self.node(row), c, {}) >= a for c, a in cells.items())

    def release(self, row: int) -> int:
        release = self.request.workloads.release_ms[row]
        return max(0, release - NOW) if release else 0

    def plan(self, planned: list[Held]) -> pb.Plan:
        plan = pb.Plan()
        for k, one in enumerate(planned):
            due = self.request.workloads.due_ms[one.row]
            plan.workload.append(one.row)
            plan.start_ms.append(NOW + one.start)
            plan.not_before_ms.append(0)
            plan.finish_ms.append(NOW + one.end)
            plan.assignment.append(k)
            plan.tardiness_ms.append(max(0, NOW + one.end - due) if due else 0)
            plan.reason.append(pb.WAITS_FOR_QUOTA)
            plan.assignments.append(assignment(one.cells))
        return plan


def totals(assignment: pb.Assignment) -> dict[Cell, int]:
    columns = zip(assignment.flavors, assignment.resources, assignment.amounts, strict=True)
    return added(*({(f, r): a} for f, r, a in columns))


def added(*parts: dict[Cell, int]) -> dict[Cell, int]:
    result: dict[Cell, int] = {}
    for part in parts:
        for cell, amount in part.items():
            result[cell] = result.get(cell, 0) + amount
    return result


def assignment(cells: dict[Cell, int]) -> pb.Assignment:
    return pb.Assignment(flavors=[f for f, _ in cells], resources=[r for _, r in cells], amounts=list(cells.values()))


# Random small cases ---------------------------------------------------------------------------------------------------

small = st.integers(0, 4)
time = st.integers(0, 8)


def limit() -> st.SearchStrategy[int | None]:
    return st.none() | small


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Up to 2 resources, 3 flavors, a chain or tree of cohorts, 3 queues, 5 rows, running work and reservations."""
    resources, flavors = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    request = pb.PlanRequest(schema=1, now_ms=NOW)
    quota = request.quota
    quota.resources.extend(["gpu", "cpu"][:resources])
    for name in "abc"[:flavors]:
        quota.flavors.add(name=name)

    def quotas(flavor: int, covered: list[int], limited: bool) -> pb.FlavorQuotas:
        result = pb.FlavorQuotas(flavor=flavor)
        for r in covered:
            amount = result.resources.add(resource=r, nominal=draw(small))
            borrow, lend = (draw(limit()), draw(limit())) if limited else (None, None)
            if borrow is not None:
                amount.borrowing_limit = borrow
            if lend is not None:
                amount.lending_limit = lend
        return result

    cohorts = draw(st.integers(0, 3))
    for k in range(cohorts):
        parent = "" if k == 0 else f"x{draw(st.integers(0, k - 1))}"
        cohort = quota.cohorts.add(name=f"x{k}", parent=parent)
        if draw(st.booleans()):
            for flavor in range(flavors):
                cohort.quotas.append(quotas(flavor, list(range(resources)), bool(parent)))
    # A flavor may be in one group of a queue only, so two groups need two flavors.
    apart = resources == 2 and flavors >= 2 and draw(st.booleans())
    groups = [([0], [0]), ([1], list(range(1, flavors)))] if apart else [(list(range(resources)), list(range(flavors)))]
    for k in range(draw(st.integers(1, 3))):
        parent = f"x{draw(st.integers(0, cohorts - 1))}" if cohorts and draw(st.booleans()) else ""
        queue = quota.cluster_queues.add(name=f"x{k}" if k else "q0", cohort=parent)
        for covered, offered in groups:
            group = queue.resource_groups.add(covered_resources=covered)
            for flavor in draw(st.lists(st.sampled_from(offered), min_size=1, unique=True)):
                group.flavors.append(quotas(flavor, covered, bool(parent)))
    queues = len(quota.cluster_queues)
    for _ in range(draw(st.integers(1, 2))):
        shape = request.shapes.add()
        for _ in range(draw(st.integers(1, 2))):
            pod_set = shape.pod_sets.add(count=draw(st.integers(1, 2)), resources=range(resources))
            pod_set.amounts.extend(draw(st.integers(0, 2)) for _ in range(resources))
            pod_set.excluded_flavors.extend(draw(st.lists(st.integers(0, flavors - 1), max_size=1)))
    cells = st.dictionaries(
        st.tuples(st.integers(0, flavors - 1), st.integers(0, resources - 1)), st.integers(0, 8), min_size=1, max_size=2
    )
    for _ in range(2):
        request.assignments.append(assignment(draw(cells)))
    work = request.workloads
    for k in range(draw(st.integers(1, 6))):
        work.id.append(f"w{k}")
        work.cluster_queue.append(draw(st.integers(0, queues - 1)))
        work.shape.append(draw(st.integers(0, len(request.shapes) - 1)))
        work.state.append(draw(st.sampled_from([pb.PENDING, pb.PENDING, pb.IN_FLIGHT, pb.RUNNING, pb.FOREIGN])))
        work.release_ms.append(draw(st.just(0) | time.map(lambda t: NOW - 2 + t)))
        work.duration_ms.append(draw(st.integers(1, 6)))
        work.due_ms.append(draw(st.just(0) | time.map(lambda t: NOW - 2 + 2 * t)))
        work.hard.append(draw(st.booleans()))
        work.weight.append(draw(st.sampled_from([0.0, 1.0, 2.5])))
        work.assignment.append(draw(st.integers(0, 1)))
    nodes = [*(c.name for c in quota.cohorts), *(q.name for q in quota.cluster_queues)]
    for _ in range(draw(st.integers(0, 2))):
        start = draw(time)
        request.reservations.add(
            node=draw(st.sampled_from(nodes)),
            flavor=draw(st.integers(0, flavors - 1)),
            resource=draw(st.integers(0, resources - 1)),
            amount=draw(st.integers(1, 4)),
            start_ms=NOW + start - 2,
            end_ms=NOW + start + draw(st.integers(0, 5)),
        )
    return Case(request)


@relaxed(60)
@given(cases())
def test_sound_plans_pass(case: Case) -> None:
    """A plan made by asking Kueue's own formulas at every instant has no violations."""
    assert verify(case.request, case.plan(case.schedule())) == []


@relaxed(200)
@given(cases(), st.data())
def test_agrees_with_a_simulation_of_every_instant(case: Case, data: st.DataObject) -> None:
    """With arbitrary starts, exactly those workloads are said to lack quota that do in a simulation of each instant."""
    planned = []
    for row in case.rows():
        if options := case.options(row):
            early = 0 if case.request.workloads.state[row] == pb.IN_FLIGHT else case.release(row)
            planned.append(case.held(row, early + data.draw(time), data.draw(st.sampled_from(options))))
    violations = verify(case.request, case.plan(planned))
    rows = {v.workload for v in violations if "starts without quota" in v.message}
    reservations = {-1 for v in violations if "no room for the reservation" in v.message}
    assert rows | reservations == case.short(planned)
    told = [v for v in violations if "without quota" in v.message or "reservation" in v.message]
    missing = [v for v in violations if "not in the plan" in v.message]
    assert len(told) + len(missing) == len(violations)


@relaxed(50)
@given(cases(), st.data())
def test_no_start_can_be_moved_earlier(case: Case, data: st.DataObject) -> None:
    """A start that is moved ahead of the first instant with room, or of the release date, is found."""
    planned = case.schedule()
    assume(planned)
    k = data.draw(st.integers(0, len(planned) - 1))
    earlier = data.draw(st.integers(1, planned[k].start + 1))
    moved = [*planned[:k], case.held(planned[k].row, planned[k].start - earlier, planned[k].cells), *planned[k + 1 :]]
    assert verify(case.request, case.plan(moved))


@relaxed(60)
@given(cases(), st.data())
def test_one_more_than_is_available_is_too_much(case: Case, data: st.DataObject) -> None:
    """What Kueue says is available may be taken; one more may not, and the message names workload and node."""
    queue = data.draw(st.integers(0, len(case.request.quota.cluster_queues) - 1))
    group = case.request.quota.cluster_queues[queue].resource_groups[0]
    cell = group.flavors[0].flavor, group.covered_resources[0]
    node = f"q/{case.request.quota.cluster_queues[queue].name}"
    held: dict[tuple[str, Cell], int] = {}
    for one in case.fixed:
        if one.start == 0:
            for c, amount in one.cells.items():
                held[one.node, c] = held.get((one.node, c), 0) + amount
    left = case.kueue.available(node, cell, held)
    for more in (0, 1):
        request = pb.PlanRequest.FromString(case.request.SerializeToString())
        pod_set = pb.PodSet(count=1, resources=[cell[1]], amounts=[max(0, left) + more])
        request.shapes.add().pod_sets.append(pod_set)
        request.workloads.MergeFrom(
            pb.Workloads(
                id=["extra"],
                cluster_queue=[queue],
                shape=[len(request.shapes) - 1],
                state=[pb.PENDING],
                release_ms=[0],
                duration_ms=[1],
                due_ms=[0],
                hard=[False],
                weight=[1],
                assignment=[0],
            )
        )
        extra = Case(request)
        row = len(request.workloads.id) - 1
        cells = {cell: max(0, left) + more}
        violations = [v for v in verify(request, extra.plan([extra.held(row, 0, cells)])) if v.workload == row]
        assert len(violations) == more
        if more:
            assert violations[0].at_ms == NOW
            assert violations[0].message.startswith("workload 'extra': starts without quota: ")
            assert request.quota.resources[cell[1]] in violations[0].message


def _drop(plan: pb.Plan) -> str:
    for name in ("workload", "start_ms", "not_before_ms", "finish_ms", "assignment", "tardiness_ms", "reason"):
        getattr(plan, name).pop()
    return "can be planned but is not in the plan"


def _twice(plan: pb.Plan) -> str:
    for name in ("workload", "start_ms", "not_before_ms", "finish_ms", "assignment", "tardiness_ms", "reason"):
        getattr(plan, name).append(getattr(plan, name)[-1])
    return "is in the plan 2 times"


def _finish(plan: pb.Plan) -> str:
    plan.finish_ms[-1] += 1
    return "finishes at"


def _tardiness(plan: pb.Plan) -> str:
    plan.tardiness_ms[-1] += 1
    return "ms late"


def _not_before(plan: pb.Plan) -> str:
    plan.not_before_ms[-1] = plan.start_ms[-1] + 1
    return "not-before"


def _more(plan: pb.Plan) -> str:
    held = plan.assignments[plan.assignment[-1]]
    held.amounts[-1] += 1
    return "could not give it"


def _nothing(plan: pb.Plan) -> str:
    plan.assignments[plan.assignment[-1]].Clear()
    return "could not give it nothing"


def _no_assignment(plan: pb.Plan) -> str:
    plan.assignment[-1] = 10_000
    return "is not in the plan's table"


def _no_flavor(plan: pb.Plan) -> str:
    plan.assignments[plan.assignment[-1]].flavors[-1] = 10_000
    return "makes no sense"


def _no_row(plan: pb.Plan) -> str:
    plan.workload[-1] = 10_000
    return "is not in the request"


def _ragged(plan: pb.Plan) -> str:
    plan.start_ms.append(plan.start_ms[-1])
    return "not equally long"


def _no_time(plan: pb.Plan) -> str:
    plan.start_ms[-1] = -(1 << 63)
    return "no real time"


BREAKS = [
    _drop,
    _twice,
    _finish,
    _tardiness,
    _not_before,
    _more,
    _nothing,
    _no_assignment,
    _no_flavor,
    _no_row,
    _ragged,
    _no_time,
]


@pytest.mark.parametrize("broken", BREAKS)
def test_broken_plans_are_told(broken: Callable[[pb.Plan], str]) -> None:
    """Each way to break a sound plan is found, and said in its own words."""
    case = lone_queue(gpus=4, rows=3, each=2)
    plan = case.plan(case.schedule())
    assert verify(case.request, plan) == []
    words = broken(plan)
    violations = verify(case.request, plan)
    assert any(words in v.message for v in violations), violations


@relaxed(60)
@given(cases(), st.data())
def test_another_assignment_is_refused_unless_the_queue_could_give_it(case: Case, data: st.DataObject) -> None:
    """Swapping an assignment is a violation exactly when the new one is not among the queue's options."""
    planned = case.schedule()
    assume(planned)
    one = planned[data.draw(st.integers(0, len(planned) - 1))]
    cell = st.tuples(
        st.integers(0, len(case.request.quota.flavors) - 1), st.integers(0, len(case.request.quota.resources) - 1)
    )
    mine = case.options(one.row)
    one.cells = data.draw(st.dictionaries(cell, st.integers(1, 4), max_size=3) | st.sampled_from(mine))
    told = any("could not give it" in v.message for v in verify(case.request, case.plan(planned)))
    nonzero = [{c: a for c, a in option.items() if a} for option in mine]
    assert told == ({c: a for c, a in one.cells.items() if a} not in nonzero)


def mean_start(request: pb.PlanRequest, plan: pb.Plan) -> float:
    """Hours: a tenth of the plain mean of starts, nine of that by part of the tree's quota × time."""
    cohorts = {cohort.name: cohort.parent for cohort in request.quota.cohorts}

    def root(queue: pb.ClusterQueue) -> str:
        name = queue.cohort
        while cohorts.get(name):
            name = cohorts[name]
        return name or f"queue {queue.name}"

    nominal: Counter[tuple[str, int]] = Counter()
    for cohort in request.quota.cohorts:
        for offer in cohort.quotas:
            for amount in offer.resources:
                top = cohort.name
                while cohorts[top]:
                    top = cohorts[top]
                nominal[top, amount.resource] += amount.nominal
    for queue in request.quota.cluster_queues:
        for group in queue.resource_groups:
            for offer in group.flavors:
                for amount in offer.resources:
                    nominal[root(queue), amount.resource] += amount.nominal
    energies, starts = [], []
    for row, assignment, start in zip(plan.workload, plan.assignment, plan.start_ms, strict=True):
        asked: Counter[int] = Counter()
        for r, amount in zip(plan.assignments[assignment].resources, plan.assignments[assignment].amounts, strict=True):
            asked[r] += amount
        top = root(request.quota.cluster_queues[request.workloads.cluster_queue[row]])
        part = max((amount / max(1, nominal[top, r]) for r, amount in asked.items()), default=0)
        energies.append(part * request.workloads.duration_ms[row])
        starts.append((start - NOW) / 3_600_000)
    if not starts:
        return 0.0
    plain = sum(starts) / len(starts)
    if not sum(energies):
        return plain
    return plain / 10 + sum(e * s for e, s in zip(energies, starts, strict=True)) / sum(energies) * 9 / 10


@relaxed(50)
@given(cases(), st.floats(-2, 2))
def test_the_value_of_a_plan_is_recomputed(case: Case, wrong: float) -> None:
    """Objective values, bound and gap that are the plan's pass; each that is not is told."""
    plan = case.plan(case.schedule())
    work = case.request.workloads
    late = [(row, t) for row, t in zip(plan.workload, plan.tardiness_ms, strict=True) if t > 0]
    late_weight = sum(work.weight[row] for row, _ in late)
    objective = pb.Objective(
        levels=[
            pb.ObjectiveValue(level=pb.LATE_WEIGHT, value=late_weight),
            pb.ObjectiveValue(
                level=pb.TARDINESS,
                value=sum(work.weight[row] * t for row, t in late if not work.hard[row]) / 3_600_000,
            ),
            pb.ObjectiveValue(level=pb.START_TIMES, value=mean_start(case.request, plan)),
        ],
        bound=late_weight,
    )
    assert verify(case.request, plan, objective) == []
    assume(abs(wrong) > 1e-3)
    for level in objective.levels:
        level.value += wrong
        assert [v.message.split()[1] for v in verify(case.request, plan, objective)] == [
            pb.ObjectiveLevel.Name(level.level)
        ]
        level.value -= wrong
    objective.bound += abs(wrong)
    assert "bound" in verify(case.request, plan, objective)[0].message


def lone_queue(gpus: int, rows: int, each: int = 1) -> Case:
    """One ClusterQueue with one flavor and rows of equal work."""
    request = pb.PlanRequest(schema=1, now_ms=NOW)
    request.quota.resources.append("gpu")
    request.quota.flavors.add(name="a")
    group = request.quota.cluster_queues.add(name="team").resource_groups.add(covered_resources=[0])
    group.flavors.add(flavor=0).resources.add(resource=0, nominal=gpus)
    request.shapes.add().pod_sets.add(count=1, resources=[0], amounts=[each])
    work = request.workloads
    work.id.extend(f"ns/job-{k}" for k in range(rows))
    work.duration_ms.extend([1000] * rows)
    for name in ("cluster_queue", "shape", "state", "release_ms", "due_ms", "assignment"):
        getattr(work, name).extend([0] * rows)
    return Case(request)


def test_messages_name_workload_instant_and_node() -> None:
    """Who reads a violation knows which workload, when, which quota, and by how much."""
    case = lone_queue(gpus=4, rows=3, each=2)
    plan = case.plan([case.held(row, 500 * row, {(0, 0): 2}) for row in range(3)])
    plan.start_ms[1], plan.finish_ms[1] = NOW, NOW + 1000
    plan.start_ms[2], plan.finish_ms[2] = NOW + 999, NOW + 1999
    (violation,) = verify(case.request, plan)
    assert (violation.workload, violation.at_ms) == (2, NOW + 999)
    assert violation.message == (
        "workload 'ns/job-2': starts without quota: ClusterQueue team has 4 of gpu in flavor a and 6 would be in use"
    )


def test_debts_from_before_are_not_the_plans_fault() -> None:
    """Running work over its quota, which was cut, is no violation; work that starts on top of it is."""
    case = lone_queue(gpus=4, rows=2, each=2)
    case.request.workloads.state[0] = pb.RUNNING
    case.request.assignments.append(assignment({(0, 0): 6}))
    case = Case(case.request)
    assert verify(case.request, case.plan([case.held(1, 1000, {(0, 0): 2})])) == []
    assert [v.workload for v in verify(case.request, case.plan([case.held(1, 999, {(0, 0): 2})]))] == [1]


@pytest.mark.parametrize(("amount", "fits"), [(2, True), (3, False)])
def test_a_cohort_in_debt_takes_from_private_quota_only_what_it_owes(amount: int, fits: bool) -> None:
    """With 3 private GPUs under a cohort that owes 1, a queue may use 2: neither 3, nor none."""
    case = lone_queue(gpus=4, rows=2, each=amount)
    request = case.request
    request.quota.cluster_queues[0].cohort = "all"
    request.quota.cluster_queues[0].resource_groups[0].flavors[0].resources[0].lending_limit = 1
    request.quota.cluster_queues.add(name="debtor", cohort="all")
    request.workloads.cluster_queue[1], request.workloads.state[1] = 1, pb.RUNNING
    request.assignments.append(assignment({(0, 0): 2}))
    assert (verify(request, case.plan([case.held(0, 0, {(0, 0): amount})])) == []) == fits


def _running(request: pb.PlanRequest) -> None:
    request.workloads.state[0] = pb.RUNNING
    request.assignments.append(assignment({(0, 0): 1}))


def _cycle(request: pb.PlanRequest) -> None:
    request.quota.cluster_queues[0].cohort = "b"
    request.quota.cohorts.add(name="b", parent="c")
    request.quota.cohorts.add(name="c", parent="b")


def _two_cohorts(request: pb.PlanRequest) -> None:
    request.quota.cluster_queues[0].cohort = "b"
    request.quota.cohorts.add(name="b", parent="c")
    request.quota.cohorts.add(name="c")
    request.quota.cohorts.add(name="c")


def _vast_tree(request: pb.PlanRequest) -> None:
    request.quota.cluster_queues[0].cohort = "b"
    for k in range(65):
        quotas = pb.FlavorQuotas(flavor=0, resources=[pb.ResourceQuota(resource=0, nominal=1 << 52)])
        request.quota.cohorts.add(name=f"c{k}", parent="b").quotas.append(quotas)


def _deep_tree(request: pb.PlanRequest) -> None:
    request.quota.cluster_queues[0].cohort = "c200"
    for k in range(1, 201):
        request.quota.cohorts.add(name=f"c{k}", parent=f"c{k - 1}")


def _offer(request: pb.PlanRequest) -> pb.FlavorQuotas:
    return request.quota.cluster_queues[0].resource_groups[0].flavors[0]


NOT_PLANNED: dict[str, Callable[[pb.PlanRequest], object]] = {
    "running": _running,
    "cycle of cohorts": _cycle,
    "two cohorts of one name": _two_cohorts,
    "quotas beyond all sums": _vast_tree,
    "cohorts nested without end": _deep_tree,
    "stopped": lambda r: setattr(r.quota.cluster_queues[0], "stopped", True),
    "two queues of one name": lambda r: r.quota.cluster_queues.add(name="team"),
    "negative quota": lambda r: setattr(_offer(r).resources[0], "nominal", -1),
    "negative limit": lambda r: setattr(_offer(r).resources[0], "borrowing_limit", -1),
    "two quotas": lambda r: _offer(r).resources.add(resource=0, nominal=9),
    "quota of no resource": lambda r: _offer(r).resources.add(resource=9),
    "quota of no flavor": lambda r: setattr(_offer(r), "flavor", 9),
    "resource covered twice": lambda r: r.quota.cluster_queues[0].resource_groups.add(covered_resources=[0]),
    "resource not covered": lambda r: r.quota.cluster_queues[0].resource_groups[0].covered_resources.pop(),
    "no such queue": lambda r: r.workloads.cluster_queue.__setitem__(0, 7),
    "no such shape": lambda r: r.workloads.shape.__setitem__(0, 7),
    "no such state": lambda r: r.workloads.state.__setitem__(0, 7),
    "no duration": lambda r: r.workloads.duration_ms.__setitem__(0, 0),
    "duration beyond belief": lambda r: r.workloads.duration_ms.__setitem__(0, 1 << 50),
    "weight is no number": lambda r: r.workloads.weight.append(float("nan")),
    "negative weight": lambda r: r.workloads.weight.append(-1),
    "negative due date": lambda r: r.workloads.due_ms.__setitem__(0, -1),
    "release date beyond belief": lambda r: r.workloads.release_ms.__setitem__(0, 1 << 60),
    "negative amount": lambda r: r.shapes[0].pod_sets[0].amounts.__setitem__(0, -1),
    "negative count": lambda r: setattr(r.shapes[0].pod_sets[0], "count", -1),
    "minimum above count": lambda r: setattr(r.shapes[0].pod_sets[0], "min_count", 2),
    "absurd amount": lambda r: r.shapes[0].pod_sets[0].amounts.__setitem__(0, 1 << 53),
    "resource without amount": lambda r: r.shapes[0].pod_sets[0].resources.append(0),
    "no such resource": lambda r: r.shapes[0].pod_sets[0].resources.__setitem__(0, 7),
    "no such flavor": lambda r: r.shapes[0].pod_sets[0].excluded_flavors.append(7),
}


@pytest.mark.parametrize("why", NOT_PLANNED)
def test_rows_that_cannot_be_planned_must_not_be_in_the_plan(why: str) -> None:
    """A row that runs already, has no open queue, or makes no sense is not missed, and is told when it is planned."""
    case = lone_queue(gpus=4, rows=1)
    plan = case.plan([case.held(0, 0, {(0, 0): 1})])
    assert verify(case.request, plan) == []
    NOT_PLANNED[why](case.request)
    assert ["cannot be planned" in v.message for v in verify(case.request, plan)] == [True]
    assert verify(case.request, pb.Plan()) == []


def test_running_work_without_a_sensible_estimate_holds_its_quota_for_a_minute() -> None:
    """A row that is rejected for its remaining time still counts as in use."""
    case = lone_queue(gpus=4, rows=2, each=4)
    _running(case.request)
    case.request.assignments[0].amounts[0] = 4
    case.request.workloads.duration_ms[0] = -7
    assert verify(case.request, case.plan([case.held(1, 59_999, {(0, 0): 4})]))
    assert verify(case.request, case.plan([case.held(1, 60_000, {(0, 0): 4})])) == []


def test_many_violations_of_a_kind_are_counted() -> None:
    """A plan that is wrong everywhere is told in a bounded number of messages."""
    case = lone_queue(gpus=4, rows=3 * REPORTED)
    violations = verify(case.request, pb.Plan())
    assert len(violations) == REPORTED + 1
    assert violations[-1].message.startswith(f"{2 * REPORTED} more")


def test_amounts_at_the_edge_of_the_integers_are_summed_exactly() -> None:
    """Thousands of the largest amounts at once are too much, even where their sum does not fit 64 bits."""
    largest = 1 << 52
    case = lone_queue(gpus=largest, rows=8192, each=largest)
    plan = case.plan([case.held(row, 0, {(0, 0): largest}) for row in range(8192)])
    assert any("without quota" in v.message for v in verify(case.request, plan))


def test_requests_with_very_many_pod_sets_end() -> None:
    """An assignment that could be split in too many ways is refused, not looked at for ever."""
    case = lone_queue(gpus=400, rows=1)
    group = case.request.quota.cluster_queues[0].resource_groups[0]
    for flavor in range(1, 5):
        case.request.quota.flavors.add(name=f"f{flavor}")
        group.flavors.add(flavor=flavor).resources.add(resource=0, nominal=400)
    rng = np.random.default_rng(0)
    for _ in range(39):
        case.request.shapes[0].pod_sets.add(count=1, resources=[0], amounts=[int(rng.integers(1, 10**6))])
    total = sum(p.amounts[0] for p in case.request.shapes[0].pod_sets)
    cells = {(f, 0): total // 5 + (f == 0) * (total % 5) for f in range(5)}
    assert verify(case.request, case.plan([case.held(0, 0, cells)]))
