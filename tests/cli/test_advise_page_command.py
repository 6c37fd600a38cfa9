"""``punctual advise``: one page, the sentence first."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app

SEED = "examples/01-four-jobs"
RESULTS = "examples/05-results"
PAST = ("--export", f"{RESULTS}/ledger.jsonl", "--now", "2026-11-30T00:00:00Z")
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs it where there is no cluster, and nothing is said by the environment."""
    for name in ("PUNCTUAL_LEDGER", "PUNCTUAL_PRICES", "PUNCTUAL_SUCCESS", "PUNCTUAL_PROMETHEUS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(
            app, ["advise", "--effort", "2", *arguments] if arguments[:1] != ("capacity",) else ["advise", *arguments]
        )

    return run


def test_of_what_waits(run: Run) -> None:
    """The sentence first, then the causes, what could be done, what is not known and how it could be."""
    result = run("-f", SEED)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "Do not buy: started at the right time, work on today's quota meets all 4 deadlines; "
        "2 would be missed without that."
    )
    assert [line.split(":")[0] for line in lines if line[:4] in ("TIMI", "SERV", "FIT:")] == [
        "TIMING",
        "SERVING",
        "FIT",
    ]
    assert any("--ledger PATH" in line for line in lines[lines.index("NOT KNOWN") :])


def test_of_the_past_by_a_copy_of_a_ledger(run: Run) -> None:
    """All three causes are looked at, remedies come by what one more result costs, and sources are named."""
    arguments = (*PAST, "--prices", f"{RESULTS}/prices.yaml", "--success", f"{RESULTS}/success.yaml")
    data: dict[str, Any] = json.loads(run(*arguments, "-o", "json").stdout)
    assert data["verdict"] == "no"
    assert [(cause["cause"], cause["standing"]) for cause in data["causes"]] == [
        ("timing", "yes"), ("serving", "unknown"), ("fit", "yes"),
    ]  # fmt: skip
    assert [(r["cause"], r["buying"], r["costPerExtraResult"]) for r in data["remedies"]] == [
        ("timing", False, 0), ("fit", False, 0),
    ]  # fmt: skip
    assert data["sources"]["Prometheus"]["place"] is None
    assert any("--prometheus URL" in line for line in data["unknown"])
    assert {flavor["flavor"] for flavor in data["capacity"]} == {"l4", "a100-mig", "a100"}


def test_of_a_service(run: Run, tmp_path: Path) -> None:
    """What was measured beside what is asked: four deadlines are no reason to buy, forty requests a second are."""
    file = tmp_path / "chat.json"
    each = {"gpuSeconds": 0.4, "cost": 0.0002, "currency": "EUR", "budget": None}
    bracket = {"highestPassing": 10.0, "lowestFailing": 11.0, "width": 0.1}
    file.write_text(
        json.dumps({"service": "chat", "void": False, "broke": "", "bracket": bracket, "perGoodAnswer": each})
    )
    arguments = ("-f", SEED, "--serving", str(file))
    assert run(*arguments, "--demand", "chat=40").stdout.startswith(
        "Buy: 3 more servers like the one measured for chat; measured: one takes 10/s with all goals kept; "
    )
    assert "SERVING: no." in run(*arguments, "--demand", "40x4").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--since", "7d", "-f", SEED), 2, "needs to know where the past is: --ledger PATH, or --export"),
        (("--demand", "40", "-f", SEED), 2, "say what the service can take: --serving FILE"),
        (("--serving", f"{RESULTS}/prices.yaml", "-f", SEED), 1, "is not what punctual advise serving -o json writes"),
        (("--price", "x", "-f", SEED), 2, "x is no price"),
        ((), 2, "no cluster to talk to"),
        (("--export", "no-such-file"), 1, "no-such-file"),
    ],
)
def test_what_is_wrong_is_told(run: Run, arguments: tuple[str, ...], code: int, message: str) -> None:
    """In words, without a traceback."""
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_each_question_is_still_a_command(run: Run) -> None:
    """The page is what ``advise`` says by itself; its help lists the commands."""
    shown = run("--help").stdout
    assert "buy" in shown
    assert "capacity" in shown
    assert run("capacity", "--help").exit_code == 0


def test_the_page_about_it_shows_what_is_printed(run: Run) -> None:
    """The example in docs/advise.md is what the command says."""
    text = Path("docs/advise.md").read_text()
    (block,) = (part for part in text.split("```") if part.startswith("console"))
    command, *expected = block.removeprefix("console\n").splitlines()
    assert command.startswith("$ punctual advise ")
    assert run(*command.split()[3:]).stdout.splitlines() == expected
