"""Reading the plan in force. It may be out of date, or wrong: what makes no sense in it is left out, and noted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from solver.api import planner_pb2 as pb
from solver.problem import MAX_TIME, Options
from solver.quota import Bools, Int32s, Int64s


class Previous(NamedTuple):
    """The plan in force by row of the request, ``int64 [n]``; −1 where there is nothing."""

    start: Int64s
    """From now; one that has passed counts as now."""
    assignment: Int64s
    """Position in its assignments."""
    notes: tuple[str, ...]
    """What was left out."""


def decode_previous(request: pb.PlanRequest, n: int) -> Previous:
    """Read the columns of the plan in force, of which each is used as far as it goes."""
    previous, now = request.previous, request.now_ms
    planned, starts = len(previous.workload), len(previous.start_ms)
    count = min(planned, starts)
    notes = [f"has {planned} workloads and {starts} starts: only the first {count} count"] if planned != starts else []
    row = np.fromiter(previous.workload, np.int64, planned)[:count]
    start = np.fromiter(previous.start_ms, np.int64, starts)[:count]
    assignment = np.full(count, -1, dtype=np.int64)
    known = np.fromiter(previous.assignment, np.int64, len(previous.assignment))
    if len(known) not in (0, planned):
        notes.append(f"has {planned} workloads and {len(known)} assignments: these do not count")
    elif len(known):
        assignment = known[:count]

    def leave_out(wrong: Bools, told: str) -> None:
        if wrong.any():
            notes.append(f"has {np.count_nonzero(wrong)} entries that {told}; they are left out")

    unknown, absurd = row >= n, (start < 0) | (start > now + MAX_TIME)
    leave_out(unknown, "name no workload of the request")
    leave_out(absurd & ~unknown, "start at no instant near now")
    nowhere = assignment >= len(previous.assignments)
    if (nowhere & ~unknown & ~absurd).any():
        notes.append("names assignments that it does not have: these flavors are not known")
    sound = ~unknown & ~absurd
    row, start, assignment = row[sound], start[sound], np.where(nowhere, -1, assignment)[sound]
    twice = len(row) - len(np.unique(row))
    if twice:
        notes.append(f"has {twice} entries for workloads that it has again further on; the last counts")
    result = Previous(
        np.full(n, -1, dtype=np.int64),
        np.full(n, -1, dtype=np.int64),
        tuple(f"the previous plan {note}" for note in notes),
    )
    result.start[row] = np.maximum(0, start - now)
    result.assignment[row] = assignment
    return result


def options_of(
    options: Options, pair: Int32s, assignment: Int64s, held: Iterable[pb.Assignment], resources: int
) -> Int32s:
    """The option of each row that takes the flavors it was planned with: ``int32 [n]``, −1 where none does."""
    cells = [frozenset(f * resources + r for f, r in zip(one.flavors, one.resources, strict=False)) for one in held]
    result = np.full(len(pair), -1, dtype=np.int32)
    known = np.flatnonzero(assignment >= 0)
    both, group = np.unique(pair[known].astype(np.int64) * max(1, len(cells)) + assignment[known], return_inverse=True)
    found = np.full(len(both), -1, dtype=np.int32)
    needs, first, need = options.cell.tolist(), options.first.tolist(), options.need.tolist()
    for k, key in enumerate(both.tolist()):
        kind, wanted = divmod(key, len(cells))
        for option in range(first[kind], first[kind + 1]):
            if cells[wanted] == frozenset(needs[need[option] : need[option + 1]]):
                found[k] = option
                break
    result[known] = found[group.reshape(-1)]
    return result
