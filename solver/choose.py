"""Would Kueue admit this now, with which flavors, and would it evict somebody for it?

Kueue 0.17's flavor assignment (``pkg/scheduler/flavorassigner``) without topology and fair sharing:

* pod sets in their order, greedily: what an earlier one took counts for the later ones, and is never given back;
* for each resource group of the ClusterQueue that the pod set needs, one flavor for all its resources in that group;
* flavors in the queue's order, but not those that node labels or taints rule out;
* ``whenCanBorrow: MayStopSearch`` (the default) takes the first flavor in which all fits, borrowed or not;
  ``TryNextFlavor`` the first that fits without borrowing, else the one that borrows least far (the earlier of equals);
* a flavor in which it would fit after evictions (:mod:`solver.preemption`) comes after one in which it fits, unless
  ``whenCanPreempt`` or ``preference`` says otherwise; rather evict others than work of its own queue;
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

from solver.preemption import Holders, Policies, Preemption, evict, find_victims, no_holders, pack_policies
from solver.quota import Bools, Int32s, Int64s, QuotaTree, TreeArrays, available, inner, take

PODS = "pods"
"""The resource that counts pods; Kueue adds it to every request of a queue that covers it."""


class Mode(IntEnum):
    """How well a request fits; larger is better."""

    NO_FIT = 0
    """Not now, and nothing is kept for it."""
    WAITS = 1
    """Would fit within what the queue is entitled to if others were gone. Kueue keeps quota for it within a cycle."""
    PREEMPTS = 2
    """Kueue evicts others for it, and admits it when they are gone."""
    FITS = 3
    """Fits now."""


NO_FIT, WAITS, PREEMPTS, FITS = (int(mode) for mode in Mode)

ATTEMPTS = 40
"""More attempts than that for one workload, and Kueue goes on for ever."""

# How well a flavor fits, in Kueue's finer terms.
_NONE, _NO_CANDIDATES, _EVICTS_OWN, _EVICTS_OTHERS, _FIT = range(5)


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
    policies: Policies
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
    """What :func:`choose` found; overwritten by each call."""

    flavor: Int32s
    """``int32 [pod sets, groups]``: flavor by pod set of the shape and resource group of the queue; −1 where none."""
    fits: Bools
    """``bool [pod sets, groups]``: Kueue takes that flavor as fitting, which does not say that it does: see
    :func:`_refused`."""
    pods: Int64s
    """``int64 [pod sets]``: pods of each pod set; smaller than asked for under partial admission."""
    total: Int64s
    """``int64 [C]``: what it takes of each cell, all pod sets together."""
    start: Int32s
    """``int32 [pod sets, groups]``: position in the group's flavors from which the search began."""
    further: Int32s
    """``int32 [pod sets, groups]``: from where Kueue's next cycle goes on; 0 where it begins anew."""
    unused: Int32s
    """Room for what partial attempts find in its place, which does not count."""
    short: Bools
    """``bool [C]``: chosen cells of which there is not enough."""
    holders: Holders
    """Who may be evicted."""
    victims: Int32s
    """``int32 [W]``: holders that would be evicted, −1 behind the last one."""


class _Asker(NamedTuple):
    """Who asks: ClusterQueue and shape, and what decides whom it may evict."""

    queue: int
    shape: int
    priority: int
    created: int


class PodSet(Protocol):
    """A pod set of a request: the proto's, or anything alike."""

    count: int
    min_count: int
    resources: Sequence[int]
    amounts: Sequence[int]
    excluded_flavors: Sequence[int]


def pack_queues(tree: QuotaTree, preemption: Sequence[Preemption] = ()) -> Queues:
    """The tree's ClusterQueues for the kernels. A frozen one has no groups.

    ``preemption`` is what each queue may do to others; nothing, where it is left out.
    """
    first, flavor_first = [0], [0]
    flavors: list[int] = []
    group = np.full((len(tree.queue_names), len(tree.resources)), -1, dtype=np.int32)
    for queue, groups in enumerate(tree.groups):
        for covered, offered in groups:
            group[queue, list(covered)] = len(flavor_first) - 1
            flavors += offered
            flavor_first.append(len(flavors))
        first.append(len(flavor_first) - 1)
    return Queues(
        node=tree.queue_node,
        first=np.array(first, dtype=np.int32),
        flavor_first=np.array(flavor_first, dtype=np.int32),
        flavor=np.array(flavors, dtype=np.int32),
        group=group,
        try_next=tree.try_next_flavor,
        policies=pack_policies(preemption or [Preemption()] * len(tree.queue_names)),
        height=heights(tree),
        potential=tree.potential,
        resources=len(tree.resources),
        free=tree.resources.index(PODS) if PODS in tree.resources else -1,
    )


