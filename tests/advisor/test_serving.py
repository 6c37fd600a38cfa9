"""Whole runs against servers with a known weakness; short ones, so that only what is certain is asserted."""

import asyncio
import gzip
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving_servers import Handler, Heard, options, queue, reply, serving

from advisor.serving import CannotMeasure, Options, _next, measure
from advisor.serving_report import Hardware, report
from advisor.serving_search import Rules
from advisor.serving_store import Changed, Store
from advisor.serving_trial import Trial
from advisor.success import read_success

GOALS = "{goals: {endToEnd: {p90: 1s}}, timeout: 5s}"


def run(asked: Options, folder: Path) -> tuple[str, Heard]:
    heard = Heard()
    with Store(folder) as store:
        return asyncio.run(measure(asked, store, heard)).why, heard


def labels(wrong: int) -> Handler:
    """Answers at once, and wrongly one time in so many; never for 0."""
    served: list[int] = []

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        served.append(asked["n"])
        await reply(writer, {"label": -1 if wrong and len(served) % wrong == 0 else asked["n"]})

    return handle


def test_an_overloaded_queue_fails_and_a_run_goes_on(tmp_path: Path) -> None:
    """A queue fails far above its limit and passes far below; all is kept; the next run starts where this one ended."""
    with serving(queue(2, lambda: 0.05, room=8)) as url:
        why, heard = run(options(url, GOALS, start=400.0, trials=1), tmp_path)
        assert why == "--max-trials 1 is used up"
        assert [(trial.rate, trial.verdict) for trial in heard.trials] == [(400, "fail")]
        assert heard.trials[0].early
        assert heard.trials[0].errors["503"] > 10
        _, heard = run(options(url, GOALS, start=400.0, least=200.0, trials=2), tmp_path)
        assert [(trial.rate, trial.verdict) for trial in heard.trials] == [(200, "fail")]
        _, heard = run(options(url, GOALS, start=10.0, trials=1), tmp_path / "other")
        assert [(trial.rate, trial.verdict) for trial in heard.trials] == [(10, "pass")]
    with gzip.open(tmp_path / "other" / "samples" / "0001.jsonl.gz", "rt") as file:
        kept = [json.loads(line) for line in file]
    assert [sample["number"] for sample in kept] == list(range(4))
    assert all(sample["endToEnd"] >= 0.05 and sample["answer"] == '{"done": true}' for sample in kept)


def test_quality_fails_where_times_hold(tmp_path: Path) -> None:
    """A server that answers quickly but wrongly fails by its quality, though no goal of time is missed."""
    goals = (
        "{goals: {endToEnd: {p90: 1s}}, quality: {threshold: 0.9, judge: {kind: exact, field: label}},"
        " budget: {costPerResult: 0.01, currency: EUR}}"
    )
    profile = "\n".join(f'{{"body": {{"n": {n}}}, "expected": {n}}}' for n in range(20))
    with serving(labels(0)) as good, serving(labels(4)) as bad:
        _, heard = run(options(good, goals, profile, start=40.0, trials=2, most=40.0), tmp_path / "good")
        _, worse = run(options(bad, goals, profile, start=80.0, trials=1), tmp_path / "bad")
    assert [trial.verdict for trial in heard.trials] == ["pass", "pass"]
    (failed,) = worse.trials
    assert failed.verdict == "fail"
    assert failed.reasons == ("quality is 0.750, threshold 0.9",)
    assert (failed.good, failed.answered) == (24, 32)
    service = read_success(f"version: 1\nservices: {{s: {goals}}}").services["s"]
    price = report(heard.trials, service, 0.1, Hardware(2, 1.8, "EUR")).price
    assert price is not None
    assert price.gpu_seconds == pytest.approx(2 / heard.trials[0].goodput, rel=0.05)
    assert price.cost == pytest.approx(price.gpu_seconds / 2000)
    assert price.allowed == 0.01


