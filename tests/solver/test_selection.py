"""Selection and priority rules order work as scheduling theory says."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_requests import add, request

from solver.decode import decode
from solver.greedy import finish
from solver.rules import RULES, Work
from solver.schedule import Scheduler
from solver.selection import Selection, Taste

jobs = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 25)), min_size=1, max_size=6)


@given(jobs)
def test_most_jobs_on_time_on_one_machine(made):
    """On one machine with equal weights selection has as many jobs on time as any order can (Moore and Hodgson)."""
    asked = request({"q": 1})
    for duration, due in made:
        add(asked, 1, duration, due=due)
    scheduler = Scheduler(decode(asked))
    work = Work(scheduler.problem, scheduler.ours)
    order = Selection(scheduler, work).order(Taste(fill=1.0, lead=0.0))
    late = finish(scheduler, scheduler.schedule(order, work.tail()), "").objective.late_weight
    assert late == min(
        sum(end > due for end, (_, due) in zip(itertools.accumulate(d for d, _ in jobs), jobs, strict=True))
        for jobs in itertools.permutations(made)
    )


def test_selection_gives_up_what_is_worth_least():
    """Of two jobs that cannot both be on time, the one that is worth less for its quota and time is given up."""
    asked = request({"q": 4})
    add(asked, 4, 10, due=10, weight=1.0)
    add(asked, 2, 10, due=11, weight=1.0)
    scheduler = Scheduler(decode(asked))
    work = Work(scheduler.problem, scheduler.ours)
    assert Selection(scheduler, work).order(Taste(1.0, 0.0)).tolist() == [1, 0]
    asked.workloads.weight[0] = 3.0
    scheduler = Scheduler(decode(asked))
    work = Work(scheduler.problem, scheduler.ours)
    assert Selection(scheduler, work).order(Taste(1.0, 0.0)).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("rule", "order"),
    [
        ("edf", [2, 1, 0]),
        ("least-slack", [0, 2, 1]),
        ("half-slack", [2, 0, 1]),
        ("weighted-shortest", [1, 2, 0]),
        ("critical-ratio", [0, 2, 1]),
        ("fifo", [1, 0, 2]),
    ],
)
def test_rules(rule, order):
    """Each rule orders by what it is named after."""
    asked = request({"q": 4})
    add(asked, 1, 90, due=100, created=-2)
    add(asked, 2, 10, due=80, weight=3.0, created=-3)
    add(asked, 1, 30, due=50, created=-1)
    problem = decode(asked)
    work = Work(problem, np.arange(3))
    assert work.order(RULES[rule](work)).tolist() == order


def test_tail():
    """Behind work on time: soft work by weight over length, then best effort, the shortest first, then hard work."""
    asked = request({"q": 4})
    add(asked, 1, 5, due=1, hard=True)
    add(asked, 1, 20)
    add(asked, 1, 10)
    add(asked, 1, 10, due=1)
    add(asked, 1, 20, due=1, weight=4.0)
    add(asked, 1, 1, due=0, weight=0.0)
    work = Work(decode(asked), np.arange(6))
    assert work.tail().tolist() == [4, 3, 5, 2, 1, 0]
