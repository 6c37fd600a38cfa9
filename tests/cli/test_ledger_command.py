"""``punctual ledger``: what a user sees of the ledger."""

from __future__ import annotations

import csv
import io
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from scheduler.family import Family
from scheduler.ledger import DeadlineEdit, Entry, Ledger, Outcome, Run

HOUR = 3_600_000
NOW = time.time_ns() // 1_000_000 // 1000 * 1000


def entry(number: int, hours_ago: int, took: int, queue: str = "research") -> Entry:
    """A run of ``took`` milliseconds, estimated at an hour, due two hours after it began."""
    family = Family("team-a", "lq", queue, "Job", "train", "1x(nvidia.com/gpu=2)", "nightly", "")
    began = NOW - hours_ago * HOUR
    due = began + 2 * HOUR
    return Entry(
        uid=f"u{number}", name=f"nightly-{number}", family=family, submitted=began - HOUR, updated=began + took,
        managed=True, deadline=due, planned_start=began, started=began, ended=began + took, flavor="a100", gpus=2,
        usage=(("a100", "nvidia.com/gpu", 2),), estimate=HOUR, estimate_source="punctual.kueue/duration",
        user_estimate=HOUR, outcome=Outcome.SUCCEEDED, reason="Succeeded",
        runs=(Run(began, began, began + took, "Finished"),), deadlines=(DeadlineEdit(began - HOUR, due),),
    )  # fmt: skip


