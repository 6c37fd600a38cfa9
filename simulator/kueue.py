"""Kueue's queues and scheduler on a virtual clock: what is tried when, and what it then holds."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.admission import Head, PodSetAssignment, Request, Rules, cycle
from simulator.clock import VirtualClock
from solver.preemption import Holders, going_order
from solver.quota import Int64s, take

BACKOFF = 100
"""Longest pause after a cycle that admitted nothing, in milliseconds; the first is 1 ms, each next twice as long."""


class Pending(NamedTuple):
    """A workload that waits in a ClusterQueue. Sorts as Kueue sorts them."""

    rank: int
    """−priority."""
    age: tuple[str, str]
    """Creation timestamp, then uid."""
    key: str
    queue: str
    """Name of the ClusterQueue."""
    created: int
    """Milliseconds since the Unix epoch."""


@dataclass
class Held:
    """Quota that a workload holds: in which ClusterQueue, and how much by (flavor, resource)."""

    pending: Pending
    """What it was before."""
    amounts: Mapping[tuple[str, str], int]
    since: int
    """Milliseconds since the Unix epoch."""
    evicted: bool = False
    """It holds it until its pods are gone."""

    @property
    def queue(self) -> str:
        """Name of the ClusterQueue."""
        return self.pending.queue


@dataclass
class _Queue:
    heap: list[Pending] = field(default_factory=list)
    """To be tried. What has gone meanwhile stays in it until it comes up."""
    parked: dict[str, Pending] = field(default_factory=dict)
    """Tried without room: out of the heap until the next requeue of its cohort tree."""


class Kueue:
    """The part of Kueue that grants quota.

    Parameters
    ----------
    rules
        The quota tree to begin with.
    request
        What a workload asks for, by key, in terms of the current tree.
    admit
        Told what was admitted, with which flavors.
    refuse
        Told what was tried in vain, and why.
    evict
        Told who has to give its quota back, and for whom: a ClusterQueue. It does so by :meth:`remove`.
    delay, requeue, busy
        Milliseconds from entering the heap to being tried; from freed quota to the requeue batch; for a cycle.
    """

    def __init__(
        self,
        clock: VirtualClock,
        rules: Rules,
        request: Callable[[str], Request],
        admit: Callable[[str, str, tuple[PodSetAssignment, ...]], None],
        refuse: Callable[[str, str], None],
        evict: Callable[[str, str], None],
        *,
        delay: int,
        requeue: int,
        busy: int,
    ) -> None:
        self.held: dict[str, Held] = {}
        self._clock = clock
        self._rules, self._tree = rules, rules.tree
        self._request, self._admit, self._refuse, self._evict = request, admit, refuse, evict
        self._delay, self._requeue, self._busy = delay, requeue, busy
        self._usage: Int64s = rules.tree.no_usage()
        self._queues: dict[str, _Queue] = {}
        self._position = _positions(rules)
        self._pending: dict[str, Pending] = {}
        self._next_cycle: int | None = None
        self._pause = 0
        self._batches: dict[int, int] = {}
        """Requeue batches under way: their instant by root node of the tree."""

    def use(self, rules: Rules) -> None:
        """Go on with another quota tree; what is held goes on counting wherever the tree still knows it."""
        self._rules, self._tree, self._usage = rules, rules.tree, rules.tree.no_usage()
        self._position = _positions(rules)
        for held in self.held.values():
            self._count(held, 1)
        self._batches.clear()
        for name in self._queues:
            self._requeue_tree_of(name)
        self._wake(self._requeue)

    def push(self, pending: Pending) -> None:
        """A workload enters its queue's heap; one that is in it already, or parked, keeps its place."""
        if self._pending.get(pending.key) == pending:
            return
        self.remove(pending.key)
        self._pending[pending.key] = pending
        queue = self._queues.setdefault(pending.queue, _Queue())
        heapq.heappush(queue.heap, pending)
        position = self._position.get(pending.queue)
        if position is not None and self._tree.strict_fifo[position]:
            self._unpark(queue)  # it may be the new head
        self._wake(self._delay)

    def remove(self, key: str) -> None:
        """A workload is finished or gone, or its queue is closed: it waits no more and holds nothing."""
        if (pending := self._pending.pop(key, None)) is not None:
            self._queues[pending.queue].parked.pop(key, None)
        if (held := self.held.pop(key, None)) is not None:
            self._count(held, -1)
            self._requeue_tree_of(held.queue)

    def _count(self, held: Held, sign: int) -> None:
        if not self._counts(held):
            return
        node = int(self._tree.queue_node[self._position[held.queue]])
        for name, amount in held.amounts.items():
            if (cell := self._cell(name)) >= 0:
                take(self._tree.arrays, self._usage, node, cell, sign * amount)

    def _requeue_tree_of(self, name: str) -> None:
        """Try all parked workloads of a cohort tree again; requests within the batch period share the first's batch."""
        queue = self._position.get(name)
        if queue is None or self._tree.queue_node[queue] < 0:
            return
        root = int(self._tree.root[self._tree.queue_node[queue]])
        self._unblock(root, strict_only=True)
        if root not in self._batches:
            self._batches[root] = self._clock.now + self._requeue
            rules = self._rules
            self._clock.after(self._requeue, lambda: self._batch(rules, root))

    def _batch(self, rules: Rules, root: int) -> None:
        if rules is not self._rules:
            return  # the queues were changed meanwhile, and that started batches of its own
        del self._batches[root]
        self._unblock(root, strict_only=False)

    def _unblock(self, root: int, *, strict_only: bool) -> None:
        """Back into the heap with what is parked. The head of a StrictFIFO queue never really leaves it in Kueue: it is
        tried again and again, with the longest back-off, so it finds freed quota without the batch."""
        for name, queue in self._queues.items():
            position = self._position.get(name)
            if position is None or not queue.parked:
                continue
            node = self._tree.queue_node[position]
            if node < 0 or self._tree.root[node] != root or (strict_only and not self._tree.strict_fifo[position]):
                continue
            self._unpark(queue)
            self._wake(BACKOFF if strict_only else 0)

    def _unpark(self, queue: _Queue) -> None:
        for pending in queue.parked.values():
            heapq.heappush(queue.heap, pending)
        queue.parked.clear()

    def _wake(self, delay: int) -> None:
        instant = self._clock.now + delay
        if self._next_cycle is None or instant < self._next_cycle:
            self._next_cycle = instant
            self._clock.at(instant, self._cycle)

    def _cycle(self) -> None:
        if self._next_cycle != self._clock.now:
            return  # an earlier cycle took its place
        self._next_cycle = None
        heads = [head for name in sorted(self._queues) if (head := self._head(name)) is not None]
        if not heads:
            self._pause = 0
            return
        admitted = False
        holders, names = self._holders() if self._rules.evicts else (None, [])
        for outcome in cycle(self._rules, self._usage, heads, holders):
            pending = self._pending[outcome.head.key]
            if outcome.admitted:
                admitted = True
                del self._pending[pending.key]
                amounts: dict[tuple[str, str], int] = {}
                for pod_set in outcome.admitted:
                    for resource, amount in pod_set.usage.items():
                        cell = (pod_set.flavors[resource], resource)
                        amounts[cell] = amounts.get(cell, 0) + amount
                self.held[pending.key] = Held(pending, amounts, self._clock.now)
                self._admit(pending.key, pending.queue, outcome.admitted)
            elif outcome.again:
                heapq.heappush(self._queues[pending.queue].heap, pending)
                for name in (names[holder] for holder in outcome.evicts):
                    if not self.held[name].evicted:
                        self.held[name].evicted = True
                        self._evict(name, pending.queue)
                        self._refuse(pending.key, outcome.message)
            else:
                self._queues[pending.queue].parked[pending.key] = pending
                self._refuse(pending.key, outcome.message)
        self._pause = 0 if admitted else min(BACKOFF, max(1, 2 * self._pause))
        self._wake(self._busy if admitted else self._pause)

    def _holders(self) -> tuple[Holders, list[str]]:
        """Who may be evicted, in the order in which Kueue lets them go; and their keys."""
        there = [(key, held) for key, held in self.held.items() if self._counts(held)]
        priority = np.array([-held.pending.rank for _, held in there], dtype=np.int64)
        since = np.array([held.since // 1000 for _, held in there], dtype=np.int64)
        order = going_order(priority, since, [held.pending.age[1] for _, held in there])
        there = [there[k] for k in order]
        cells = [
            [(self._cell(cell), n) for cell, n in held.amounts.items() if self._cell(cell) >= 0] for _, held in there
        ]
        nodes = [self._tree.queue_node[self._position[held.queue]] for _, held in there]
        return Holders(
            node=np.array(nodes, dtype=np.int32),
            priority=priority[order],
            created=np.array([held.pending.created for _, held in there], dtype=np.int64),
            evicted=np.array([held.evicted for _, held in there], dtype=np.bool_),
            first=np.cumsum([0, *map(len, cells)]).astype(np.int32),
            cell=np.array([cell for held in cells for cell, _ in held], dtype=np.int32),
            amount=np.array([amount for held in cells for _, amount in held], dtype=np.int64),
        ), [key for key, _ in there]

    def _counts(self, held: Held) -> bool:
        """Whether the tree knows the queue of what is held."""
        queue = self._position.get(held.queue)
        return queue is not None and bool(self._tree.queue_node[queue] >= 0)

    def _cell(self, cell: tuple[str, str]) -> int:
        """Position of a (flavor, resource); −1 where the tree does not know it."""
        flavor, resource = cell
        if flavor not in self._tree.flavors or resource not in self._tree.resources:
            return -1
        return self._tree.cell(self._tree.flavors.index(flavor), self._tree.resources.index(resource))

    def _head(self, name: str) -> Head | None:
        """Take the first workload out of a queue's heap; None when there is none, or the queue may not go on."""
        queue, position = self._queues[name], self._position.get(name)
        if position is None or self._tree.queue_node[position] < 0 or self._tree.stopped[position]:
            return None
        if self._tree.strict_fifo[position] and queue.parked:
            return None  # its head is blocked, and nobody passes
        while queue.heap:
            pending = heapq.heappop(queue.heap)
            if self._pending.get(pending.key) is pending:
                request = self._request(pending.key)
                return Head(position, pending.key, -pending.rank, pending.age, pending.created, request)
        return None


def _positions(rules: Rules) -> dict[str, int]:
    return {name: queue for queue, name in enumerate(rules.tree.queue_names)}
