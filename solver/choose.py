"""Would Kueue admit this now, and with which flavors?

Kueue 0.17's flavor assignment (``pkg/scheduler/flavorassigner``) without topology, fair sharing and preemption:

* pod sets in their order, greedily: what an earlier one took counts for the later ones, and is never given back;
* for each resource group of the ClusterQueue that the pod set needs, one flavor for all its resources in that group;
* flavors in the queue's order, but not those that node labels or taints rule out;
* ``whenCanBorrow: MayStopSearch`` (the default) takes the first flavor in which all fits, borrowed or not;
  ``TryNextFlavor`` the first that fits without borrowing, else the one that borrows least far (the earlier of equals);
* ``pods`` is one more resource of every pod, where the queue covers it;
* with a minimum count, when all pods together do not fit: the largest number of pods that does, by a binary search over
  the reduction, as Kueue has it.

This is Kueue's *first* attempt for a workload. When it fails although a part of the workload found a flavor, Kueue may
go on from the next flavor in the cycles that follow: :func:`retry`. So "fits" is certain; "does not fit" is what a plan
must count on.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

import numpy as np
from numba import njit

from solver.quota import Bools, Int32s, Int64s, QuotaTree, TreeArrays, available, take

PODS = "pods"
"""The resource that counts pods; Kueue adds it to every request of a queue that covers it."""


class Mode(IntEnum):
    """How well a request fits; larger is better."""

    NO_FIT = 0
    """Not now, and nothing is kept for it."""
    WAITS = 1
    """Would fit within what the queue is entitled to if others were gone. Kueue keeps quota for it within a cycle."""
    FITS = 2
    """Fits now."""


NO_FIT, WAITS, FITS = int(Mode.NO_FIT), int(Mode.WAITS), int(Mode.FITS)


class Queues(NamedTuple):
    """ClusterQueues as the kernels read them. Resource groups, and the flavors of a group, are CSR columns.

    Queue ``q`` has the groups ``first[q] … first[q + 1]``. Group ``g`` offers the flavors ``flavor[k]``, ``k`` from
    ``flavor_first[g]`` to ``flavor_first[g + 1]``, in Kueue's order. ``group[q, r]`` covers resource ``r``; −1: none.
    """

    node: Int32s
    first: Int32s
    flavor_first: Int32s
    flavor: Int32s
    group: Int32s
    try_next: Bools
    height: Int32s
    """``int32 [N]``: how far up a cohort is, 0 for a ClusterQueue (Kueue's measure of how far a request borrows)."""
    potential: Int64s
    """``int64 [N, C]``: the most that could ever be available."""
    resources: int
    """Number of resources of the tree."""
    free: int
    """Position of the resource ``pods``, which a queue need not cover; −1 where the tree does not know it."""


class Shapes(NamedTuple):
    """Requests as the kernels read them.

    Pod sets of shape ``s`` are ``first[s] … first[s + 1]``; pod set ``p`` has ``pods[p]`` pods, may be cut to
    ``min_pods[p]``, and one pod asks for ``amount[k]`` of ``resource[k]`` for ``k`` from ``request_first[p]`` to
    ``request_first[p + 1]``. Where the tree knows the resource ``pods``, every pod asks for one of it.
    """

    first: Int32s
    pods: Int64s
    min_pods: Int64s
    request_first: Int32s
    resource: Int32s
    amount: Int64s
    excluded: Bools
    """``bool [P, F]``: flavors that its node selector, affinity or tolerations rule out."""


class Choice(NamedTuple):
    """What :func:`choose` found; overwritten by each call, so that calls allocate nothing."""

    flavor: Int32s
    """``int32 [pod sets, groups]``: flavor by pod set of the shape and resource group of the queue; −1 where none."""
    pods: Int64s
    """``int64 [pod sets]``: pods of each pod set; smaller than asked for under partial admission."""
    total: Int64s
    """``int64 [C]``: what it takes of each cell, all pod sets together."""
    start: Int32s
    """``int32 [pod sets, groups]``: position in the group's flavors from which the search began."""
    further: Int32s
    """``int32 [pod sets, groups]``: from where Kueue's next cycle goes on; 0 where it begins anew."""


class PodSet(Protocol):
    """A pod set of a request: the proto's, or anything alike."""

    count: int
    min_count: int
    resources: Sequence[int]
    amounts: Sequence[int]
    excluded_flavors: Sequence[int]


def pack_queues(tree: QuotaTree) -> Queues:
    """The tree's ClusterQueues for the kernels. A frozen one has no groups."""
    first, flavor_first = [0], [0]
    flavors: list[int] = []
    group = np.full((len(tree.queue_names), len(tree.resources)), -1, dtype=np.int32)
    for queue, groups in enumerate(tree.groups):
        for covered, offered in groups:
            group[queue, list(covered)] = len(flavor_first) - 1
            flavors += offered
            flavor_first.append(len(flavors))
        first.append(len(flavor_first) - 1)
    height = np.zeros(len(tree.parent), dtype=np.int32)
    queue_nodes = set(tree.queue_node.tolist())
    for node in range(len(tree.parent) - 1, -1, -1):
        if (parent := tree.parent[node]) >= 0:
            height[parent] = max(height[parent], 1, 0 if node in queue_nodes else height[node] + 1)
    return Queues(
        node=tree.queue_node,
        first=np.array(first, dtype=np.int32),
        flavor_first=np.array(flavor_first, dtype=np.int32),
        flavor=np.array(flavors, dtype=np.int32),
        group=group,
        try_next=tree.try_next_flavor,
        height=height,
        potential=tree.potential,
        resources=len(tree.resources),
        free=tree.resources.index(PODS) if PODS in tree.resources else -1,
    )


def pack_shapes(tree: QuotaTree, shapes: Sequence[Sequence[PodSet]]) -> Shapes:
    """The pod sets of each shape for the kernels. Their numbers must have been checked."""
    pod_sets = [pod_set for shape in shapes for pod_set in shape]
    excluded = np.zeros((len(pod_sets), len(tree.flavors)), dtype=np.bool_)
    requests = []
    for position, pod_set in enumerate(pod_sets):
        excluded[position, list(pod_set.excluded_flavors)] = True
        request: dict[int, int] = {}
        for resource, amount in zip(pod_set.resources, pod_set.amounts, strict=True):
            request[resource] = request.get(resource, 0) + amount
        if PODS in tree.resources:
            request[tree.resources.index(PODS)] = 1
        requests.append(request)
    return Shapes(
        first=_offsets([len(shape) for shape in shapes]),
        pods=np.array([p.count for p in pod_sets], dtype=np.int64),
        min_pods=np.array([p.min_count or p.count for p in pod_sets], dtype=np.int64),
        request_first=_offsets([len(request) for request in requests]),
        resource=np.array([r for request in requests for r in request], dtype=np.int32),
        amount=np.array([a for request in requests for a in request.values()], dtype=np.int64),
        excluded=excluded,
    )


def blank(queues: Queues, shapes: Shapes) -> Choice:
    """Room for the answer about any queue and any shape. One for each thread."""
    pod_sets = max(np.diff(shapes.first), default=0)
    groups = max(np.diff(queues.first), default=0)
    return Choice(
        np.full((pod_sets, groups), -1, dtype=np.int32),
        np.zeros(pod_sets, dtype=np.int64),
        np.zeros(queues.potential.shape[1], dtype=np.int64),
        np.zeros((pod_sets, groups), dtype=np.int32),
        np.zeros((pod_sets, groups), dtype=np.int32),
    )


@njit(cache=True, nogil=True)
def choose(
    tree: TreeArrays, queues: Queues, shapes: Shapes, usage: Int64s, queue: int, shape: int, choice: Choice
) -> tuple[int, int]:
    """Whether Kueue would admit a request now, on its first attempt.

    Returns its :class:`Mode` and how far it borrows (the height of the cohort that has the room, 0: within the queue's
    own nominal quota). ``choice`` has the flavors, pods and totals; those of the attempt when it does not fit.
    """
    choice.start[:] = 0
    return _attempt(tree, queues, shapes, usage, queue, shape, choice)


@njit(cache=True, nogil=True)
def retry(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    queue: int,
    shape: int,
    choice: Choice,
    attempts: int,
) -> tuple[int, int, int]:
    """Like :func:`choose`, but with the attempts that Kueue makes in the cycles that follow, ``attempts`` at most.

    A workload of which a part found a flavor that is not the last one goes back into the queue at once, and is tried
    from the next flavor on. Returns mode, level and the number of attempts, ``attempts + 1`` when more would follow.
    """
    choice.start[:] = 0
    mode, level, attempt = NO_FIT, 0, 0
    while attempt < attempts:
        attempt += 1
        mode, level = _attempt(tree, queues, shapes, usage, queue, shape, choice)
        if mode == FITS or not choice.further.any():
            return mode, level, attempt
        choice.start[:] = choice.further
    return mode, level, attempts + 1


@njit(cache=True, nogil=True)
def claim(tree: TreeArrays, usage: Int64s, node: int, total: Int64s) -> None:
    """Add what was chosen to a ClusterQueue's use."""
    for cell in range(len(total)):
        if total[cell] != 0:
            take(tree, usage, node, cell, total[cell])


@njit(cache=True, nogil=True)
def option_of(total: Int64s, first: int, last: int, need: Int32s, cell: Int32s, amount: Int64s) -> int:
    """Which of the options ``first … last − 1`` takes exactly ``total``; −1 for none (partial admission).

    ``need``, ``cell`` and ``amount`` are the columns of :class:`solver.problem.Options`.
    """
    cells = np.count_nonzero(total)
    for option in range(first, last):
        same = 0
        for k in range(need[option], need[option + 1]):
            if amount[k] != total[cell[k]]:
                same = -1
                break
            if amount[k] != 0:
                same += 1
        if same == cells:
            return option
    return -1


@njit(cache=True, nogil=True)
def _attempt(
    tree: TreeArrays, queues: Queues, shapes: Shapes, usage: Int64s, queue: int, shape: int, choice: Choice
) -> tuple[int, int]:
    """One attempt of Kueue: all pods, else (where the request allows it) as many as fit."""
    offset, last = shapes.first[shape], shapes.first[shape + 1]
    steps = (shapes.pods[offset:last] - shapes.min_pods[offset:last]).sum()
    choice.pods[: last - offset] = shapes.pods[offset:last]
    mode, level = _assign(tree, queues, shapes, usage, queue, shape, choice)
    if mode == FITS or steps == 0:
        return mode, level
    further = choice.further.copy()
    low, high = 0, steps + 1
    while low < high:
        middle = (low + high) // 2
        _reduce(shapes, shape, choice, middle, steps)
        if _assign(tree, queues, shapes, usage, queue, shape, choice)[0] == FITS:
            high = middle
        else:
            low = middle + 1
    _reduce(shapes, shape, choice, low if low <= steps else 0, steps)
    mode, level = _assign(tree, queues, shapes, usage, queue, shape, choice)
    choice.further[:] = further
    return mode, level


@njit(cache=True, nogil=True)
def _reduce(shapes: Shapes, shape: int, choice: Choice, step: int, steps: int) -> None:
    """Set the pods of one step of partial admission: every pod set goes the same part of its way to the minimum."""
    offset = shapes.first[shape]
    for pod_set in range(offset, shapes.first[shape + 1]):
        slack = shapes.pods[pod_set] - shapes.min_pods[pod_set]
        choice.pods[pod_set - offset] = shapes.pods[pod_set] - slack * step // steps


@njit(cache=True, nogil=True)
def _assign(
    tree: TreeArrays, queues: Queues, shapes: Shapes, usage: Int64s, queue: int, shape: int, choice: Choice
) -> tuple[int, int]:
    """Flavors for ``choice.pods`` of each pod set, from ``choice.start`` on."""
    choice.total[:] = 0
    choice.flavor[:] = -1
    choice.further[:] = 0
    mode, level = FITS, 0
    first = queues.first[queue]
    for pod_set in range(shapes.first[shape], shapes.first[shape + 1]):
        row = pod_set - shapes.first[shape]
        requests = range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1])
        for k in requests:
            group = queues.group[queue, shapes.resource[k]]
            if group < 0:
                if shapes.amount[k] * choice.pods[row] == 0 or shapes.resource[k] == queues.free:
                    continue
                choice.further[row] = 0
                return NO_FIT, level
            if choice.flavor[row, group - first] < 0:
                flavor, fit, far, further = _pick(tree, queues, shapes, usage, queue, group, pod_set, choice, row)
                if fit == NO_FIT:
                    choice.further[row] = 0
                    return NO_FIT, level
                mode, level = min(mode, fit), max(level, far)
                choice.flavor[row, group - first] = flavor
                choice.further[row, group - first] = further
        for k in requests:
            group = queues.group[queue, shapes.resource[k]]
            if group >= 0:
                cell = choice.flavor[row, group - first] * queues.resources + shapes.resource[k]
                choice.total[cell] += shapes.amount[k] * choice.pods[row]
    return mode, level


