"""Whom Kueue evicts, said plainly: the yardstick for :mod:`solver.preemption`.

Works on the tree of :mod:`naive_quota`; candidates are collected from the top of each part of the tree down, and quota
use is counted anew after each removal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from naive_quota import Node

from solver.preemption import Whom


@dataclass(eq=False)
class Holder:
    """Work that holds ``uses`` through ``queue``; part of ``queue.used``."""

    uid: str
    queue: Node
    uses: dict[tuple[str, str], int]
    priority: int = 0
    created: int = 0
    reserved: int = 0
    evicted: bool = False

    def leave(self):
        for cell, amount in self.uses.items():
            self.queue.used[cell] -= amount

    def come_back(self):
        for cell, amount in self.uses.items():
            self.queue.used[cell] += amount


@dataclass
class Asker:
    """Who asks, and who may have to go for it."""

    priority: int = 0
    created: int = 0
    holders: list[Holder] = field(default_factory=list)


def victims(
    queue: Node, asker: Asker, short: set[tuple[str, str]], request: dict[tuple[str, str], int]
) -> list[Holder]:
    """Those who go; none when that is not allowed or does not help."""
    request = {cell: amount for cell, amount in request.items() if amount}
    policy = queue.policy
    own = [h for h in asker.holders if h.queue is queue and allowed(policy.within_queue, asker, h) and holds(h, short)]
    right, others = [], []
    part, entitled, rest = queue, inside(queue, request), leftover(queue, request)
    while part.parent is not None:
        done, part = part, part.parent
        for other in exceeding(part, done, short):
            for h in asker.holders:
                if h.queue is other and allowed(policy.reclaim, asker, h) and holds(h, short):
                    (right if entitled else others).append((h, part))
        entitled = entitled or inside(part, rest)
        rest = leftover(part, rest)

    def tied(h):
        above = policy.threshold is not None and h.priority > policy.threshold
        return not policy.borrowing or h.priority >= asker.priority or above

    def ordered(found):
        found = sorted(found, key=lambda c: c[0].uid)
        return sorted(found, key=lambda c: (not c[0].evicted, c[0].priority, -c[0].reserved))

    lists = [
        [(h, top, False) for h, top in ordered(right)],
        [(h, top, tied(h)) for h, top in ordered(others)],
        [(h, None, False) for h, _ in ordered([(h, None) for h in own])],
    ]
    candidates = [c for found in lists for c in found if c[0].evicted]
    candidates += [c for found in lists for c in found if not c[0].evicted]
    below = all(queue.usage(cell) < queue.quota(cell).nominal for cell in short)
    if not (right or others) or (not policy.borrowing and not below):
        attempts = [True]
    elif not policy.borrowing and not right:
        attempts = [False, True]
    else:
        attempts = [True, False]
    for borrow in attempts:
        gone = []
        for h, top, only_for_own in candidates:
            if top is not None and ((borrow and only_for_own) or not still_exceeding(h.queue, top, short)):
                continue
            h.leave()
            gone.append(h)
            if room(queue, request, borrow):
                needed = gone[-1:]
                for h in reversed(gone[:-1]):
                    h.come_back()
                    if not room(queue, request, borrow):
                        h.leave()
                        needed.append(h)
                for h in needed:
                    h.come_back()
                return needed
        for h in gone:
            h.come_back()
    return []


def allowed(whom: Whom, asker: Asker, holder: Holder) -> bool:
    match whom:
        case Whom.LOWER_PRIORITY:
            return holder.priority < asker.priority
        case Whom.LOWER_OR_NEWER_EQUAL_PRIORITY:
            return (holder.priority, -holder.created) < (asker.priority, -asker.created)
    return whom == Whom.ANY


def holds(holder: Holder, short: set[tuple[str, str]]) -> bool:
    return any(cell in short for cell in holder.uses)


def inside(node: Node, request: dict[tuple[str, str], int]) -> bool:
    """Whether all of a request is within the quota of a node's subtree."""
    return all(node.usage(cell) + amount <= node.subtree(cell) for cell, amount in request.items())


def leftover(node: Node, request: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
    """What a request needs from above a node."""
    return {c: max(0, amount - max(0, node.local(c) - node.usage(c))) for c, amount in request.items()}


def exceeds(node: Node, short: set[tuple[str, str]]) -> bool:
    return any(node.usage(cell) > node.subtree(cell) for cell in short)


def exceeding(top: Node, done: Node, short: set[tuple[str, str]]) -> list[Node]:
    """Queues under a cohort, not under its child ``done``, that exceed their quota, as do all on the way to them."""
    found = []
    for child in top.children:
        if child is not done and exceeds(child, short):
            found += [child] if child.groups is not None else exceeding(child, done, short)
    return found


def still_exceeding(queue: Node, top: Node, short: set[tuple[str, str]]) -> bool:
    while queue is not top:
        if not exceeds(queue, short):
            return False
        queue = queue.parent
    return True


def room(queue: Node, request: dict[tuple[str, str], int], borrow: bool) -> bool:
    return all(
        amount <= max(0, queue.available(cell)) and (borrow or queue.usage(cell) + amount <= queue.quota(cell).nominal)
        for cell, amount in request.items()
    )
