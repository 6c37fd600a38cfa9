"""Whom would Kueue evict to make room for a request?

Kueue 0.17's preemption (``pkg/scheduler/preemption``, classical) without fair sharing and topology. Candidates are
workloads that hold a (flavor, resource) that is short, and that the policy of the asking ClusterQueue lets it evict:

* in its own queue, by ``withinClusterQueue``;
* in other queues of its tree, by ``reclaimWithinCohort``, where they use more than their nominal quota, and so does
  every cohort between them and the asking queue. Over those the queue has a *right* when the request is within the
  quota of a smaller part of the tree than the one they share: no matter what ``borrowWithinCohort`` says, they go. Over
  the others it has none: they go when the request ends up within the queue's nominal quota, or, with
  ``borrowWithinCohort``, when their priority is lower than the asker's and not above the threshold.

They are removed one after another (already evicted ones first; those the queue has a right over, then other queues',
then its own; lower priority first, then those admitted last) until the request fits; then, last removed first, each is
put back without whom it still fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from solver.quota import Bools, Int8s, Int32s, Int64s, TreeArrays, available, inner, take

NO_THRESHOLD = 1 << 40
"""Above every priority."""


class Whom(IntEnum):
    """Whom a policy lets a workload evict."""

    NEVER = 0
    LOWER_PRIORITY = 1
    LOWER_OR_NEWER_EQUAL_PRIORITY = 2
    ANY = 3


NEVER, LOWER, LOWER_OR_NEWER, ANY = (int(whom) for whom in Whom)


@dataclass(frozen=True)
class Preemption:
    """What a ClusterQueue may do to get quota: ``spec.preemption``, and what ``flavorFungibility`` says about it."""

    within_queue: Whom = Whom.NEVER
    """``withinClusterQueue``."""
    reclaim: Whom = Whom.NEVER
    """``reclaimWithinCohort``."""
    borrowing: bool = False
    """``borrowWithinCohort.policy`` is LowerPriority: it may evict others even if it borrows then."""
    threshold: int | None = None
    """``borrowWithinCohort.maxPriorityThreshold``."""
    stop_search: bool = False
    """``whenCanPreempt`` is MayStopSearch: it evicts in the first flavor in which it can, rather than look further."""
    rather_preempt: bool = False
    """``preference`` is PreemptionOverBorrowing."""


class Policies(NamedTuple):
    """:class:`Preemption` of each ClusterQueue, ``[Q]``."""

    within_queue: Int8s
    reclaim: Int8s
    borrowing: Bools
    threshold: Int64s
    stop_search: Bools
    rather_preempt: Bools


class Holders(NamedTuple):
    """Work that holds quota, ``[W]``, in the order in which Kueue lets it go (:func:`going_order`).

    Holder ``w`` holds ``amount[k]`` of ``cell[k]``, ``k`` from ``first[w]`` to ``first[w + 1]``.
    """

    node: Int32s
    priority: Int64s
    created: Int64s
    """Any unit, but whole seconds as Kueue sees them: it compares no finer."""
    evicted: Bools
    """Evicted already, but still holding its quota."""
    first: Int32s
    cell: Int32s
    amount: Int64s


def pack_policies(policies: Sequence[Preemption]) -> Policies:
    """The policies of all ClusterQueues for the kernels."""
    return Policies(
        within_queue=np.array([p.within_queue for p in policies], dtype=np.int8),
        reclaim=np.array([p.reclaim for p in policies], dtype=np.int8),
        borrowing=np.array([p.borrowing for p in policies], dtype=np.bool_),
        threshold=np.array([NO_THRESHOLD if p.threshold is None else p.threshold for p in policies], dtype=np.int64),
        stop_search=np.array([p.stop_search for p in policies], dtype=np.bool_),
        rather_preempt=np.array([p.rather_preempt for p in policies], dtype=np.bool_),
    )


def going_order(priority: Int64s, reserved: Int64s, uids: Sequence[str]) -> Int64s:
    """In which order holders go: lower priority first, then whose quota was reserved last (in seconds), then by uid."""
    return np.lexsort((np.array(uids, dtype=np.str_), -reserved, priority)).astype(np.int64)


def no_holders() -> Holders:
    """Nobody to evict: then nothing is preempted, whatever the policies are."""
    none = np.zeros(0, dtype=np.int64)
    cells = np.zeros(0, dtype=np.int32)
    return Holders(cells, none, none, np.zeros(0, dtype=np.bool_), np.zeros(1, dtype=np.int32), cells, none)


@inner
def find_victims(
    tree: TreeArrays,
    policies: Policies,
    holders: Holders,
    usage: Int64s,
    queue: int,
    node: int,
    priority: int,
    created: int,
    short: Bools,
    request: Int64s,
    victims: Int32s,
) -> int:
    """How many holders Kueue would evict for a request; 0 when that is not allowed or does not help.

    Parameters
    ----------
    usage
        What is in use. Changed on the way and put back before this returns: not to be shared with another thread.
    queue, node
        The asking ClusterQueue.
    priority, created
        The asking workload's.
    short
        ``bool [C]``: cells of which there is not enough.
    request
        ``int64 [C]``: all that it asks for.
    victims
        ``int32 [W]``: the first so many are filled with the holders to evict.
    """
    if len(holders.node) == 0 or (policies.within_queue[queue] == NEVER and policies.reclaim[queue] == NEVER):
        return 0
    rank = np.full(len(holders.node), -1, dtype=np.int8)
    needs_own = np.zeros(len(holders.node), dtype=np.bool_)
    others, rights = _candidates(
        tree, policies, holders, usage, queue, node, priority, created, short, request, rank, needs_own
    )
    forbidden = not policies.borrowing[queue]
    if others == 0 or (forbidden and not _below_nominal(tree, usage, node, short)):
        first, last = True, True
    elif forbidden and rights == 0:
        first, last = False, True
    else:
        first, last = True, False
    found = 0
    for turn in range(1 if first == last else 2):
        if found == 0:
            borrow = first if turn == 0 else last
            found = _remove_until_fits(tree, holders, usage, node, rank, needs_own, short, request, borrow, victims)
    return found


RIGHT, OTHERS, OWN, KINDS = range(4)
"""Kinds of candidates, in the order in which they go."""


@inner
def _candidates(
    tree: TreeArrays,
    policies: Policies,
    holders: Holders,
    usage: Int64s,
    queue: int,
    node: int,
    priority: int,
    created: int,
    short: Bools,
    request: Int64s,
    rank: Int8s,
    needs_own: Bools,
) -> tuple[int, int]:
    """Candidates: when each goes (−1: not at all), and whether only for nominal quota. How many are of other queues.

    The second number is of those over whom the queue has a right.
    """
    right = _rights(tree, usage, node, request)
    others, rights = 0, 0
    for holder in range(len(holders.node)):
        theirs = holders.priority[holder]
        newer = theirs == priority and created < holders.created[holder]
        own = holders.node[holder] == node
        policy = policies.within_queue[queue] if own else policies.reclaim[queue]
        allowed = policy == ANY or (policy != NEVER and theirs < priority) or (policy == LOWER_OR_NEWER and newer)
        if not allowed or not _holds(holders, holder, short):
            continue
        kind = OWN
        if not own:
            step = _meeting(tree, usage, node, holders.node[holder], short)
            if step < 0:
                continue
            kind = RIGHT if right[step] else OTHERS
            others += 1
            rights += right[step]
            needs_own[holder] = kind == OTHERS and (
                not policies.borrowing[queue] or theirs >= priority or theirs > policies.threshold[queue]
            )
        rank[holder] = kind if holders.evicted[holder] else KINDS + kind
    return others, rights


@inner
def _holds(holders: Holders, holder: int, short: Bools) -> bool:
    found = False
    for k in range(holders.first[holder], holders.first[holder + 1]):
        found = found or short[holders.cell[k]]
    return found


@inner
def _within_quota(tree: TreeArrays, usage: Int64s, node: int, short: Bools) -> bool:
    """Whether a node uses no more than its subtree's quota of what is short."""
    within = True
    for cell in range(len(short)):
        within = within and (not short[cell] or usage[node, cell] <= tree.subtree[node, cell])
    return within