def heights(tree: QuotaTree) -> Int32s:
    """How far up each node is: ``int32 [N]``, 0 for a ClusterQueue."""
    height = np.zeros(len(tree.parent), dtype=np.int32)
    queue_nodes = set(tree.queue_node.tolist())
    for node in range(len(tree.parent) - 1, -1, -1):
        if (parent := tree.parent[node]) >= 0:
            height[parent] = max(height[parent], 1, 0 if node in queue_nodes else height[node] + 1)
    return height


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


def blank(queues: Queues, shapes: Shapes, holders: Holders | None = None) -> Choice:
    """Room for the answer about any queue and any shape. One for each thread.

    ``holders`` are who may be evicted; their use is part of the ``usage`` that is asked about. Without, nobody is.
    """
    pod_sets = max(np.diff(shapes.first), default=0)
    groups = max(np.diff(queues.first), default=0)
    cells = queues.potential.shape[1]
    holders = holders or no_holders()
    return Choice(
        flavor=np.full((pod_sets, groups), -1, dtype=np.int32),
        fits=np.zeros((pod_sets, groups), dtype=np.bool_),
        pods=np.zeros(pod_sets, dtype=np.int64),
        total=np.zeros(cells, dtype=np.int64),
        start=np.zeros((pod_sets, groups), dtype=np.int32),
        further=np.zeros((pod_sets, groups), dtype=np.int32),
        unused=np.zeros((pod_sets, groups), dtype=np.int32),
        short=np.zeros(cells, dtype=np.bool_),
        holders=holders,
        victims=np.full(len(holders.node), -1, dtype=np.int32),
    )


@njit(cache=True, nogil=True)
def choose(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    queue: int,
    shape: int,
    choice: Choice,
    priority: int = 0,
    created: int = 0,
) -> tuple[int, int]:
    """Whether Kueue would admit a request now, on its first attempt.

    ``priority`` and ``created`` (in the unit of :class:`solver.preemption.Holders`) decide whom it may evict; ``usage``
    is changed on the way then, and put back: no other thread may look at it.

    Returns the :class:`Mode` and how far it borrows (the height of the cohort that has the room, 0: within the queue's
    own nominal quota). ``choice`` has the flavors, pods, totals and victims; those of the attempt when it does not fit.
    """
    mode, level, _ = retry(tree, queues, shapes, usage, queue, shape, choice, 1, priority, created)
    return mode, level


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
    priority: int = 0,
    created: int = 0,
) -> tuple[int, int, int]:
    """Like :func:`choose`, but with the attempts that Kueue makes in the cycles that follow, ``attempts`` at most.

    A workload of which a part found a flavor that is not the last one goes back into the queue at once, and is tried
    from the next flavor on. Returns mode, level and the number of attempts, ``attempts + 1`` when more would follow.
    When there is no end to it, that workload stays at the head of its queue, and nothing behind it is ever looked at.
    """
    _begin(choice)
    mode, level, attempt = NO_FIT, 0, 0
    asker = _Asker(int(queue), int(shape), int(priority), int(created))
    while attempt < attempts:
        attempt += 1
        mode, level = _attempt(tree, queues, shapes, usage, asker, choice)
        if _refused(choice, mode):
            return NO_FIT, level, attempts + 1
        if mode >= PREEMPTS or not _go_on(choice):
            return mode, level, attempt
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


@inner
def _attempt(
    tree: TreeArrays, queues: Queues, shapes: Shapes, usage: Int64s, asker: _Asker, choice: Choice
) -> tuple[int, int]:
    """One attempt of Kueue: all pods, else (where the request allows it) as many as fit."""
    offset, last = shapes.first[asker.shape], shapes.first[asker.shape + 1]
    steps = 0
    for pod_set in range(offset, last):
        steps += shapes.pods[pod_set] - shapes.min_pods[pod_set]
    # All pods first; then a binary search for the smallest reduction that fits; then that one, or again all pods.
    mode, level = NO_FIT, 0
    step, low, high = 0, 0, steps + 1
    whole, searching = True, True
    while searching:
        for pod_set in range(offset, last):
            slack = shapes.pods[pod_set] - shapes.min_pods[pod_set]
            choice.pods[pod_set - offset] = shapes.pods[pod_set] - slack * step // max(1, steps)
        # What a reduced attempt found does not count for where the next cycle goes on.
        mode, level = _try(tree, queues, shapes, usage, asker, choice, choice.further if whole else choice.unused)
        if whole:
            whole, searching = False, mode < PREEMPTS and steps > 0
        elif low == high:
            searching = False
        elif mode >= PREEMPTS:
            high = step
        else:
            low = step + 1
        step = (low + high) // 2 if low < high or low <= steps else 0
    return mode, level


