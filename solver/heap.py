"""A heap of ends: who holds something until when, the first end on top. Two arrays; the caller keeps their size."""

from __future__ import annotations

from solver.quota import Int64s, inner


@inner
def push(ends: Int64s, holder: Int64s, size: int, end: int, who: int) -> None:
    """Add to a heap that has ``size`` others."""
    at = size
    while at > 0 and ends[(at - 1) // 2] > end:
        ends[at], holder[at] = ends[(at - 1) // 2], holder[(at - 1) // 2]
        at = (at - 1) // 2
    ends[at], holder[at] = end, who


@inner
def pop(ends: Int64s, holder: Int64s, size: int) -> None:
    """Take the first out of a heap that then has ``size`` others."""
    end, at = ends[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and ends[child + 1] < ends[child]:
            child += 1
        if ends[child] >= end:
            break
        ends[at], holder[at] = ends[child], holder[child]
        at = child
    ends[at], holder[at] = end, holder[size]
