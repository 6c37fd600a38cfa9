"""What would make one workload on time: the same planning problem with one thing changed at a time, planned anew.

Each answer is shown to work by a plan in which the workload is on time and the others are late by no more weight than
before (unless the answer is its weight). That nothing else would do is never claimed, but for one case: when a bound
proves that no plan at all has it on time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import chain

from solver.api import planner_pb2 as pb

Solve = Callable[[pb.PlanRequest], pb.PlanResponse]
"""Makes a verified plan."""

MOST_PARTS = 64
"""Finest steps, in parts of the request, in which more quota or a smaller request is tried."""

PREFERRED = 1 + 1e-6
"""Between plans that are equal but for who is late, the one with the workload on time is asked for."""


class Kind(StrEnum):
    """What is changed."""

    DEADLINE = "deadline"
    QUOTA = "quota"
    FLAVOR = "flavor"
    SIZE = "size"
    WEIGHT = "weight"


@dataclass(frozen=True)
class Change:
    """One thing that would make a workload on time."""

    kind: Kind
    finish: int
    """When it would finish, in milliseconds since the Unix epoch."""
    flavor: int = -1
    """Of more quota, or that it would have to be able to use."""
    amounts: dict[int, int] = field(default_factory=dict)
    """More quota for its ClusterQueue, by resource, in Kueue's units."""
    part: float = 1.0
    """Of its pods, or of what its one pod asks for, if it then took as much longer."""
    weight: float = 0.0
    """That it would need."""
    late: tuple[int, ...] = ()
    """Rows that would be late in its place."""


@dataclass(frozen=True)
class Answer:
    """What is known about a workload that is planned to be late."""

    changes: tuple[Change, ...]
    impossible: bool
    """No plan has it on time, whoever else is late for it: a bound proves it."""


def what_if(request: pb.PlanRequest, response: pb.PlanResponse, row: int, solve: Solve) -> Answer:
    """What would make a row of a request on time that the response plans to be late.

    Parameters
    ----------
    row
        Position in the request's workloads.
    solve
        Plans are compared with the response's, so it should be made the same way.
    """
    asker = _Asker(request, response, row, solve)
    later = Change(Kind.DEADLINE, asker.finish(response))
    work = request.workloads
    begin = max(request.now_ms, work.release_ms[row] if work.release_ms else 0)
    if begin + work.duration_ms[row] > work.due_ms[row]:
        return Answer((later,), True)  # not even alone
    first = asker.first()
    changes = [later, *asker.quota(), *asker.flavors(), *asker.smaller()]
    if first is not None:
        changes.append(first)
    return Answer(tuple(changes), asker.impossible)


