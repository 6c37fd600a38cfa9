"""``punctual advise usage``, ``outcomes`` and ``cost`` on the example's ledger."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from advisor.usage_busy import ACTIVE
from cli.advise import app
from scheduler.annotations import parse_instant
from scheduler.ledger import Ledger
from scheduler.settings import HOUR
from tests.advisor.fake_opencost import fake_opencost
from tests.advisor.fake_prometheus import fake_prometheus
from tests.advisor.work import work

EXAMPLE = Path(__file__).parents[2] / "examples" / "05-results"
WEEK = ["-f", str(EXAMPLE / "ledger.jsonl"), "--until", "2026-11-30T00:00:00Z", "--since", "7d"]
SUCCESS = ["--success", str(EXAMPLE / "success.yaml")]
PRICES = ["--prices", str(EXAMPLE / "prices.yaml")]
NOWHERE = {f"PUNCTUAL_{name}": "" for name in ("LEDGER", "SUCCESS", "PRICES", "PROMETHEUS", "OPENCOST")} | {
    "COLUMNS": "200"
}


def run(*words: str, code: int = 0) -> Result:
    """One command."""
    result = CliRunner().invoke(app, [*words], env=NOWHERE)
    assert result.exit_code == code, result.output
    return result


def data(*words: str, code: int = 0) -> Any:
    """What it prints for machines."""
    return json.loads(run(*words, "-o", "json", code=code).stdout)


def test_usage_says_what_was_allocated() -> None:
    """A sentence first, the largest queue first, and which source is missing."""
    result = run("usage", *WEEK)
    sentence, _, header, first, *_ = result.stdout.splitlines()
    assert sentence.startswith("526.6 GPU-hours were allocated from 2026-11-23T00:00:00Z to 2026-11-30T00:00:00Z")
    assert header.split()[:2] == ["QUEUE", "ALLOCATED"]
    assert first.split()[:2] == ["serving", "336.0"]
    assert "no Prometheus: how busy GPUs were is not known" in result.stderr


def test_usage_for_machines_has_all_groupings() -> None:
    """Each adds up to the same."""
    found = data("usage", *WEEK)
    assert set(found["by"]) == {"queue", "team", "workload", "flavor", "hour"}
    for rows in found["by"].values():
        assert sum(row["allocatedGpuHours"] for row in rows) == pytest.approx(
            found["total"]["allocatedGpuHours"], abs=1e-3
        )
    assert found["total"]["busyGpuHours"] is None
    assert found["sources"]["Prometheus"]["complete"] is False


def test_usage_of_a_queue_and_as_csv() -> None:
    """Only that queue, a line for each row."""
    lines = list(
        csv.DictReader(io.StringIO(run("usage", *WEEK, "-q", "nightly", "--by", "workload", "-o", "csv").stdout))
    )
    assert len(lines) == 7
    assert {line["key"].split("-")[0] for line in lines} == {"vision/train"}


def test_outcomes_says_how_many_count() -> None:
    """And why others do not, and what waits for a verdict."""
    result = run("outcomes", *WEEK, *SUCCESS)
    assert result.stdout.startswith("14 of 21 pieces of work that ended from ")
    assert "1 late, 1 rejected, 3 unjudged, 1 failed, 1 deleted. 18 of 20 deadlines were met." in result.stdout
    assert "67% of 6 (wanted: 95%)" in result.stdout
    assert "speech/eval-11f3: punctual outcome NAME verified|rejected" in result.stderr
    found = data("outcomes", *WEEK, *SUCCESS)
    (nightly,) = (each for each in found["by"]["task"] if each["key"] == "nightly-training")
    assert (nightly["verified"], nightly["late"], nightly["rejected"], nightly["failed"]) == (3, 1, 1, 1)
    assert nightly["onTimeKept"] is False
    assert found["unjudged"] == ["speech/eval-61f3", "speech/eval-60f3", "speech/eval-11f3"]


def test_outcomes_without_success_yaml_goes_by_verdicts() -> None:
    """And says so."""
    result = run("outcomes", *WEEK)
    assert result.stdout.startswith("14 of 21 ")
    assert "no success.yaml: only verdicts and deadlines of the work itself count" in result.stderr


def test_cost_says_what_a_result_costs() -> None:
    """All money by results that count; what is idle too; rows add up to the total."""
    result = run("cost", *WEEK, *PRICES, *SUCCESS)
    assert "for each result that counts" in result.stdout
    found = data("cost", *WEEK, *PRICES, *SUCCESS)
    whole = found["total"]
    assert (found["currency"], found["difference"], whole["results"]) == ("EUR", 0.0, 14)
    factor = whole["total"] / (whole["total"] - whole["uses"]["idle"])
    serving = next(row["total"] for row in found["by"]["task"] if row["key"] == "chat")
    assert whole["perResult"] == pytest.approx((whole["total"] - whole["uses"]["idle"] - serving) * factor / 14)
    assert whole["uses"]["interrupted"] == pytest.approx(4 * 2 * 2.2)
    for rows in found["by"].values():
        assert sum(row["total"] for row in rows) == pytest.approx(whole["total"], abs=1e-3)
    (nightly,) = (each for each in found["by"]["task"] if each["key"] == "nightly-training")
    assert nightly["perResult"] == pytest.approx(nightly["total"] * factor / 3)
    lines = list(csv.DictReader(io.StringIO(run("cost", *WEEK, *PRICES, "-o", "csv").stdout)))
    assert sum(float(line["idle"]) for line in lines) == pytest.approx(whole["uses"]["idle"], abs=1e-3)


def test_idle_costs_are_of_no_queue() -> None:
    """For one queue alone what is idle is left out, and said."""
    result = run("cost", *WEEK, *PRICES, "-q", "nightly")
    assert "(idle)" not in result.stdout
    assert "idle GPUs are left out" in result.stderr


def test_an_export_is_not_of_now() -> None:
    """What ran when it was made is counted until now, unless it is said until when; that is said."""
    assert "says nothing about the time since it was made" in run("usage", *WEEK[:2]).stderr
    assert "says nothing about the time" not in run("usage", *WEEK).stderr


def test_a_flavor_without_a_price_is_partial(tmp_path: Path) -> None:
    """The rest is printed, the exit code says that it is not all."""
    prices = tmp_path / "prices.yaml"
    prices.write_text("version: 1\ncurrency: USD\ngpuHour: {l4: 1}\n")
    result = run("cost", *WEEK, "--prices", str(prices), code=3)
    assert "USD " in result.stdout
    assert "a100 has no price" in result.stderr


def test_a_ledger_is_read_as_well(tmp_path: Path) -> None:
    """SQLite or PostgreSQL in place of an export."""
    with Ledger(str(tmp_path / "ledger.db")).open() as ledger:
        ledger.write([work(deadline=3, verdict="verified")])
    words = ["--ledger", str(tmp_path / "ledger.db"), "--until", "2026-12-01T00:00:00Z", "--since", "1d"]
    assert data("usage", *words)["total"]["allocatedGpuHours"] == 4.0
    assert data("outcomes", *words)["total"]["verified"] == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["usage"], 2, "say where the ledger is"),
        (["usage", "--ledger", "/nowhere/ledger.db"], 1, "there is no ledger at /nowhere/ledger.db"),
        (["usage", "-f", "/nowhere/export"], 1, "/nowhere/export: No such file"),
        (["usage", *WEEK[:2], "--until", "tomorrow"], 2, "--until: \"tomorrow\" is not a time"),
        (["usage", *WEEK, "--since", "0s"], 2, "--since: \"0s\" is not positive"),
        (["usage", *WEEK, "--gpu-share", "x"], 2, "--gpu-share: 'x': write RESOURCE=FRACTION"),
        (["usage", *WEEK, "--success", str(EXAMPLE / "prices.yaml")], 1, "currency: is not known"),
        (["cost", *WEEK], 2, "say what GPUs cost: --opencost URL, or a price list"),
        (["cost", *WEEK, "--opencost", "ftp://x"], 2, "OpenCost: write its address as http://host:port"),
        (["cost", *WEEK, *PRICES, "--currency", "euro"], 2, "--currency: euro is no code of a currency"),
        (["usage", *WEEK, "--prometheus", "http://"], 2, "Prometheus: write its address as http://host:port"),
        (["usage", *WEEK, "--timeout", "soon"], 2, '--timeout: "soon" is not a duration'),
        (["cost", *WEEK, "--prices", str(EXAMPLE / "success.yaml")], 1, "tasks: is not known"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(words: list[str], code: int, said: str) -> None:
    """In one line, without a traceback."""
    assert said in run(*words, code=code).stderr


def test_nothing_in_the_window_is_no_error() -> None:
    """It is said."""
    before = ["-f", WEEK[1], "--until", "2026-01-01T00:00:00Z"]
    assert run("usage", *before).stdout.startswith("No GPU was allocated from ")
    assert run("outcomes", *before).stdout.startswith("Nothing ended from ")
    assert data("cost", *before, *PRICES)["total"]["uses"]["idle"] > 0


def test_cost_by_opencost() -> None:
    """By pod, CPU and idle included; it adds up to OpenCost's own sum, and productive needs a Prometheus."""
    with fake_opencost() as opencost, fake_prometheus() as prometheus:
        begin = parse_instant("2026-11-23T19:00:00Z")
        opencost.add("vision", "train-28900-bcdf5", begin, begin + 6 * HOUR, 10.0, gpus=4)
        opencost.add("", "", begin, begin + 24 * HOUR, 1.0, name="cluster-one/__idle__")
        pod = {"exported_namespace": "vision", "exported_pod": "train-28900-bcdf5", "Hostname": "n"}
        for gpu in "0123":
            prometheus.gauge(ACTIVE, 0.5, begin, begin + 6 * HOUR, every=300, UUID=gpu, **pod)
        window = ["-f", WEEK[1], "--until", "2026-11-25T00:00:00Z", "--since", "2d", "--opencost", opencost.url]
        words = ["cost", *window, "--currency", "EUR", "--prometheus", prometheus.url]
        found = data(*words)
        result = run(*words)
        assert run("cost", *window).stdout.startswith("84.00 was spent")
    assert (found["source"], found["currency"], found["sourceTotal"], found["difference"]) == (
        "OpenCost",
        "EUR",
        84.0,
        0.0,
    )
    whole = found["total"]
    assert (whole["uses"]["verified"], whole["uses"]["idle"]) == (60.0, 24.0)
    assert whole["efficiency"] == pytest.approx(30 / 84)
    assert "EUR 84.00 was spent" in result.stdout
    assert "Productive: 36%." in result.stdout