def test_a_target_that_does_not_answer(tmp_path: Path) -> None:
    """Without a result when there is no load at all nothing is measured, and it is said what came instead."""

    async def busy(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await reply(writer, b"come back later", "429 Too Many Requests")

    with serving(busy) as url, pytest.raises(CannotMeasure, match=r"without any load: 429: come back later"):
        run(options(url, GOALS), tmp_path / "busy")
    with pytest.raises(CannotMeasure, match="no connection"):
        run(options("http://127.0.0.1:9", GOALS), tmp_path / "nobody")


def test_a_judge_that_crashes_under_way(tmp_path: Path) -> None:
    """Its trial counts for nothing but is kept; the run ends and says why, and can go on later."""
    judge = tmp_path / "judge.py"
    judge.write_text(
        "import sys\nlines = list(sys.stdin)\nassert len(lines) < 4, 'no memory'\nprint('1\\n' * len(lines))"
    )
    command = json.dumps([sys.executable, str(judge)])
    goals = GOALS[:-1] + f", quality: {{threshold: 0.5, judge: {{kind: command, command: {command}}}}}}}"
    with serving(queue(9, lambda: 0.0)) as url:
        with pytest.raises(CannotMeasure, match=r"failed with exit code 1(?s:.*)no memory"):
            run(options(url, goals, trials=2), tmp_path / "run")
        judge.write_text("import sys\nfor line in sys.stdin: print(1)")
        _, heard = run(options(url, goals, trials=2), tmp_path / "run")
    assert [trial.verdict for trial in heard.trials] == ["pass", "pass"]
    with Store(tmp_path / "run") as store:
        assert [trial.verdict for trial in store.trials] == ["void", "pass", "pass"]


def test_a_change_voids_the_run(tmp_path: Path) -> None:
    """When the server says that it is another one than before, the run ends, is void, and stays so."""
    served: list[str] = []
    profile = '{"prompt": "2+2?"}'

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked["_path"] == "/v1/models":
            return await reply(
                writer, {"data": [{"id": "big" if len(served) > 6 else "small", "created": len(served)}]}
            )
        if asked["_path"] == "/version":
            return await reply(writer, b"", "404 Not Found")
        served.append(asked["model"])
        return await reply(writer, {"choices": [{"message": {"content": "4"}}]})

    with serving(handle) as url:
        asked = options(url, GOALS, profile, model="small", start=4.0, trials=5)
        with pytest.raises(Changed, match=r'models: was .*"small".*, is .*"big"'):
            run(asked, tmp_path)
        with pytest.raises(Changed):
            run(asked, tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["void"]


def test_a_server_that_is_busy_has_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not say what it is, for the moment, is asked again; if it never does the run ends, not void."""
    monkeypatch.setattr("advisor.serving_fingerprint._PAUSES", (0.0, 0.01, 0.01))
    asked_for: list[str] = []

    async def handle(asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if asked["_path"] == "/v1/models":
            asked_for.append(asked["_path"])
            if len(asked_for) == 2 or len(asked_for) > 4:
                return await reply(writer, b"busy", "503 Service Unavailable")
            return await reply(writer, {"data": [{"id": "small"}]})
        if asked["_path"] == "/version":
            return await reply(writer, b"", "404 Not Found")
        return await reply(writer, {"choices": [{"message": {"content": "4"}}]})

    with serving(handle) as url:
        asked = options(url, GOALS, '{"prompt": "2+2?"}', model="small", start=4.0, trials=5)
        with pytest.raises(CannotMeasure, match="the target cannot be asked for /v1/models: 503"):
            run(asked, tmp_path)
    with Store(tmp_path) as store:
        assert [trial.verdict for trial in store.trials] == ["pass", "pass", "pass"]
        assert not store.void


def test_a_busy_machine_ends_a_run_and_may_try_again() -> None:
    """Three trials at a rate that this machine has spoilt are enough; a later run gives it three more."""
    rules = Rules(4.0, 0.1, 100.0, 0.1, 40)
    void = [replace(a_trial(k), verdict="void") for k in range(3)]
    assert _next(void[:2], 0, rules).rate == 4.0
    assert _next(void, 0, rules).why == "this machine is too slow to send 4 requests a second"
    assert _next(void, 3, rules).rate == 4.0
    assert _next([*void, a_trial(3)], 3, rules).rate == 8.0


def a_trial(number: int) -> Trial:
    return Trial(number, 4.0, "", 0, 1.0, 4, 4, 4, 4, None, {}, {}, {}, 1.0, 0.0, "", "pass", ())


def test_lengths_of_trials() -> None:
    """A trial lasts as long as is asked, longer where its percentiles need more requests, but not for ever."""
    asked = options(
        "http://127.0.0.1:9", "{goals: {ttft: {p50: 1s}, endToEnd: {p99: 3s}}}", seconds=60.0, longest=600.0
    )
    assert [round(asked.length(rate)) for rate in (100.0, 10.0, 1.0)] == [60, 100, 600]
