"""Schedules over instants against a plain restatement: every millisecond tried, nothing remembered between rows."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import requests
from test_schedule import Plainly, by_kueue, length, options_of

from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.problem import NEVER
from solver.rules import Work
from solver.schedule import Scheduler
from solver.search import _Search
from solver.timeline import follow

NO_LIMIT = np.full(3, np.inf)


def plain(problem, asked, rows, floor, order, limit):
    """Start and option of each row: the first millisecond at which one of its options fits as long as it runs."""
    plainly, start, option = Plainly(problem, asked), {}, {}
    floor = floor.copy()
    for row in order:
        queue = rows.queue[row]
        t = max(int(problem.release[row]), int(floor[queue]) if queue >= 0 else 0)
        while row not in start:
            fitting = []
            for o in options_of(problem, row):
                end = t + length(problem, asked, row, o)
                if end <= limit[row] and plainly.fits(row, o, [(k, k + 1) for k in range(t, end)]):
                    fitting.append(o)
            if t > limit[row]:
                break
            chosen = by_kueue(problem, plainly.usage(t, t + 1), row, fitting)
            if chosen is not None:
                start[row], option[row] = t, chosen
                plainly.placed.append((row, chosen, t, t + length(problem, asked, row, chosen)))
                if queue >= 0:
                    floor[queue] = t
            t += 1
    return start, option


@settings(deadline=None, max_examples=40)
@given(requests(rows=8, states=(pb.PENDING, pb.PENDING, pb.RUNNING)), st.randoms(use_true_random=False))
def test_each_row_gets_the_earliest_instant(asked, random):
    """Also when taken up again where two orders begin to differ: start and option are what a plain search finds."""
    problem = decode(asked)
    scheduler = Scheduler(problem)
    if not len(scheduler.ours):
        return
    hunt = _Search(scheduler, Work(problem, scheduler.ours), pb.Policy(), 0)
    limit = hunt.due if random.random() < 0.5 else np.full(len(problem), NEVER)
    board = hunt.board._replace(limit=limit)
    order = scheduler.ours.copy()
    random.shuffle(order)
    for same in (0, random.randrange(len(order))):
        tail = order[same:].copy()
        random.shuffle(tail)
        order[same:] = tail
        placed = follow(board, hunt.line, hunt.marks, order, same, NO_LIMIT, hunt.start, hunt.option, scheduler.stop)
        assert placed >= len(order) - same
        hunt.marks.good[0] = min(hunt.marks.good[0], same // hunt.marks.every + 1)
    start, option = plain(problem, asked, scheduler.rows, scheduler.floor, order, limit)
    assert {int(row): int(hunt.start[row]) for row in order if hunt.start[row] >= 0} == start
    assert {row: int(hunt.option[row]) for row in start} == option