@inner
def _try(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    asker: _Asker,
    choice: Choice,
    further: Int32s,
) -> tuple[int, int]:
    """Flavors for ``choice.pods`` of each pod set; where they are short of quota, whom to evict for all of it."""
    mode, level = _assign(tree, queues, shapes, usage, asker, choice, further)
    victims = 0
    if mode == WAITS and len(choice.victims) > 0:
        victims = find_victims(
            tree,
            queues.policies,
            choice.holders,
            usage,
            asker.queue,
            queues.node[asker.queue],
            asker.priority,
            asker.created,
            choice.short,
            choice.total,
            choice.victims,
        )
    for k in range(victims, len(choice.victims)):
        choice.victims[k] = -1
    return PREEMPTS if victims > 0 else mode, level


@inner
def _assign(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    asker: _Asker,
    choice: Choice,
    further: Int32s,
) -> tuple[int, int]:
    """Flavors for ``choice.pods`` of each pod set, from ``choice.start`` on, and what is short; nobody is evicted."""
    _clear(choice, further)
    mode, level = FITS, 0
    queue = asker.queue
    first, node = queues.first[queue], queues.node[queue]
    for pod_set in range(shapes.first[asker.shape], shapes.first[asker.shape + 1]):
        row = pod_set - shapes.first[asker.shape]
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            group, amount = queues.group[queue, shapes.resource[k]], shapes.amount[k] * choice.pods[row]
            if group < 0 and (amount == 0 or shapes.resource[k] == queues.free):
                continue
            if group >= 0 and choice.flavor[row, group - first] >= 0:
                continue
            flavor, fit, far, position = -1, _NONE, 0, 0
            if group >= 0:
                flavor, fit, far, position = _pick(tree, queues, shapes, usage, asker, group, pod_set, choice, row)
            if fit == _NONE:
                for column in range(further.shape[1]):
                    further[row, column] = 0
                return NO_FIT, level
            mode, level = FITS if fit == _FIT and mode == FITS else WAITS, max(level, far)
            choice.flavor[row, group - first] = flavor
            choice.fits[row, group - first] = fit == _FIT
            further[row, group - first] = position
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            group = queues.group[queue, shapes.resource[k]]
            if group >= 0:
                cell = choice.flavor[row, group - first] * queues.resources + shapes.resource[k]
                choice.total[cell] += shapes.amount[k] * choice.pods[row]
                if choice.total[cell] > max(0, available(tree, usage, node, cell)):
                    choice.short[cell] = True
    return mode, level


@inner
def _refused(choice: Choice, mode: int) -> bool:
    """Whether Kueue's last check before it admits fails: then it tries again at once, and for ever.

    With ``preference: PreemptionOverBorrowing`` it takes a flavor as fitting of which one resource must be borrowed and
    another is short.
    """
    short = False
    for cell in range(len(choice.short)):
        short = short or choice.short[cell]
    return short and mode == FITS


@inner
def _begin(choice: Choice) -> None:
    """Search from the first flavor on."""
    for row in range(choice.start.shape[0]):
        for column in range(choice.start.shape[1]):
            choice.start[row, column] = 0


@inner
def _go_on(choice: Choice) -> bool:
    """Search from where the last attempt stopped; False when it stopped at the end."""
    left = False
    for row in range(choice.start.shape[0]):
        for column in range(choice.start.shape[1]):
            choice.start[row, column] = choice.further[row, column]
            left = left or choice.further[row, column] > 0
    return left


@inner
def _clear(choice: Choice, further: Int32s) -> None:
    """Nothing is chosen."""
    for cell in range(len(choice.total)):
        choice.total[cell], choice.short[cell] = 0, False
    for row in range(further.shape[0]):
        for column in range(further.shape[1]):
            choice.flavor[row, column], further[row, column] = -1, 0


