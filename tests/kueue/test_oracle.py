"""The real Kueue admits what Punctual says that it admits, on the flavors it says, and nothing else.

Random cases by seed (``--oracle-seed``); a case that disagrees is made smaller and printed as it can be pasted below.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from oracle import Disagreement, Tally, ask, shrink
from oracle_cases import (
    GPU,
    IGNORED,
    SLICE,
    TILE,
    Case,
    Change,
    Cohort,
    Edit,
    End,
    Extras,
    Flavor,
    Group,
    PodSet,
    Queue,
    Submit,
    draw_case,
    draw_preemption,
)

from solver.preemption import Preemption, Whom

pytestmark = pytest.mark.kueue

THREADS = 10
_runs = itertools.count()


def gpus(name: str, cohort: str = "", **nominal: int) -> Queue:
    """A queue with GPUs of some flavors, in order."""
    return Queue(name, cohort, (Group((GPU,), {f: {GPU: (n, None, None)} for f, n in nominal.items()}),))


def both(name: str, gpus: int, cpus: int) -> Queue:
    """A queue with GPUs and CPUs (in units of half a core) of flavor ``a``."""
    return Queue(name, "", (Group((GPU, "cpu"), {"a": {GPU: (gpus, None, None), "cpu": (cpus, None, None)}}),))


A, B = Flavor("a", {"kind": "a"}), Flavor("b", {"kind": "b"})

FIXED = {
    "the second attempt goes on from the next flavor": Case(
        (A, B),
        (),
        (gpus("q", a=2, b=2),),
        (Submit("q", (PodSet(2, {GPU: 1}), PodSet(2, {GPU: 1}, selector={"kind": "a"}))),),
    ),
    "attempts out of step never end": Case(
        (A, B),
        (),
        (gpus("q", a=4, b=4),),
        (Submit("q", (PodSet(3, {GPU: 1}), PodSet(3, {GPU: 1}), PodSet(9, {GPU: 1}))),),
    ),
    "partial admission misses the best number": Case(
        (A, B),
        (),
        (gpus("q", a=4, b=6),),
        (Submit("q", (PodSet(7, {GPU: 1}, minimum=1), PodSet(2, {GPU: 1}, selector={"kind": "a"}))),),
    ),
    "preference fools Kueue: it takes as fitting what it then refuses, for ever": Case(
        (A,),
        (Cohort("c", "", (Group((GPU, "cpu"), {"a": {GPU: (0, None, None), "cpu": (1, None, None)}}),)),),
        (
            Queue(
                "mine",
                "c",
                (Group((GPU, "cpu"), {"a": {GPU: (1, None, None), "cpu": (0, None, None)}}),),
                try_next=True,
                preemption=Preemption(rather_preempt=True),
            ),
            gpus("other", "c", a=0),
        ),
        (Submit("other", (PodSet(1, {GPU: 1}),)), Submit("mine", (PodSet(1, {GPU: 1, "cpu": 1}),))),
    ),
    "preference hides why a pod set does not fit": Case(
        (B, A),
        (Cohort("c", "", (Group((GPU, "cpu"), {"a": {GPU: (1, None, None), "cpu": (4, None, None)}}),)),),
        (
            Queue(
                "other",
                "c",
                (
                    Group(
                        (GPU, "cpu"),
                        {
                            "a": {GPU: (0, None, None), "cpu": (12, None, None)},
                            "b": {GPU: (4, None, None), "cpu": (2, None, None)},
                        },
                    ),
                ),
                try_next=True,
            ),
            Queue(
                "mine",
                "c",
                (
                    Group(
                        (GPU, "cpu"),
                        {
                            "b": {GPU: (1, None, None), "cpu": (4, None, None)},
                            "a": {GPU: (4, None, None), "cpu": (0, 2, None)},
                        },
                    ),
                ),
                try_next=True,
                preemption=Preemption(reclaim=Whom.ANY, rather_preempt=True),
            ),
        ),
        (
            Submit("other", (PodSet(2, {GPU: 2, "cpu": 2}), PodSet(1, {GPU: 1, "cpu": 1}))),
            Submit("other", (PodSet(1, {GPU: 2, "cpu": 2}),), priority=2),
            Submit("other", (PodSet(1, {GPU: 2, "cpu": 2}),), priority=1),
            Submit("mine", (PodSet(1, {GPU: 1, "cpu": 2}), PodSet(1, {GPU: 2, "cpu": 2})), priority=1),
        ),
    ),
    "debt of a cohort eats private quota": Case(
        (A,),
        (Cohort("c"),),
        (
            Queue("mine", "c", (Group((GPU,), {"a": {GPU: (4, None, 0)}}),)),
            Queue("other", "c", (Group((GPU,), {"a": {GPU: (3, None, None)}}),)),
        ),
        (
            Submit("other", (PodSet(3, {GPU: 1}),)),
            Edit(Queue("other", "c", (Group((GPU,), {"a": {GPU: (0, None, None)}}),))),
            Submit("mine", (PodSet(2, {GPU: 1}),)),
            Submit("mine", (PodSet(1, {GPU: 1}),)),
            End(0),
            Submit("mine", (PodSet(3, {GPU: 1}),)),
        ),
    ),
    "defaults of a LimitRange count: a container without requests takes half the quota": Case(
        (A,),
        (),
        (both("q", gpus=4, cpus=2),),
        (
            Submit("q", (PodSet(1, {GPU: 1}),)),
            Submit("q", (PodSet(1, {GPU: 1}),)),
            Submit("q", (PodSet(1, {GPU: 1}),)),
            Submit("q", (PodSet(1, {GPU: 1, "cpu": 0}),)),
        ),
        Extras(default_request={"cpu": 1}),
    ),
    "a default request above a container's own limit: Kueue never admits what the apiserver would run": Case(
        (A,),
        (),
        (both("q", gpus=4, cpus=8),),
        (Submit("q", (PodSet(1, {GPU: 1, "cpu": 2}, limited=False),)), Submit("q", (PodSet(1, {GPU: 3}),))),
        Extras(default={"cpu": 1}, most_of_pod={GPU: 2}),
    ),
    "overhead of a RuntimeClass counts, and so does a change of it": Case(
        (A,),
        (),
        (both("q", gpus=4, cpus=3),),
        (
            Submit("q", (PodSet(2, {GPU: 1, "cpu": 1}, sandboxed=True),)),
            Submit("q", (PodSet(1, {GPU: 1, "cpu": 1}, sandboxed=True),)),
            End(0),
            Change(Extras()),
            Submit("q", (PodSet(3, {GPU: 1, "cpu": 1}, sandboxed=True),)),
        ),
        Extras(overhead={"cpu": 1}),
    ),
    "what Kueue transforms counts transformed, for each pod and rounded up, and what it ignores does not count": Case(
        (A,),
        (),
        (
            Queue("q", "", (Group((GPU, "cpu", TILE), {"a": dict.fromkeys((GPU, "cpu", TILE), (4, None, None))}),)),
            gpus("other", a=4),
        ),
        (
            Submit("q", (PodSet(3, {SLICE: 1}),)),
            Submit("q", (PodSet(1, {SLICE: 3}),)),
            End(0),
            Submit("q", (PodSet(2, {SLICE: 3, IGNORED: 7}),)),
            Submit("q", (PodSet(1, {TILE: 1}),)),
            End(0),
            Submit("q", (PodSet(1, {TILE: 2, "cpu": 3}),)),
            Submit("q", (PodSet(1, {GPU: 1}),)),
            Submit("other", (PodSet(1, {SLICE: 1}),)),
        ),
    ),
}
"""What is surprising about Kueue, and every case that ever disagreed."""


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> str:
    """What the random cases are drawn from."""
    return str(request.config.getoption("--oracle-seed"))


def run(api: Callable[..., Any], cases: Iterator[Case] | list[Case]) -> Tally:
    """Ask all cases, many at a time; the first disagreement is made smaller."""
    number = next(_runs)
    total = Tally()
    with ThreadPoolExecutor(THREADS) as pool:
        for tally in pool.map(lambda pair: ask(api, pair[1], f"oracle-{number}-{pair[0]}-"), enumerate(cases)):
            total += tally
    print(total)
    return total


def told(api: Callable[..., Any], disagreements: list[Disagreement]) -> str:
    """The disagreements, the first one as small as can be made."""
    if not disagreements:
        return ""
    small = shrink(api, disagreements[0], f"oracle-{next(_runs)}-", tries=25)
    return f"{len(disagreements)} disagreements; the first one, made smaller:\n{small}"


def test_kueue_agrees_on_fixed_cases(cluster: Any) -> None:
    """What was surprising once is as expected."""
    tally = run(cluster.api, list(FIXED.values()))
    assert not tally.disagreements, told(cluster.api, tally.disagreements)
    assert tally.counts["on a later attempt"] == tally.counts["partial"] == 1
    assert tally.counts["tried for ever"] == 2
    assert tally.counts["refused"] == 2


def test_kueue_agrees(cluster: Any, seed: str) -> None:
    """A sample of random trees: every verdict of Kueue is what was expected."""
    tally = run(cluster.api, [draw_case(f"{seed}/{k}", steps=12) for k in range(20)])
    assert not tally.disagreements, told(cluster.api, tally.disagreements)
    assert min(tally.counts["admitted"], tally.counts["not admitted"]) > tally.counts["cases"] / 5


def test_kueue_evicts_whom_it_was_expected_to(cluster: Any, seed: str) -> None:
    """A sample of random trees with preemption: what is admitted by evicting whom is as expected."""
    tally = run(cluster.api, [draw_preemption(f"{seed}/{k}", steps=12) for k in range(8)])
    assert not tally.disagreements, told(cluster.api, tally.disagreements)
    assert tally.counts["by eviction"]


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_kueue_evicts_whom_it_was_expected_to_in_many_trees(cluster: Any, seed: str) -> None:
    """A hundred and twenty random trees with preemption: what is admitted by evicting whom is as expected."""
    tally = run(cluster.api, [draw_preemption(f"long/{seed}/{k}", steps=18) for k in range(120)])
    assert not tally.disagreements, told(cluster.api, tally.disagreements)


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_kueue_agrees_on_many_trees(cluster: Any, seed: str) -> None:
    """Two hundred and forty random trees: every verdict of Kueue is what was expected."""
    tally = run(cluster.api, [draw_case(f"long/{seed}/{k}", steps=16) for k in range(240)])
    assert not tally.disagreements, told(cluster.api, tally.disagreements)
    assert tally.counts["refused"]