WAITING = Entry(uid="w", name="weekly", family=Family("team-b", "lq", "prod", "Job"), submitted=NOW, updated=NOW)


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    """Thirty runs, one of them late and in another queue, and one Workload that waits."""
    dsn = str(tmp_path / "ledger.db")
    with Ledger(dsn).open() as opened:
        opened.write([entry(number, 40 - number, HOUR // 2 + number * 1000) for number in range(29)])
        opened.write([entry(29, 5, 3 * HOUR, "prod"), WAITING])
    return dsn


def run(*words: str, code: int = 0) -> str:
    """What a command prints; what it says of errors, where it fails."""
    result = CliRunner().invoke(app, ["ledger", *words], env={"PUNCTUAL_LEDGER": "", "COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_show_tells_what_happened_last(ledger: str) -> None:
    """The newest first, a line each, with state and whether it was late."""
    header, first, second, *rest = run("show", "--ledger", ledger, "--limit", "5").splitlines()
    assert header.split()[:2] == ["WORK", "QUEUE"]
    assert "team-b/weekly" in first
    assert first.rstrip().endswith("waiting")
    assert "team-a/nightly-29" in second
    assert second.rstrip().endswith("succeeded, late")
    assert rest[0].rstrip().endswith("succeeded, on time")
    assert len(rest) == 3


def test_show_filters(ledger: str) -> None:
    """By queue, namespace, family and time."""
    objects = json.loads(run("show", "--ledger", ledger, "-q", "prod", "-o", "json"))
    assert [each["name"] for each in objects] == ["weekly", "nightly-29"]
    assert json.loads(run("show", "--ledger", ledger, "-n", "team-b", "-o", "json"))[0]["name"] == "weekly"
    assert len(json.loads(run("show", "--ledger", ledger, "--family", "nightly", "--limit", "99", "-o", "json"))) == 30
    assert len(json.loads(run("show", "--ledger", ledger, "--since", "3h", "-o", "json"))) == 2
    assert run("show", "--ledger", ledger, "-q", "nowhere") == "nothing of that is in the ledger\n"


def test_json_has_all_that_is_known(ledger: str) -> None:
    """Runs, deadlines and usage too, times in RFC 3339 and lengths in seconds."""
    (found,) = json.loads(run("show", "--ledger", ledger, "--family", "nightly", "--limit", "1", "-o", "json"))
    assert (found["duration"], found["estimate"], found["late"]) == (3 * 3600, 3600, True)
    assert found["runs"][0]["ending"] == "Finished"
    assert found["deadlines"][0]["deadline"] == found["deadline"]
    assert found["usage"] == [{"flavor": "a100", "resource": "nvidia.com/gpu", "amount": 2}]
    assert found["started"].endswith("Z")


def test_export_writes_all(ledger: str, tmp_path: Path) -> None:
    """All Workloads, as CSV that any program reads, to a file or the standard output."""
    rows = list(csv.DictReader(io.StringIO(run("export", "--ledger", ledger))))
    assert len(rows) == 31
    assert {row["outcome"] for row in rows} == {"Succeeded", ""}
    file = tmp_path / "out.jsonl"
    run("export", "--ledger", ledger, "-o", "json", "-f", str(file))
    assert [json.loads(line)["uid"] for line in file.read_text().splitlines()] == [row["uid"] for row in rows]


def test_an_anonymous_export_has_no_names(ledger: str) -> None:
    """What is given away says nothing about people, and still tells families apart."""
    text = run("export", "--ledger", ledger, "--anonymise")
    assert not any(name in text for name in ("nightly", "weekly", "team-", "research", "prod"))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len({row["family"] for row in rows if row["family"]}) == 1
    assert len({row["cluster_queue"] for row in rows}) == 2


def test_prune_forgets_what_is_old(ledger: str) -> None:
    """First it says how many, then it does it; what waits stays."""
    assert run("prune", "--ledger", ledger, "--older-than", "20h", "--dry-run") == "20 workloads would be forgotten\n"
    assert run("prune", "--ledger", ledger, "--older-than", "20h") == "20 workloads are forgotten\n"
    assert len(json.loads(run("show", "--ledger", ledger, "--limit", "99", "-o", "json"))) == 11


def test_calibration_tells_how_wrong_estimates_are(ledger: str) -> None:
    """Of runs of about half an hour that were estimated at one: about 0.5; the past alone would have known better."""
    found = json.loads(run("calibration", "--ledger", ledger, "-o", "json"))
    total = found["all"]
    assert total["runs"] == 30
    assert 0.5 < total["medianActualByEstimate"] < 0.52
    assert total["withinEstimate"] == pytest.approx(29 / 30)
    (family,) = found["families"]
    assert family["family"] == "team-a/nightly"
    assert family["coverage"]["0.9"] > 0.8
    table = run("calibration", "--ledger", ledger).splitlines()
    assert table[1].split()[:2] == ["all", "30"]
    assert run("calibration", "--ledger", ledger, "-q", "nowhere") == "nothing has run to its end in this time\n"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show",), 2, "say where the ledger is"),
        (("show", "--ledger", "/nonexistent/ledger.db"), 1, "there is no ledger at /nonexistent/ledger.db"),
        (("show", "--ledger", "mysql://h/d"), 2, "postgresql://"),
        (("show", "--ledger", "postgresql://127.0.0.1:1/d"), 1, "cannot be used"),
        (("show", "--ledger", "LEDGER", "--since", "soon"), 2, "is not a duration"),
        (("export", "--ledger", "LEDGER", "-f", "/nonexistent/x"), 1, "cannot write /nonexistent/x"),
        (("prune", "--ledger", "LEDGER", "--older-than", "-1d"), 2, "lies in the future"),
    ],
)
def test_mistakes_are_said(ledger: str, words: tuple[str, ...], code: int, message: str) -> None:
    """What is wrong, in one line, and an exit code that says whose fault it is."""
    said = run(*(ledger if word == "LEDGER" else word for word in words), code=code)
    assert message in said
    assert said.count("\n") == 1


def test_a_file_that_is_no_ledger_is_said(tmp_path: Path) -> None:
    """Reading sets nothing aside and makes nothing: it tells."""
    file = tmp_path / "ledger.db"
    file.write_text("hello " * 1000)
    assert "not a database" in run("show", "--ledger", str(file), code=1)
    assert list(tmp_path.iterdir()) == [file]
