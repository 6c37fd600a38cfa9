"""Kueue's quota rules once more, as plainly as they can be said: the yardstick for the kernels.

Nothing is shared with them: names instead of positions, recursion instead of arrays, use counted anew each time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from solver.preemption import Preemption
from solver.quota import UNLIMITED, QuotaTree

INFINITE = float("inf")


@dataclass
class Quota:
    """What a node says about one (flavor, resource)."""

    nominal: int = 0
    lending: int | None = None
    borrowing: int | None = None


@dataclass(eq=False, repr=False)
class Node:
    """A Cohort, or a ClusterQueue with its resource groups: ``[(resources, flavors in order)]``."""

    name: str
    parent: Node | None = None
    quotas: dict[tuple[str, str], Quota] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    groups: list[tuple[list[str], list[str]]] | None = None
    try_next: bool = False
    policy: Preemption = field(default_factory=Preemption)
    used: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self):
        if self.parent is not None:
            self.parent.children.append(self)

    def __repr__(self):
        rules = f", groups={self.groups}, try_next={self.try_next}, policy={self.policy}" if self.groups else ""
        quotas = {cell: q for cell, q in self.quotas.items() if q != Quota()}
        return f"Node({self.name!r}, under {self.parent and self.parent.name!r}, {quotas}{rules}, used={self.used})"

    def quota(self, cell):
        return self.quotas.get(cell, Quota())

    def subtree(self, cell):
        return self.quota(cell).nominal + sum(c.subtree(cell) - c.local(cell) for c in self.children)

    def local(self, cell):
        limit = self.quota(cell).lending
        return 0 if limit is None else max(0, self.subtree(cell) - limit)

    def usage(self, cell):
        if self.groups is not None:
            return self.used.get(cell, 0)
        return sum(max(0, c.usage(cell) - c.local(cell)) for c in self.children)

    def available(self, cell):
        if self.parent is None:
            return self.subtree(cell) - self.usage(cell)
        local, usage = self.local(cell), self.usage(cell)
        limit = self.quota(cell).borrowing
        from_above = self.parent.available(cell)
        if limit is not None:
            from_above = min(from_above, self.subtree(cell) - local - max(0, usage - local) + limit)
        return max(0, local - usage) + from_above

    def potential(self, cell):
        if self.parent is None:
            return self.subtree(cell)
        limit = self.quota(cell).borrowing
        most = INFINITE if limit is None else self.subtree(cell) + limit
        return min(self.local(cell) + self.parent.potential(cell), most)

    def height(self):
        if self.groups is not None:
            return 0
        return max([1] * bool(self.children) + [1 + c.height() for c in self.children if c.groups is None], default=0)

    def borrows(self, cell, amount):
        """How far up ``amount`` more is found, and whether that is below the root."""
        if self.parent is None:
            return 0, False
        if self.usage(cell) + amount <= self.quota(cell).nominal:
            return 0, True
        amount -= max(0, self.local(cell) - self.usage(cell))
        cohort = self.parent
        while cohort.usage(cell) + amount > cohort.subtree(cell) and cohort.parent is not None:
            amount -= max(0, cohort.local(cell) - cohort.usage(cell))
            cohort = cohort.parent
        fits = cohort.usage(cell) + amount <= cohort.subtree(cell)
        return cohort.height(), fits and cohort.parent is not None


@dataclass
class PodSet:
    """``count`` pods (``minimum`` at least) that each ask for ``requests`` and cannot use the ``excluded`` flavors."""

    count: int
    requests: dict[str, int]
    excluded: frozenset[str] = frozenset()
    minimum: int | None = None


@dataclass
class Answer:
    """Whether it fits, or would if others were gone; flavors of each pod set by resource; pods; the total."""

    mode: str
    level: int = 0
    flavors: list[dict[str, str]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    total: dict[tuple[str, str], int] = field(default_factory=dict)
    further: dict[tuple[int, int], int] = field(default_factory=dict)
    short: set[tuple[str, str]] = field(default_factory=set)
    victims: list[str] = field(default_factory=list)

    @property
    def good(self):
        return self.mode in ("fits", "preempts")

    @property
    def refused(self):
        """Kueue takes it as fitting, and its own last check says no."""
        return self.mode == "fits" and bool(self.short)


Evict = Callable[[set[tuple[str, str]], dict[tuple[str, str], int]], list]
"""Who would be evicted from the cells that are short, for a request."""

FITS = ["no", "waits", "evicts own", "evicts others", "fits"]
"""How a flavor fits, the worst first."""


def nobody(short, request):
    """No one is evicted."""
    return []


def choose(
    queue: Node, pod_sets: list[PodSet], start: dict[tuple[int, int], int] | None = None, evict: Evict = nobody
) -> Answer:
    """Kueue's attempt: all pods, else as many as fit."""
    start = start or {}

    def assign(counts):
        answer = assign_flavors(queue, pod_sets, counts, start, evict)
        if answer.mode == "waits" and (gone := evict(answer.short, answer.total)):
            answer.mode, answer.victims = "preempts", sorted(h.uid for h in gone)
        return answer

    full = assign([p.count for p in pod_sets])
    steps = sum(p.count - (p.count if p.minimum is None else p.minimum) for p in pod_sets)
    if full.good or not steps:
        return full

    def reduced(step):
        return [p.count - (0 if p.minimum is None else p.count - p.minimum) * step // steps for p in pod_sets]

    best = bisect_left(range(steps + 1), True, key=lambda step: assign(reduced(step)).good)
    if best > steps:
        return full
    partial = assign(reduced(best))
    partial.further = full.further
    return partial


def assign_flavors(
    queue: Node, pod_sets: list[PodSet], counts: list[int], start: dict[tuple[int, int], int], evict: Evict
) -> Answer:
    """Flavors for so many pods of each pod set, pod sets in their order."""
    answer = Answer("fits", counts=counts)
    for i, (pod_set, count) in enumerate(zip(pod_sets, counts, strict=True)):
        request = {r: a * count for r, a in pod_set.requests.items()}
        covered = {r for resources, _ in queue.groups for r in resources}
        if "pods" in covered:
            request["pods"] = count
        request = {r: a for r, a in request.items() if a or r in covered}
        flavors, further, modes = {}, {}, []
        for g, (resources, offered) in enumerate(queue.groups):
            wanted = {r: request.pop(r) for r in resources if r in request}
            if not wanted:
                continue
            found = []
            for position, flavor in enumerate(offered):
                if position < start.get((i, g), 0):
                    continue
                if flavor in pod_set.excluded:
                    continue
                judged = [
                    judge(queue, (flavor, r), answer.total.get((flavor, r), 0) + amount, evict)
                    for r, amount in wanted.items()
                ]
                mode, level = max(judged, key=lambda j: dislike(queue, *j))
                if mode == "no":
                    continue
                found.append((mode, level, flavor))
                enough = mode == "fits" or (mode.startswith("evicts") and queue.policy.stop_search)
                if enough and (level == 0 or not queue.try_next):
                    found = [found[-1]]
                    break
            if not found:
                return Answer("no", answer.level, answer.flavors, counts, answer.total, answer.further)
            mode, level, flavor = min(found, key=lambda f: dislike(queue, *f[:2]))
            flavors |= dict.fromkeys(wanted, flavor)
            further[i, g] = (position + 1) % len(offered)
            modes.append(mode)
            answer.level = max(answer.level, level)
        if request:  # a resource that no group covers
            return Answer("no", answer.level, answer.flavors, counts, answer.total, answer.further)
        if any(mode != "fits" for mode in modes):
            answer.mode = "waits"
        answer.flavors.append(flavors)
        answer.further |= further
        amounts = {r: a * count for r, a in pod_set.requests.items()} | {"pods": count}
        for resource, flavor in flavors.items():
            cell = flavor, resource
            answer.total[cell] = answer.total.get(cell, 0) + amounts[resource]
            if answer.total[cell] > max(0, queue.available(cell)):
                answer.short.add(cell)
    return answer


def dislike(queue: Node, mode: str, level: int):
    """Larger for what Kueue likes less."""
    worse = -FITS.index(mode)
    return (mode == "no", level, worse) if queue.policy.rather_preempt else (mode == "no", worse, level)


def judge(queue: Node, cell: tuple[str, str], amount: int, evict: Evict) -> tuple[str, int]:
    """How so much fits in one (flavor, resource), and how far it is borrowed."""
    if amount > queue.potential(cell):
        return "no", 0
    level, below_root = queue.borrows(cell, amount)
    if amount <= max(0, queue.available(cell)):
        return "fits", level
    if not (amount <= queue.quota(cell).nominal or below_root or queue.policy.borrowing):
        return "no", level
    gone = evict({cell}, {cell: amount})
    if not gone:
        return "waits", level
    for holder in gone:
        holder.leave()
    level, _ = queue.borrows(cell, amount)
    for holder in gone:
        holder.come_back()
    return "evicts own" if any(h.queue is queue for h in gone) else "evicts others", level


def retry(queue: Node, pod_sets: list[PodSet], attempts: int) -> tuple[Answer, int]:
    """Kueue's attempts one after another, each from where the one before stopped."""
    start = {}
    for attempt in range(1, attempts + 1):
        answer = choose(queue, pod_sets, start)
        start = answer.further
        if answer.refused:
            return answer, attempts + 1
        if answer.good or not any(start.values()):
            return answer, attempt
    return answer, attempts + 1


def compile_tree(nodes: list[Node], resources: list[str], flavors: list[str]) -> QuotaTree:
    """The same tree for the kernels. ``nodes`` has parents before children."""
    cells = [(f, r) for f in flavors for r in resources]

    def table(value):
        return np.array([[value(n.quota(c)) for c in cells] for n in nodes], dtype=np.int64).reshape(len(nodes), -1)

    queues = [n for n in nodes if n.groups is not None]
    return QuotaTree(
        resources=tuple(resources),
        flavors=tuple(flavors),
        names=tuple(n.name for n in nodes),
        parent=np.array([-1 if n.parent is None else nodes.index(n.parent) for n in nodes], dtype=np.int32),
        queue_names=tuple(q.name for q in queues),
        queue_node=np.array([nodes.index(q) for q in queues], dtype=np.int32),
        nominal=table(lambda q: q.nominal),
        lending=table(lambda q: UNLIMITED if q.lending is None else q.lending),
        borrowing=table(lambda q: UNLIMITED if q.borrowing is None else q.borrowing),
        groups=tuple(
            tuple((tuple(map(resources.index, r)), tuple(map(flavors.index, f))) for r, f in q.groups) for q in queues
        ),
        strict_fifo=np.zeros(len(queues), dtype=np.bool_),
        try_next_flavor=np.array([q.try_next for q in queues], dtype=np.bool_),
        stopped=np.zeros(len(queues), dtype=np.bool_),
    )
