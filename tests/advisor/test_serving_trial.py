"""What makes a trial pass, and what ends it early."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.serving_load import Load, Observed, Sample
from advisor.serving_target import NO_SOCKETS
from advisor.serving_trial import GoalWatch, Trial, judged, trial_of
from advisor.success import Service, read_success

LOAD = Load(rate=10.0, seconds=10.0, warm_up=0.0, timeout=5.0, seed=0)


def service(text: str) -> Service:
    return read_success(f"version: 1\nservices: {{s: {text}}}").services["s"]


P90 = service("{goals: {endToEnd: {p90: 1s}}, answered: 0.8}")


def sample(number: int, seconds: float | None, **others) -> Sample:
    plain = {"ttft": seconds, "end_to_end": seconds, "per_token": None, "text": "4", "error": "" if seconds else "429"}
    return Sample(**{"number": number, "request": 0, "due": number / 10, "lag": 0.0, **plain, **others})


def trial(samples: list[Sample], goals: Service = P90, scores=None, planned: int | None = None, hopeless="") -> Trial:
    return judged(1, "", LOAD, Observed(planned or len(samples), samples, 10.0, hopeless), goals, scores)


def test_a_percentile_is_kept_by_so_many() -> None:
    """With p90, ten of a hundred may take longer, eleven may not; one without an answer takes for ever."""
    ten = [sample(k, 2.0 if k % 10 == 0 else 0.5) for k in range(100)]
    assert trial(ten).verdict == "pass"
    assert trial(ten).times["endToEnd"]["p90"] == 500
    eleven = [*ten[:99], sample(99, 2.0)]
    assert trial(eleven).reasons == ("endToEnd p90 is 2s, limit 1s",)
    unanswered = [*ten[:99], sample(99, None)]
    assert trial(unanswered).verdict == "fail"
    assert trial([sample(k, None if k % 9 == 0 else 0.5) for k in range(100)]).times["endToEnd"]["p90"] is None


def test_good_answers() -> None:
    """A good answer came, scores enough, and kept the limit of the highest percentile: goodput counts those."""
    goals = service(
        "{goals: {endToEnd: {p50: 300ms, p90: 1s}}, answered: 0.5, quality: {threshold: 0.5, judge: {kind: exact}}}"
    )
    samples = [sample(0, 0.1), sample(1, 0.9), sample(2, 0.2), sample(3, 1.5), sample(4, None)]
    found = trial(samples, goals, {0: 1.0, 1: 0.6, 2: 0.4, 3: 1.0})
    assert (found.answered, found.good, found.goodput) == (4, 2, 0.2)
    assert found.quality == pytest.approx(3.0 / 5)
    assert found.errors == {"429": 1}


def test_quality_and_times_must_hold_together() -> None:
    """Quick answers that are worse than the threshold fail, and so do good ones that are slow."""
    goals = service("{goals: {endToEnd: {p90: 1s}}, quality: {threshold: 0.9, judge: {kind: exact}}}")
    quick, slow = ([sample(k, seconds) for k in range(100)] for seconds in (0.1, 1.2))
    right, wrong = ({k: float(k % 5 > 0 or good) for k in range(100)} for good in (True, False))
    assert trial(quick, goals, right).verdict == "pass"
    assert trial(quick, goals, wrong).reasons == ("quality is 0.800, threshold 0.9",)
    assert trial(slow, goals, right).reasons == ("endToEnd p90 is 1s200ms, limit 1s",)


def test_what_is_no_result() -> None:
    """Empty answers and, where it is said so, answers that were cut off count as none."""
    samples = [sample(0, 0.1), sample(1, 0.1, text=" "), sample(2, 0.1, finish="length"), sample(3, 0.1, text="no")]
    strict = service("{goals: {endToEnd: {p90: 1s}}, result: {minLength: 1, cutOff: fails}}")
    assert trial(samples, strict).errors == {"empty": 1, "cut off": 1}
    assert trial(samples, strict).reasons[0] == "50.0% of requests got a result, 99.0% must"
    long_ones = service("{goals: {endToEnd: {p90: 1s}}, result: {minLength: 2}}")
    assert trial(samples, long_ones).errors == {"too short": 2, "empty": 1}


def test_goals_of_a_stream() -> None:
    """Time to the first token and between tokens have goals of their own; an answer of one token has no second."""
    goals = service("{goals: {ttft: {p50: 200ms}, perToken: {p50: 50ms}}}")
    quick = [sample(k, 3.0, ttft=0.1, per_token=0.04 if k % 2 else None) for k in range(40)]
    assert trial(quick, goals).verdict == "pass"
    slow = [replace(each, per_token=0.06 if each.per_token else None) for each in quick]
    assert trial(slow, goals).reasons == ("perToken p50 is 60ms, limit 50ms",)


def test_a_queue_that_grows_does_not_pass() -> None:
    """Response times that grow all through a trial fail it, even while they keep their goals; noise does not."""
    draw = np.random.default_rng(3)
    growing = [sample(k, 0.1 + 0.005 * k * draw.uniform(0.8, 1.2)) for k in range(100)]
    assert "does not keep up" in trial(growing).reasons[0]
    steady = [trial([sample(k, 0.1 + draw.exponential(0.1)) for k in range(100)]) for _ in range(50)]
    assert sum(bool(each.reasons) and "keep up" in each.reasons[-1] for each in steady) <= 1


def test_a_generator_that_is_late_spoils_a_trial() -> None:
    """What fails only because this machine sent late is void; what fails by far more than that has failed."""
    late = [sample(k, 1.1, lag=0.3) for k in range(100)]
    found = trial(late)
    assert found.verdict == "void"
    assert found.reasons[0] == "this machine was too slow: up to 300ms late with 99 % of requests"
    assert trial([replace(each, end_to_end=4.0) for each in late]).verdict == "fail"
    assert trial([replace(each, end_to_end=0.9) for each in late]).verdict == "pass"
    watch = GoalWatch(P90, 100)
    for each in late:
        watch.add(each)
    assert not watch.hopeless([])
    goals = service("{goals: {endToEnd: {p90: 1s}}, quality: {threshold: 0.9, judge: {kind: exact}}}")
    bunched = [sample(k, 0.5, lag=0.3 if k % 10 == 0 else 0.0) for k in range(100)]
    assert trial(bunched, goals, {k: float(k % 5 > 0) for k in range(100)}).verdict == "void"
    assert trial(bunched, goals, {k: float(k % 5 > 1) for k in range(100)}).verdict == "fail"


def test_a_machine_without_sockets_spoils_a_trial() -> None:
    """Requests that this machine could not send say nothing about the server."""
    found = trial([sample(k, None, error=NO_SOCKETS) if k % 2 else sample(k, 0.1) for k in range(20)])
    assert (found.verdict, found.reasons[0]) == ("void", "this machine had no sockets left for 10 requests (ulimit -n)")


@given(
    st.lists(st.one_of(st.none(), st.floats(0.01, 3.0)), min_size=1, max_size=60),
    st.sampled_from(["{endToEnd: {p90: 1s}}", "{endToEnd: {p50: 500ms, p99: 2s}}", "{ttft: {p90: 1s}}"]),
    st.sampled_from([0.5, 0.9, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_trial_is_ended_early_only_if_it_must_fail(times: list[float | None], goals: str, answered: float) -> None:
    """Whenever a watch says that goals are out of reach, the trial would have failed when run to its end."""
    asked = service(f"{{goals: {goals}, answered: {answered}}}")
    samples = [sample(k, seconds) for k, seconds in enumerate(times)]
    watch, said = GoalWatch(asked, len(samples)), ""
    for k, each in enumerate(samples):
        said = said or watch.hopeless([((other.end_to_end or 5.0) * 0.9, False) for other in samples[k:]])
        watch.add(each)
    said = said or watch.hopeless([])
    assert bool(said) == any("limit" in why or "result" in why for why in trial(samples, asked).reasons)


def test_a_trial_is_kept_as_data() -> None:
    """What is written of a trial reads as the same trial, and one that was ended early says why."""
    import json

    found = trial([sample(k, 2.0) for k in range(30)], planned=100, hopeless="30 of 100 are late")
    assert found.reasons == ("30 of 100 are late",)
    assert (found.measured, found.planned) == (30, 100)
    again = trial_of(json.loads(json.dumps(found.as_data())))
    assert again == replace(found, reasons=list(found.reasons))
    assert math.isclose(again.goodput, 0.0)