@inner
def _below_nominal(tree: TreeArrays, usage: Int64s, node: int, short: Bools) -> bool:
    """Whether a ClusterQueue uses less than its nominal quota of all that is short."""
    below = True
    for cell in range(len(short)):
        below = below and (not short[cell] or usage[node, cell] < tree.subtree[node, cell])
    return below


@inner
def _rights(tree: TreeArrays, usage: Int64s, node: int, request: Int64s) -> Bools:
    """For each cohort above a queue (its parent first): whether the request is within the quota of a smaller part."""
    depth, above = 0, tree.parent[node]
    while above >= 0:
        depth, above = depth + 1, tree.parent[above]
    right = np.zeros(depth, dtype=np.bool_)
    rest = np.empty(len(request), dtype=np.int64)
    for cell in range(len(request)):
        rest[cell] = request[cell]
    fits = False
    for step in range(depth):
        inside = True
        for cell in range(len(rest)):
            if request[cell] > 0:
                inside = inside and usage[node, cell] + rest[cell] <= tree.subtree[node, cell]
                rest[cell] = max(0, rest[cell] - max(0, tree.local[node, cell] - usage[node, cell]))
        fits = fits or inside
        right[step] = fits
        node = tree.parent[node]
    return right


@inner
def _meeting(tree: TreeArrays, usage: Int64s, node: int, other: int, short: Bools) -> int:
    """Which cohort above ``node`` (0: its parent) is the first one above ``other`` too.

    −1 when there is none, or when something on the way from ``other`` to it uses no more than its quota.
    """
    while other >= 0:
        step, cohort = 0, tree.parent[node]
        while cohort >= 0 and cohort != other:
            step, cohort = step + 1, tree.parent[cohort]
        if cohort == other:
            return step
        if _within_quota(tree, usage, other, short):
            return -1
        other = tree.parent[other]
    return -1


