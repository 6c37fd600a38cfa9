"""Buy, or not: what each cause is told from, and that hardware comes last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from capacity_requests import HOUR, NOW, add, queues
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advise import advise
from advisor.advise_demand import BadReport, Demand, Measured, read_report
from advisor.advise_facts import Cause, Facts, Standing, Sure, Verdict
from advisor.advise_fit import Cheaper, Fit, Spent, fit
from advisor.advise_timing import Timing, past_work, replayed, timing
from advisor.capacity import Capacity, Effort, capacity
from advisor.capacity_past import past_question
from advisor.cost import Use, charge_by_prices
from advisor.cost_prices import read_prices
from advisor.outcomes import Judge
from advisor.serving_report import Point, Price, Report
from advisor.serving_search import Bracket
from advisor.usage import Window, allocate
from cli.advise_serving_print import as_data
from scheduler.family import Family
from scheduler.ledger_entry import Entry, Judgement, Outcome, Run
from scheduler.ledger_entry import Verdict as Good
from scheduler.settings import Settings
from solver.api import planner_pb2 as pb

MINUTE = 60_000


def pairs(gpus: int) -> pb.PlanRequest:
    """Four jobs of two GPUs, submitted so that those due last come first."""
    request = queues({"q": gpus})
    for due in (180, 180, 45, 45):
        add(request, 2, 30 * MINUTE, due * MINUTE)
    return request


def facts(request: pb.PlanRequest, **changes: Any) -> Facts:
    """Of what waits, without a ledger, at 2 an hour."""
    answers = capacity(request, list(request.workloads.id), effort=Effort(2))
    return replace(
        Facts(timing=timing(request, effort=4), capacity=answers, prices=[2.0] * len(answers), currency="EUR"),
        **changes,
    )


def used(granted: float = 100.0, **changes: Any) -> Fit:
    """All of it for results, and busy."""
    return replace(Fit(None, granted, {Use.VERIFIED: granted}, granted, granted, 10, 0, ()), **changes)


# --- timing ------------------------------------------------------------------------------------------------------


def test_start_times_are_the_cause() -> None:
    """In Kueue's order two of four are late on four GPUs, at the right time none: nothing to buy."""
    advice = advise(facts(pairs(4)))
    assert advice.verdict is Verdict.NO
    assert advice.told == (
        "Do not buy: started at the right time, work on today's quota meets all 4 deadlines; "
        "2 would be missed without that."
    )
    (remedy,) = advice.remedies
    assert (remedy.cause, remedy.extra, remedy.cost, remedy.each, remedy.buying) == (Cause.TIMING, 2, 0, 0, False)
    assert [finding.standing for finding in advice.findings] == [Standing.YES, Standing.UNKNOWN, Standing.UNKNOWN]


def test_what_is_left_after_planning_is_bought_last() -> None:
    """On three GPUs one deadline is missed whatever is planned (proved): planning first, and then one more GPU."""
    asked = facts(pairs(3), fit=used())
    assert asked.timing is not None
    assert (len(asked.timing.without), len(asked.timing.planned), asked.timing.least) == (2, 1, 1)
    advice = advise(asked)
    assert (advice.verdict, advice.told.split(" (")[0]) == (
        Verdict.NOT_YET, "Do not buy yet: first start work at the right time"
    )  # fmt: skip
    first, second = advice.remedies
    assert (first.buying, second.buying, second.sure, second.extra) == (False, True, Sure.PROVED, 1)
    assert second.cost == 1 * 3 * 2.0  # one GPU for the three hours until the last deadline


def planned_already(request: pb.PlanRequest, **changes: Any) -> Facts:
    """The same, but work is started by plans: nothing is to be had from timing any more."""
    asked = facts(request, **changes)
    assert asked.timing is not None
    return replace(asked, timing=replace(asked.timing, without=asked.timing.planned))


def test_more_is_bought_when_nothing_cheaper_helps() -> None:
    """Planned, proved to be too little, and what is there brings results: buy one, for one deadline more."""
    advice = advise(planned_already(pairs(3), fit=used()))
    assert advice.verdict is Verdict.YES
    assert advice.told.startswith("Buy: 1 more GPU in flavor gpu of ClusterQueue q for 1 more deadline met; ")


def test_what_one_more_good_result_costs() -> None:
    """One GPU for three hours at 2 for one deadline more; of five results four are good, so 7.5 for one that is."""
    (remedy,) = advise(planned_already(pairs(3), fit=used(verified=4, rejected=1))).remedies
    assert (remedy.each, remedy.each_verified) == (6.0, 7.5)
    (unknown,) = advise(planned_already(pairs(3), fit=used(verified=0))).remedies
    assert (unknown.each, unknown.each_verified) == (6.0, None)