def test_cost_without_opencost_is_partial_and_the_price_list_stands_in() -> None:
    """It is down: exit code 3 without a price list; with one in the same currency all is told."""
    gone = ["--opencost", "http://127.0.0.1:1"]
    result = run("cost", *WEEK, *gone, code=3)
    assert "OpenCost http://127.0.0.1:1 does not answer" in result.stderr
    result = run("cost", *WEEK, *gone, *PRICES, "--currency", "EUR")
    assert "(price list)" in result.stdout
    assert "the price list stands in" in result.stderr
    assert "they are left out, as the price list is in EUR" in run("cost", *WEEK, *gone, *PRICES, code=3).stderr


def test_usage_of_one_queue_gives_no_other_work_away() -> None:
    """Pods of other queues are not taken for pods of nobody."""
    with fake_prometheus() as prometheus:
        begin = parse_instant("2026-11-23T09:00:00Z")
        pod = {"namespace": "speech", "pod": "eval-00f3-bcdf5", "UUID": "1"}
        prometheus.gauge(ACTIVE, 1.0, begin, begin + 2 * HOUR, **pod)
        found = data("usage", *WEEK, "-q", "daytime", "--prometheus", prometheus.url)
        assert found["total"]["productiveGpuHours"] == pytest.approx(2)
        found = data("usage", *WEEK, "-q", "nightly", "--prometheus", prometheus.url)
    assert (found["total"]["busyGpuHours"], found["total"]["busyElsewhereGpuHours"]) == (0, 0)


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path) -> None:
    """A queue that is written wrong, a window that is over, a copy without work: nobody takes that for idle GPUs."""
    told = "has no work of ClusterQueue nightyl in that time; there is work of daytime, nightly, serving"
    for command in ("usage", "outcomes"):
        assert told in run(command, *WEEK, "-q", "nightyl").stderr
    later = run("usage", "-f", str(EXAMPLE / "ledger.jsonl"), "--until", "2026-11-20T00:00:00Z")
    assert "has no work in that time; the newest is of 2026-11-29T" in later.stderr
    ahead = run("usage", *WEEK[:2], "--until", "2100-01-01T00:00:00Z", code=2)
    assert "7d before 2100-01-01T00:00:00Z is still to come" in ahead.stderr
    (tmp_path / "empty.jsonl").write_text("")
    assert "empty.jsonl has no work at all" in run("usage", "--export", str(tmp_path / "empty.jsonl")).stderr


def test_an_opencost_that_is_down_has_not_said_that_nothing_was_spent() -> None:
    """It is not known, and its error is told once."""
    result = run("cost", *WEEK, "--opencost", "http://127.0.0.1:1", code=3)
    assert result.stdout.startswith("What was spent from 2026-11-23T00:00:00Z to 2026-11-30T00:00:00Z is not known")
    assert result.stderr.count("does not answer") == 1


def test_a_price_list_has_its_own_currency() -> None:
    """Another one would convert nothing."""
    assert "says in which OpenCost counts" in run("cost", *WEEK, *PRICES, "--currency", "USD", code=2).stderr


def test_mistakes_in_files_are_told_with_their_place() -> None:
    """As editors and compilers write it."""
    result = run("usage", *WEEK, "--success", str(EXAMPLE / "prices.yaml"), code=1)
    assert "prices.yaml:3: currency: is not known; allowed here:" in result.stderr