@inner
def _room(tree: TreeArrays, usage: Int64s, node: int, request: Int64s, borrow: bool) -> bool:
    """Whether a request fits now, and without borrowing where that is asked."""
    for cell in range(len(request)):
        if request[cell] > 0:
            if not borrow and usage[node, cell] + request[cell] > tree.subtree[node, cell]:
                return False
            if request[cell] > available(tree, usage, node, cell):
                return False
    return True


@inner
def evict(tree: TreeArrays, holders: Holders, usage: Int64s, holder: int, times: int) -> None:
    """Take what a holder holds out of use (``times`` is 1), or put it back (−1)."""
    for k in range(holders.first[holder], holders.first[holder + 1]):
        take(tree, usage, holders.node[holder], holders.cell[k], -times * holders.amount[k])


@inner
def _remove_until_fits(
    tree: TreeArrays,
    holders: Holders,
    usage: Int64s,
    node: int,
    rank: Int8s,
    needs_own: Bools,
    short: Bools,
    request: Int64s,
    borrow: bool,
    victims: Int32s,
) -> int:
    """One attempt, with borrowing or without: how many victims, 0 when all of them together are not enough."""
    count = 0
    fits = False
    for turn in range(2 * KINDS):
        for holder in range(len(rank)):
            if fits or rank[holder] != turn or (borrow and needs_own[holder]):
                continue
            if holders.node[holder] != node and _meeting(tree, usage, node, holders.node[holder], short) < 0:
                continue
            evict(tree, holders, usage, holder, 1)
            victims[count] = holder
            count += 1
            fits = _room(tree, usage, node, request, borrow)
    for k in range(count - 2, -1, -1):
        if fits:
            evict(tree, holders, usage, victims[k], -1)
            if _room(tree, usage, node, request, borrow):
                count -= 1
                victims[k] = victims[count]
            else:
                evict(tree, holders, usage, victims[k], 1)
    for k in range(count):
        evict(tree, holders, usage, victims[k], -1)
    return count if fits else 0
