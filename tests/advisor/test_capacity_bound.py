"""The bound on missed deadlines: never more than the best plan misses, and tight where sizes decide."""

import numpy as np
from capacity_requests import add, least_late, queues
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor import capacity_bound
from advisor.capacity_bound import filled
from solver.decode import decode
from solver.schedule import Scheduler

ROWS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=4
)
"""GPUs, duration, due date, release date."""


def bound(rows: list[tuple[int, int, int, int]], gpus: int, *, held: tuple[int, int] | None = None) -> int:
    request = queues({"q": gpus})
    for need, length, due, release in rows:
        add(request, need, length, due, release=release)
    if held:
        kept = request.reservations.add(node="q", flavor=0, resource=0, amount=held[0], start_ms=request.now_ms)
        kept.end_ms = request.now_ms + held[1]
    problem = decode(request)
    return capacity_bound.least_late(Scheduler(problem)) + len(problem.rejected)


@settings(max_examples=20)
@given(ROWS, st.integers(1, 6))
def test_no_schedule_does_better(rows: list[tuple[int, int, int, int]], gpus: int) -> None:
    """Of all schedules none has fewer late than the bound says."""
    possible = [row for row in rows if row[3] + row[1] <= row[2]]
    assert bound(rows, gpus) <= len(rows) - len(possible) + least_late(possible, gpus)


def test_jobs_of_two_use_only_two_of_three() -> None:
    """Quota × time would do for four jobs of 2 GPUs on 3, were it not for their size; and one has to go, not more."""
    rows = [(2, 10, 41, 0)] * 5
    assert (bound(rows, 3), bound(rows, 4)) == (1, 0)


def test_what_must_run_in_the_middle() -> None:
    """Two jobs with some slack must both run around noon: with room for one, one is late."""
    assert bound([(1, 6, 9, 0), (1, 6, 10, 1)], 1) == 1
    assert bound([(1, 6, 12, 0), (1, 6, 13, 1)], 1) == 0


def test_what_is_held_counts() -> None:
    """Room that is taken until then is no room."""
    assert bound([(2, 5, 8, 0)], 4, held=(3, 4)) == 1
    assert bound([(2, 5, 9, 0)], 4, held=(3, 4)) == 0


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_how_much_of_a_room_sizes_fill(sizes: list[int], rooms: list[int]) -> None:
    """The largest sum of some of the sizes that is no more than the room."""
    sums = {0}
    for size in sizes:
        sums |= {total + size for total in sums}
    expected = [max(total for total in sums if total <= room) for room in rooms]
    assert filled(np.array(sizes), np.array(rooms)).tolist() == expected