def test_not_while_it_is_unknown_what_gpus_are_used_for() -> None:
    """Without a ledger that may be cheaper to mend; it is said how to find out."""
    advice = advise(planned_already(pairs(3)))
    assert (advice.verdict, "--ledger" in advice.told) == (Verdict.NOT_YET, True)
    assert any("--ledger" in line for line in advice.unknown)


def test_not_while_as_much_goes_in_vain() -> None:
    """Three GPU-hours would be bought; more than that went for work that failed."""
    lost = used(100.0, uses={Use.VERIFIED: 80.0, Use.FAILED: 20.0})
    advice = advise(planned_already(pairs(3), fit=lost))
    assert (advice.verdict, "find out why work fails" in advice.told) == (Verdict.NOT_YET, True)
    assert next(r.extra for r in advice.remedies if not r.buying) == pytest.approx(2)  # ten results from 100 GPU-hours
    idle = used(100.0, busy=50.0)
    assert "leaves GPUs waiting" in advise(planned_already(pairs(3), fit=idle)).told


def test_not_while_nothing_is_proved() -> None:
    """No plan was found that does with three, but no bound says that there is none."""
    asked = planned_already(pairs(3), fit=used())
    unproven = [replace(answer, least=replace(answer.least, at_least=2)) for answer in asked.capacity]
    advice = advise(replace(asked, capacity=unproven))
    assert (advice.verdict, "not proved" in advice.told) == (Verdict.NOT_YET, True)


@settings(max_examples=60)
@given(
    st.integers(0, 3), st.floats(0, 60), st.floats(0, 60), st.booleans(), st.booleans(), st.sampled_from([None, 2.0]),
    st.sampled_from([None, 5.0, 25.0]),
)  # fmt: skip
def test_hardware_comes_last(
    rescued: int, lost: float, idle: float, known: bool, cheaper: bool, price: float | None, rate: float | None
) -> None:
    """Whatever is found: while something without hardware is shown to help against missed deadlines, nobody buys for
    them; remedies come by what one more result costs; and a reason is given."""
    asked = SHORT[0] if SHORT else SHORT.append(planned_already(pairs(3))) or SHORT[0]
    found = used(100.0, uses={Use.VERIFIED: 100 - lost, Use.FAILED: lost}, busy=100 - idle)
    if cheaper:
        found = replace(found, cheaper=(Cheaper("train", "old", 1.0, "new", 2.0, 5),))
    assert asked.timing is not None
    late = replace(asked.timing, without=asked.timing.planned | frozenset(range(rescued)))
    demands = [] if rate is None else [Demand(Measured("chat", 10.0, 11.0, "", 0.1, 0.01, "EUR"), rate, 1)]
    advice = advise(replace(asked, timing=late, fit=found if known else None, prices=[price], demands=demands))
    free = [r for r in advice.remedies if not r.buying and r.sure >= Sure.SHOWN and r.extra]
    if free:
        assert "more GPU" not in advice.told.split(";")[0] or advice.verdict is not Verdict.YES
    if advice.verdict is Verdict.YES:
        assert advice.told.startswith("Buy: ")
        assert known or advice.told.startswith("Buy: 2 more servers")
    each = [r.each for r in advice.remedies if r.each is not None]
    assert each == sorted(each)
    assert len(advice.told) > 20


SHORT: list[Facts] = []
"""A queue that is too small, worked out once."""


# --- the past ----------------------------------------------------------------------------------------------------


def past(uid: str, submitted: int, started: int, ended: int, deadline: int | None, **changes: Any) -> Entry:
    """Two GPUs for some minutes from NOW on."""

    def at(minutes: int | None) -> int | None:
        return None if minutes is None else NOW + minutes * MINUTE

    entry = Entry(
        uid=uid, name=uid, family=Family("team", "lq", "q", "Job", "", "", "train", ""), submitted=at(submitted) or 0,
        updated=at(ended) or 0, started=at(started), ended=at(ended), deadline=at(deadline),
        usage=(("gpu", "nvidia.com/gpu", 2),), gpus=2, flavor="gpu", outcome=Outcome.SUCCEEDED,
        estimate=(ended - started) * MINUTE, runs=(Run(at(started) or 0, None, at(ended), "Finished"),),
    )  # fmt: skip
    return replace(entry, **changes)


