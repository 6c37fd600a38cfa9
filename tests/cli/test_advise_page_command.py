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

from advisor.advise_requests import COUNTERS
from advisor.usage_export import read_export
from cli.main import app
from scheduler.annotations import parse_instant
from tests.advisor.fake_opencost import fake_opencost
from tests.advisor.fake_prometheus import serving
from tests.advisor.test_advise_requests import Rates

SEED = "examples/01-four-jobs"
RESULTS = "examples/05-results"
PAST = ("--export", f"{RESULTS}/ledger.jsonl", "--now", "2026-11-30T00:00:00Z")
END = parse_instant("2026-11-30T00:00:00Z")
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Runs it where there is no cluster, and nothing is said by the environment."""
    for name in ("PUNCTUAL_LEDGER", "PUNCTUAL_PRICES", "PUNCTUAL_SUCCESS", "PUNCTUAL_PROMETHEUS", "PUNCTUAL_OPENCOST"):
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


def test_money_by_opencost(run: Run) -> None:
    """What an hour is charged at there is what one more would cost, CPUs and memory with it."""
    with fake_opencost() as fake:
        for entry in read_export(Path(RESULTS) / "ledger.jsonl"):
            for number, each in enumerate(entry.runs, 4):
                cost, end = 2.75 * entry.gpus, each.ended or END
                pod = entry.name if entry.family.kind == "Pod" else f"{entry.name}-bcdf{number}"
                fake.add(entry.family.namespace, pod, each.started, end, cost, entry.gpus)
        arguments = ("--success", f"{RESULTS}/success.yaml", "--opencost", fake.url, "--currency", "EUR", "-o", "json")
        result = run(*PAST, *arguments)
        data: dict[str, Any] = json.loads(result.stdout)
        alone = run("-f", SEED, "--opencost", fake.url)
    assert result.exit_code == 0, result.stderr
    assert (data["currency"], data["spent"]["source"], data["spent"]["complete"]) == ("EUR", "OpenCost", True)
    assert data["spent"]["perGpuHour"]["a100"] == pytest.approx(2.75)
    assert {each["flavor"]: each["pricePerHour"] for each in data["capacity"]} == {
        "a100": pytest.approx(2.75), "l4": pytest.approx(2.75), "a100-mig": None,
    }  # fmt: skip
    assert not any("what a GPU-hour costs" in line for line in data["unknown"])
    assert any("a100-mig costs" in line for line in data["unknown"]), "of slices OpenCost does not tell"
    (fit,) = (cause for cause in data["causes"] if cause["cause"] == "fit")
    assert any(line.startswith("spent: EUR ") and line.endswith("(OpenCost)") for line in fit["evidence"])
    assert "what GPUs cost, by OpenCost: it is asked about the past, with --ledger PATH" in alone.stdout


def test_sources_that_do_not_answer_are_told_on_the_page(run: Run) -> None:
    """What they would have told is unknown, which the exit code says too; a price list stands in."""
    down = ("--prometheus", "http://127.0.0.1:1", "--opencost", "http://127.0.0.1:1")
    result = run(*PAST, *down)
    assert result.exit_code == 3
    unknown = result.stdout.partition("NOT KNOWN")[2]
    assert "Prometheus http://127.0.0.1:1 does not answer" in unknown
    assert "OpenCost http://127.0.0.1:1 does not answer" in unknown
    assert "--prometheus URL" not in unknown
    data = json.loads(
        run(*PAST, *down[2:], "--currency", "EUR", "--prices", f"{RESULTS}/prices.yaml", "-o", "json").stdout
    )
    assert data["spent"]["source"] == "price list"
    assert data["capacity"][0]["pricePerHour"] is not None
    data = json.loads(
        run(*PAST, *down[2:], "--currency", "USD", "--prices", f"{RESULTS}/prices.yaml", "-o", "json").stdout
    )
    assert data["spent"] is None or data["spent"]["currency"] == "USD"


def test_a_price_that_the_list_does_not_have_is_named(run: Run) -> None:
    """A list of other flavors is no answer, and it is not asked for another one."""
    result = run("-f", SEED, "--prices", f"{RESULTS}/prices.yaml")
    assert "what a GPU-hour in flavor gpu costs: --price gpu=2.50, or in the price list" in result.stdout


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


def measured(folder: Path) -> str:
    """A server that takes ten a second, in a file."""
    file = folder / "chat.json"
    bracket = {"highestPassing": 10.0, "lowestFailing": 11.0, "width": 0.1}
    told = {"service": "chat", "void": False, "broke": "", "bracket": bracket, "perGoodAnswer": None}
    file.write_text(json.dumps(told))
    return str(file)


def test_demand_by_a_prometheus(run: Run, tmp_path: Path) -> None:
    """Asked for the pods that success.yaml names, at their busiest. It takes no cluster; servers may be said."""
    arguments = ("--serving", measured(tmp_path), "--success", f"{RESULTS}/success.yaml")
    fake = Rates()
    with serving(fake, lambda path, query: fake.answer(query)):
        for pod in ("chat-a", "chat-b"):
            fake.pods[COUNTERS[0], pod] = lambda at: 4.0 + at % 7200 / 7200
        result = run(*arguments, "--prometheus", fake.url)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Do not buy: the servers can take what is asked of them.")
        assert "chat: 9.917/s are asked of 2 servers; one takes 10/s, 11/s is too much" in result.stdout
        assert 'by sum by (pod) (rate(vllm:request_success_total{namespace=~"chat"}[5m]))' in result.stdout
        assert "deadlines: no cluster to talk to" in result.stdout
        assert "SERVING: no." in run(*arguments, "--prometheus", fake.url, "--demand", "chat=x1").stdout
        own = run(*arguments[:2], "--prometheus", fake.url, "--demand-query", "chat=sum(rate(other_total[5m]))")
        assert own.stdout.count("has nothing for sum(rate(other_total[5m])) in this time") == 1
        assert "how much is asked of chat: Prometheus" in own.stdout
        assert own.exit_code == 3


def test_a_service_that_nobody_knows_the_demand_of(run: Run, tmp_path: Path) -> None:
    """Is not taken for one that has enough servers."""
    result = run("--serving", measured(tmp_path), "--success", f"{RESULTS}/success.yaml", "--prometheus", "127.0.0.1:1")
    assert (result.exit_code, "SERVING: unknown. How much is asked is not known." in result.stdout) == (3, True)
    assert result.stdout.count("does not answer") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--prometheus", "http://p"), "say which requests are those of chat: --success FILE with services.chat"),
        ((), "say how much is asked of chat: --demand chat=RATE, or where to look: --prometheus URL"),
        (("--demand", "chat=x"), "chat=x is no rate"),
        (("--demand", "chat=40x0"), "is no rate"),
        (("--demand", "talk=40"), "talk was not measured; there are: chat"),
        (("--demand-query", "requests_total"), "counts all requests since a server started"),
        (("--demand", "4", "--currency", "EUR"), "--currency: says in which OpenCost counts"),
    ],
)
def test_what_is_said_of_a_service_must_make_sense(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    """Else it is told how to say it."""
    result = run("--serving", measured(tmp_path), *words)
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--since", "7d", "-f", SEED), 2, "needs to know where the past is: --ledger PATH, or --export"),
        (("--demand", "40", "-f", SEED), 2, "say what the service can take: --serving FILE"),
        (("--serving", f"{RESULTS}/prices.yaml", "-f", SEED), 1, "is not what punctual advise serving -o json writes"),
        (("--price", "x", "-f", SEED), 2, "x is no price"),
        ((), 2, "no cluster to talk to"),
        (("--export", "no-such-file"), 1, "no-such-file"),
        (("-f", "no-such-file"), 1, "no-such-file: cannot be read"),
        (("-f", f"{RESULTS}/ledger.jsonl"), 2, f"is named by --export {RESULTS}/ledger.jsonl"),
        (("-f", RESULTS), 1, "there are no queues"),
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


def pages() -> list[list[str]]:
    """Command and output of each example of docs/advise.md."""
    blocks = [part for part in Path("docs/advise.md").read_text().split("```") if part.startswith("console")]
    return [block.removeprefix("console\n").splitlines() for block in blocks]


def test_there_are_examples() -> None:
    """Of what waits, and of the past."""
    assert len(pages()) == 2


@pytest.mark.parametrize("lines", pages())
def test_the_page_about_it_shows_what_is_printed(run: Run, lines: list[str]) -> None:
    """The examples in docs/advise.md are what the command says."""
    command, *expected = lines
    assert command.startswith("$ punctual advise ")
    assert run(*command.split()[3:]).stdout.splitlines() == expected