@njit(cache=True, nogil=True)
def _pick(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    queue: int,
    group: int,
    pod_set: int,
    choice: Choice,
    row: int,
) -> tuple[int, int, int, int]:
    """Flavor of one resource group for one pod set, its mode and level, and where the next cycle would go on."""
    best, best_mode, best_level = -1, NO_FIT, 0
    position = queues.flavor_first[group] + choice.start[row, group - queues.first[queue]]
    last = queues.flavor_first[group + 1]
    while position < last:
        flavor = queues.flavor[position]
        position += 1
        if shapes.excluded[pod_set, flavor]:
            continue
        mode, level = FITS, 0
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            if queues.group[queue, shapes.resource[k]] == group and mode != NO_FIT:
                cell = flavor * queues.resources + shapes.resource[k]
                amount = choice.total[cell] + shapes.amount[k] * choice.pods[row]
                mode, level = _worse(mode, level, _fit(tree, queues, usage, queues.node[queue], cell, amount))
        if mode == FITS and (level == 0 or not queues.try_next[queue]):
            best, best_mode, best_level = flavor, mode, level
            break
        if mode > best_mode or (mode == best_mode and mode != NO_FIT and level < best_level):
            best, best_mode, best_level = flavor, mode, level
    further = position - queues.flavor_first[group] if position < last else 0
    return best, best_mode, best_level, further