def test_the_past_replayed_without_hindsight() -> None:
    """A long job took all room just before an urgent one came: with hindsight it waits, without nobody could know."""
    quota = queues({"q": 2}).quota
    entries = [past("long", 0, 0, 60, 240), past("urgent", 10, 60, 70, 30)]
    question = past_question(quota, entries, NOW, NOW + 120 * MINUTE)
    assert question.missed == {1}
    found = timing(question.request, question.missed, effort=4)
    assert (found.without, found.planned, found.rescued) == ({1}, set(), {1})
    late = replayed(
        question.request, past_work(question.request, entries), NOW + 120 * MINUTE, Settings(), lambda text: None
    )
    assert late == {1}
    assert replace(found, replayed=late).rescued == set()
    assert replace(found, replayed=late).surprised


def test_what_takes_hindsight_is_told_as_such() -> None:
    """Of two that were missed, plans that know estimates only rescue one: nobody is told that planning meets all."""
    two = frozenset({0, 1})
    found = Timing(frozenset(range(4)), frozenset(), two, frozenset(), 0, replayed=frozenset({1}))
    advice = advise(Facts(timing=found, past=True))
    assert advice.told == (
        "Do not buy: with hindsight, started at the right time, work on today's quota meets all 4 deadlines; "
        "2 were missed in fact, and 1 of them would be by plans that know estimates only."
    )
    assert "on the same quota, 0 with hindsight, 1 without: start times cost 1 deadline." in advice.findings[0].told
    certain = advise(Facts(timing=replace(found, replayed=frozenset()), past=True))
    assert "hindsight" not in certain.told


def test_what_gpu_time_went_for() -> None:
    """By what became of it; results by flavor, where one is much cheaper."""
    good = [
        past(
            f"{flavor}{k}",
            k,
            k,
            k + 60,
            None,
            usage=((flavor, "nvidia.com/gpu", 1),),
            gpus=1,
            judgements=(Judgement(NOW, Good.VERIFIED, "carol", ""),),
        )
        for flavor in ("old", "new")
        for k in range(3)
    ]
    bad = past("bad", 0, 0, 60, None, outcome=Outcome.FAILED)
    prices = read_prices("version: 1\ncurrency: EUR\ngpuHour: {old: 1, new: 3, gpu: 2}")
    entries = [*good, bad]
    usage = allocate(entries, Window(NOW, NOW + 2 * HOUR), NOW + 2 * HOUR)
    now = NOW + 2 * HOUR
    found = fit(usage, entries, Judge(), 16.0, charge_by_prices(usage, prices, Judge(), now), now)
    assert (found.granted, found.in_vain, found.verified, found.busy) == (8, 2, 6, None)
    (cheaper,) = found.cheaper
    assert cheaper == Cheaper("team/train", "old", 1.0, "new", pytest.approx(3), 3)
    each, rates = pytest.approx(16 / 6), pytest.approx({"old": 1, "new": 3, "gpu": 2})
    assert found.spent == Spent("price list", "EUR", pytest.approx(16), each, rates, True)
    advice = advise(Facts(fit=found, currency="EUR"))
    assert advice.verdict is Verdict.UNKNOWN
    assert [remedy.name for remedy in advice.remedies] == [
        "run team/train in flavor old rather than new",
        "find out why work fails, is rejected or interrupted",
    ]


def test_gpu_time_of_services_is_not_that_of_results() -> None:
    """A result took ten GPU-hours, however many more a service had."""
    found = used(1100.0, uses={Use.VERIFIED: 1080.0, Use.FAILED: 20.0}, served=1000.0, verified=10)
    assert found.hours_each == 10
    lost = used(100.0, uses={Use.VERIFIED: 40.0, Use.MISSED: 40.0, Use.FAILED: 20.0}, served=60.0, verified=4)
    (remedy,) = advise(Facts(fit=lost)).remedies
    assert remedy.extra == pytest.approx(2), "hours of a service bring no results"


# --- serving -----------------------------------------------------------------------------------------------------


def chat(rate: float, servers: int = 1, **changes: Any) -> Demand:
    """Of a server that takes 10 a second and breaks at 11, on one GPU, a cent for a good answer."""
    return Demand(replace(Measured("chat", 10.0, 11.0, "late", 0.1, 0.01, "EUR"), **changes), rate, servers)