@inner
def _pick(
    tree: TreeArrays,
    queues: Queues,
    shapes: Shapes,
    usage: Int64s,
    asker: _Asker,
    group: int,
    pod_set: int,
    choice: Choice,
    row: int,
) -> tuple[int, int, int, int]:
    """Flavor of one resource group for one pod set, how it fits and borrows, and where the next cycle would go on."""
    queue = asker.queue
    rather = queues.policies.rather_preempt[queue]
    best, best_fit, best_level = -1, _NONE, 0
    position = queues.flavor_first[group] + choice.start[row, group - queues.first[queue]]
    last = queues.flavor_first[group + 1]
    while position < last:
        flavor = queues.flavor[position]
        position += 1
        if shapes.excluded[pod_set, flavor]:
            continue
        fit, level = _FIT, 0
        for k in range(shapes.request_first[pod_set], shapes.request_first[pod_set + 1]):
            if queues.group[queue, shapes.resource[k]] == group and fit != _NONE:
                cell = flavor * queues.resources + shapes.resource[k]
                amount = choice.total[cell] + shapes.amount[k] * choice.pods[row]
                other, far = _fit(tree, queues, usage, asker, choice, cell, amount)
                if _better(rather, fit, level, other, far):
                    fit, level = other, far
        if _stops(queues.try_next[queue], queues.policies.stop_search[queue], fit, level):
            best, best_fit, best_level = flavor, fit, level
            break
        if _better(rather, fit, level, best_fit, best_level):
            best, best_fit, best_level = flavor, fit, level
    further = position - queues.flavor_first[group] if position < last else 0
    return best, best_fit, best_level, further


@inner
def _better(rather_preempt: bool, fit: int, level: int, other: int, far: int) -> bool:
    """Whether one fit is preferred to another."""
    if fit == _NONE or other == _NONE:
        return fit != _NONE
    if rather_preempt and level != far:
        return level < far
    return fit > other or (fit == other and level < far)


@inner
def _stops(try_next: bool, stop_search: bool, fit: int, level: int) -> bool:
    """Whether Kueue looks at no further flavor."""
    if fit <= _NO_CANDIDATES or (level > 0 and try_next):
        return False
    return fit == _FIT or stop_search


@inner
def _fit(
    tree: TreeArrays,
    queues: Queues,
    usage: Int64s,
    asker: _Asker,
    choice: Choice,
    cell: int,
    amount: int,
) -> tuple[int, int]:
    """How one cell fits, and how far it borrows, after evictions where there have to be some."""
    queue, node = asker.queue, queues.node[asker.queue]
    if amount > queues.potential[node, cell]:
        return _NONE, 0
    level, entitled = _borrow(tree, queues.height, usage, node, cell, amount)
    if amount <= max(0, available(tree, usage, node, cell)):
        return _FIT, level
    if not (entitled or amount <= tree.subtree[node, cell] or queues.policies.borrowing[queue]):
        return _NONE, level
    if len(choice.holders.node) == 0:
        return _NO_CANDIDATES, level
    short = np.zeros(len(choice.total), dtype=np.bool_)
    request = np.zeros(len(choice.total), dtype=np.int64)
    short[cell], request[cell] = True, amount
    victims = find_victims(
        tree,
        queues.policies,
        choice.holders,
        usage,
        queue,
        node,
        asker.priority,
        asker.created,
        short,
        request,
        choice.victims,
    )
    if victims == 0:
        return _NO_CANDIDATES, level
    own = False
    for k in range(victims):
        own = own or choice.holders.node[choice.victims[k]] == node
        evict(tree, choice.holders, usage, choice.victims[k], 1)
    level, _ = _borrow(tree, queues.height, usage, node, cell, amount)
    for k in range(victims):
        evict(tree, choice.holders, usage, choice.victims[k], -1)
    return _EVICTS_OWN if own else _EVICTS_OTHERS, level


@inner
def _borrow(tree: TreeArrays, height: Int32s, usage: Int64s, node: int, cell: int, amount: int) -> tuple[int, bool]:
    """Height of the lowest part of the tree that could hold ``amount`` more, and whether there is more above."""
    parent = tree.parent[node]
    if parent < 0 or usage[node, cell] + amount <= tree.subtree[node, cell]:
        return 0, parent >= 0
    rest = amount - max(0, tree.local[node, cell] - usage[node, cell])
    while True:
        node, parent = parent, tree.parent[parent]
        if usage[node, cell] + rest <= tree.subtree[node, cell]:
            return height[node], parent >= 0
        if parent < 0:
            return height[node], False
        rest -= max(0, tree.local[node, cell] - usage[node, cell])


def _offsets(lengths: Sequence[int]) -> Int32s:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