@njit(cache=True, nogil=True)
def _worse(mode: int, level: int, other: tuple[int, int]) -> tuple[int, int]:
    """The worse of two modes, of equal ones the one that borrows farther."""
    if other[0] != mode:
        return (mode, level) if mode < other[0] else other
    return mode, max(level, other[1])


@njit(cache=True, nogil=True)
def _fit(tree: TreeArrays, queues: Queues, usage: Int64s, node: int, cell: int, value: int) -> tuple[int, int]:
    """Mode of one cell and how far it borrows."""
    if value > queues.potential[node, cell]:
        return NO_FIT, 0
    level, entitled = _borrow(tree, queues.height, usage, node, cell, value)
    if value <= max(0, available(tree, usage, node, cell)):
        return FITS, level
    return (WAITS if entitled or value <= tree.subtree[node, cell] else NO_FIT), level


@njit(cache=True, nogil=True)
def _borrow(tree: TreeArrays, height: Int32s, usage: Int64s, node: int, cell: int, value: int) -> tuple[int, bool]:
    """Height of the lowest part of the tree that could hold ``value`` more, and whether that is not all of the tree."""
    parent = tree.parent[node]
    if parent < 0 or usage[node, cell] + value <= tree.subtree[node, cell]:
        return 0, parent >= 0
    rest = value - max(0, tree.local[node, cell] - usage[node, cell])
    while True:
        node, parent = parent, tree.parent[parent]
        if usage[node, cell] + rest <= tree.subtree[node, cell]:
            return height[node], parent >= 0
        if parent < 0:
            return height[node], False
        rest -= max(0, tree.local[node, cell] - usage[node, cell])


def _offsets(lengths: Sequence[int]) -> Int32s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