def test_a_service_that_is_asked_for_too_much() -> None:
    """25 a second on one server that takes 10: two more, at what an hour of them costs for what they answer more."""
    advice = advise(Facts(demands=[chat(25)]))
    (remedy,) = advice.remedies
    assert (advice.verdict, remedy.name) == (Verdict.YES, "2 more servers like the one measured for chat")
    assert (remedy.extra, remedy.cost) == (15 * 3600, pytest.approx(0.01 * 10 * 3600 * 2))


def test_a_service_that_can_take_it() -> None:
    """No reason to buy; in between nobody knows; and a server that keeps its goals at no rate is to be mended."""
    assert advise(Facts(demands=[chat(20, 2)])).told == "Do not buy: the servers can take what is asked of them."
    between = advise(Facts(demands=[chat(10.5)]))
    assert (between.verdict, between.findings[1].standing) == (Verdict.UNKNOWN, Standing.UNKNOWN)
    broken = advise(Facts(demands=[chat(25, sustainable=None)]))
    assert (broken.verdict, broken.remedies) == (Verdict.NOT_YET, ())


def test_spare_gpus_go_first() -> None:
    """Deadlines leave GPUs over: those may run the servers."""
    answers: list[Capacity] = list(facts(pairs(8)).capacity)
    advice = advise(Facts(timing=None, capacity=answers, prices=[None], demands=[chat(25)]))
    assert advice.verdict is Verdict.NOT_YET
    assert "first use 2 of the 4 GPUs in flavor gpu of ClusterQueue q that deadlines do not need" in advice.told


def test_what_is_asked_may_not_be_known() -> None:
    """Then nothing is said of the servers but that, and why."""
    advice = advise(Facts(demands=[chat(1), Demand(chat(1).measured, None, 1, why="Prometheus is down")]))
    assert advice.findings[1].standing is Standing.UNKNOWN
    assert "how much is asked of chat: Prometheus is down" in advice.unknown
    assert "asked" not in advice.told


def test_growth_is_told_beside_the_answer() -> None:
    """Ten a second are taken, eight asked, half a one more every week."""
    advice = advise(Facts(demands=[replace(chat(8), growth=0.5)]))
    assert advice.told == (
        "Do not buy: the servers can take what is asked of them, for 4 weeks more if it goes on growing as it did."
    )
    assert "chat: grows by 0.5/s a week; if that goes on, it is more than passed in 4 weeks" in (
        advice.findings[1].evidence
    )
    (remedy,) = advise(Facts(demands=[replace(chat(25), growth=0.5)])).remedies
    assert remedy.buying


def test_money_of_two_currencies_is_not_compared() -> None:
    """The server was measured in EUR, all else is in USD."""
    (remedy,) = advise(Facts(demands=[chat(25)], currency="USD")).remedies
    assert (remedy.cost, "720 EUR, which is not compared with USD" in remedy.evidence) == (None, True)


def test_what_work_has_cost_is_told_by_whoever_was_asked() -> None:
    """And what a price is by."""
    spent = Spent("OpenCost", "EUR", 1900.5, 88.24, {}, False)
    advice = advise(planned_already(pairs(3), fit=used(spent=spent), priced=["OpenCost"]))
    assert (
        "spent: EUR 1,900.50, EUR 88.24 for each result that counts (OpenCost; not for all of the time)"
        in advice.findings[2].evidence
    )
    assert "; 2 an hour each, by OpenCost" in advice.told


def test_reports_of_advise_serving_are_read(tmp_path: Path) -> None:
    """What that command writes; anything else, and a void run, is refused."""
    point = Point(10.0, 2, 0, 9.9, 1.0, None, {}, (), {})
    report = Report(Bracket(10.0, 11.0), 0.1, [point], "late", Price(0.1, 0.01, "EUR", None), 0)
    store: Any = SimpleNamespace(trials=[], fingerprint={}, folder=tmp_path)
    text = json.dumps(as_data(report, store, "chat", "found", void=False))
    assert read_report(text) == chat(1).measured
    with pytest.raises(BadReport, match="void"):
        read_report(json.dumps(as_data(report, store, "chat", "the model changed", void=True)))
    for wrong in ("", "[]", "{}", '{"service": 1}'):
        with pytest.raises(BadReport, match="is not what punctual advise serving"):
            read_report(wrong)


def test_nothing_known_is_no_advice() -> None:
    """And it is said what would tell."""
    advice = advise(Facts())
    assert advice.verdict is Verdict.UNKNOWN
    assert len(advice.unknown) == 2
    assert (
        advise(Facts(timing=Timing(frozenset(), frozenset(), frozenset(), frozenset(), 0))).verdict is Verdict.UNKNOWN
    )