class _Asker:
    def __init__(self, request: pb.PlanRequest, response: pb.PlanResponse, row: int, solve: Solve) -> None:
        self._request, self._row, self._solve = request, row, solve
        work = request.workloads
        self._weights = list(work.weight) or [1.0] * len(work.id)
        self._late = self._late_rows(response) - {row}
        self._shape = request.shapes[work.shape[row] if work.shape else 0]
        self._position = work.cluster_queue[row] if work.cluster_queue else 0
        """Of its ClusterQueue."""
        self._queue = request.quota.cluster_queues[self._position]
        self.impossible = False

    def finish(self, response: pb.PlanResponse) -> int:
        """When the row finishes."""
        return response.plan.finish_ms[list(response.plan.workload).index(self._row)]

    def first(self) -> Change | None:
        """With more weight than all others together: who would be late for it, if that helps."""
        changed = self._copy()
        others = sum(self._weights) - self._weights[self._row]
        changed.workloads.weight[:] = self._weights
        changed.workloads.weight[self._row] = everything = 1 + 2 * others
        response = self._solve(changed)
        late = self._late_rows(response)
        if self._row in late:
            self.impossible = response.objective.bound >= everything
            return None
        instead = late - self._late
        need = sum(self._weights[other] for other in instead)
        return Change(Kind.WEIGHT, self.finish(response), weight=need, late=tuple(sorted(instead)))

    def quota(self) -> Iterator[Change]:
        """The least more quota of each flavor that its ClusterQueue lists: in parts of the request."""
        for group in self._queue.resource_groups:
            wanted = self._wanted(set(group.covered_resources))
            steps = _steps(wanted)
            for offer in group.flavors if steps else ():
                found = self._least(partial(self._with_quota, offer.flavor, wanted, steps), steps)
                if found is not None:
                    step, finish = found
                    yield Change(Kind.QUOTA, finish, flavor=offer.flavor, amounts=_part(wanted, step, steps))

    def _with_quota(self, flavor: int, wanted: dict[int, int], steps: int, step: int) -> pb.PlanRequest:
        """With so many of ``steps`` parts of what it asks for more in a flavor of its ClusterQueue."""
        changed, more = self._copy(), _part(wanted, step, steps)
        offers = chain.from_iterable(
            group.flavors for group in changed.quota.cluster_queues[self._position].resource_groups
        )
        for limit in chain.from_iterable(offer.resources for offer in offers if offer.flavor == flavor):
            limit.nominal += more.get(limit.resource, 0)
        return changed

    def flavors(self) -> Iterator[Change]:
        """Each flavor of its ClusterQueue that its pods rule out."""
        excluded = {flavor for pod_set in self._shape.pod_sets for flavor in pod_set.excluded_flavors}
        listed = [offer.flavor for group in self._queue.resource_groups for offer in group.flavors]
        for flavor in (flavor for flavor in listed if flavor in excluded):
            changed = self._copy()
            shape = self._own_shape(changed)
            for pod_set in shape.pod_sets:
                kept = [other for other in pod_set.excluded_flavors if other != flavor]
                pod_set.excluded_flavors[:] = kept
            if (finish := self._on_time(changed)) is not None:
                yield Change(Kind.FLAVOR, finish, flavor=flavor)

    def smaller(self) -> Iterator[Change]:
        """The largest part of its pods (or of its one pod) with which it is on time though it takes longer."""
        if len(self._shape.pod_sets) != 1:
            return
        (pod_set,) = self._shape.pod_sets
        whole = pod_set.count if pod_set.count > 1 else min((a for a in pod_set.amounts if a > 1), default=1)
        for less in sorted({whole * k // 8 for k in range(1, 8)} - {0, whole}, reverse=True):
            changed = self._copy()
            own = self._own_shape(changed).pod_sets[0]
            if pod_set.count > 1:
                own.count, own.min_count = less, min(less, own.min_count)
            else:
                own.amounts[:] = [amount * less // whole for amount in own.amounts]
            changed.workloads.duration_ms[self._row] = -(-changed.workloads.duration_ms[self._row] * whole // less)
            if (finish := self._on_time(changed)) is not None:
                yield Change(Kind.SIZE, finish, part=less / whole)
                return

    def _least(self, change: Callable[[int], pb.PlanRequest], most: int) -> tuple[int, int] | None:
        """The least step that helps, and when it would finish then; None when not even the most does."""
        if (finish := self._on_time(change(most))) is None:
            return None
        low, high = 1, most
        while low < high:
            step = (low + high) // 2
            if (earlier := self._on_time(change(step))) is not None:
                high, finish = step, earlier
            else:
                low = step + 1
        return high, finish

    def _on_time(self, changed: pb.PlanRequest) -> int | None:
        """When it finishes if it is on time and costs the others nothing."""
        changed.workloads.weight[:] = self._weights
        changed.workloads.weight[self._row] *= PREFERRED
        response = self._solve(changed)
        late = self._late_rows(response)
        planned = self._row in response.plan.workload
        if not planned or self._row in late or self._weight(late) > self._weight(self._late):
            return None
        return self.finish(response)

    def _weight(self, rows: set[int]) -> float:
        return sum(self._weights[row] for row in rows)

    def _late_rows(self, response: pb.PlanResponse) -> set[int]:
        plan = response.plan
        return {row for row, late in zip(plan.workload, plan.tardiness_ms, strict=True) if late > 0}

    def _copy(self) -> pb.PlanRequest:
        changed = pb.PlanRequest()
        changed.CopyFrom(self._request)
        changed.ClearField("previous")
        return changed

    def _own_shape(self, changed: pb.PlanRequest) -> pb.RequestShape:
        """A shape that no other row has."""
        shape = changed.shapes.add()
        shape.CopyFrom(self._shape)
        if not changed.workloads.shape:
            changed.workloads.shape.extend([0] * len(changed.workloads.id))
        changed.workloads.shape[self._row] = len(changed.shapes) - 1
        return shape

    def _wanted(self, resources: set[int]) -> dict[int, int]:
        """All that it asks of some resources."""
        wanted: dict[int, int] = {}
        for pod_set in self._shape.pod_sets:
            for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True):
                if resource in resources and amount:
                    wanted[resource] = wanted.get(resource, 0) + amount * pod_set.count
        return wanted


def _part(wanted: dict[int, int], step: int, steps: int) -> dict[int, int]:
    """So many of ``steps`` parts of an amount, by resource, rounded up."""
    return {resource: -(-total * step // steps) for resource, total in wanted.items()}


def _steps(wanted: dict[int, int]) -> int:
    """In how many steps a request is tried: no finer than its scarcest resource comes in."""
    return min(MOST_PARTS, min(wanted.values(), default=0))
