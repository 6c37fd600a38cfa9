"""What docs/usage.md and docs/cost.md show is what the commands print."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from advisor.cost_prices import read_prices
from advisor.usage_busy import ACTIVE
from advisor.usage_export import read_export
from advisor.usage_services import HISTOGRAMS
from cli.main import app
from scheduler.annotations import parse_instant
from scheduler.ledger import Ledger
from scheduler.settings import HOUR
from tests.advisor.fake_opencost import FakeOpenCost, fake_opencost
from tests.advisor.fake_prometheus import serving
from tests.advisor.test_usage_services import Histograms

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("usage", "cost")}
END = parse_instant("2026-11-30T00:00:00Z")
START = END - 168 * HOUR


def examples() -> list[tuple[str, str, str]]:
    """Page, command and what it prints, of all examples of these commands."""
    found = []
    for page, text in PAGES.items():
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            for part in re.split(r"(?m)^\$ ", block)[1:]:
                command, _, printed = part.partition("\n")
                if command.startswith("punctual advise") and "examples/05-results" in command:
                    found.append((page, command, printed.rstrip("\n")))
    return found


@pytest.fixture(scope="module")
def prometheus() -> Iterator[Histograms]:
    """What exporter and vLLM would have told about the example: trainings 80 % busy, evaluations 40 %, chat 30 %."""
    fake = Histograms()
    kinds = {"train": 0.8, "eval": 0.4, "chat": 0.3}
    for number, entry in enumerate(read_export(ROOT / "examples" / "05-results" / "ledger.jsonl")):
        busy = kinds.get(entry.family.stem)
        pod = entry.name if entry.family.kind == "Pod" else f"{entry.name}-bcdf5"
        labels = {"exported_namespace": entry.family.namespace, "exported_pod": pod, "Hostname": "node-1"}
        for run in entry.runs if busy is not None else ():
            begin, end = max(run.started, START), min(run.ended or END, END)
            for gpu in range(entry.gpus):
                if begin < end:
                    fake.gauge(ACTIVE, busy or 0, begin, end, every=300, UUID=f"GPU-{number}-{gpu}", **labels)
    first = (START - parse_instant("2026-11-30T00:00:00Z")) // HOUR
    for hour in range(168):
        crowded, day = hour % 24 == 12, 9 <= hour % 24 < 17
        total = 3600 if day else 600
        for goal, limit in (("ttft", "0.5"), ("endToEnd", "20.0")):
            slow = 0.1 if crowded and goal == "ttft" else 0.005
            fake.hours[HISTOGRAMS[goal][0], first + hour] = {limit: total * (1 - slow), "+Inf": total}

    def answer(path: str, query: dict[str, str]) -> object:
        return fake.answer(query) if "_bucket{" in query["query"] else fake.range(query)

    with serving(fake, answer):
        yield fake


@pytest.fixture(scope="module")
def opencost() -> Iterator[FakeOpenCost]:
    """What an OpenCost would have told about it: GPUs a little dearer than in the list, CPU and memory, system pods."""
    with fake_opencost() as fake:
        for entry in read_export(ROOT / "examples" / "05-results" / "ledger.jsonl"):
            for number, run in enumerate(entry.runs, 4):
                pod = entry.name if entry.family.kind == "Pod" else f"{entry.name}-bcdf{number}"
                price = {"a100": 2.4, "l4": 0.7, "a100-mig": 0.9}[entry.flavor]
                cost = price * entry.gpus
                fake.add(entry.family.namespace, pod, run.started, run.ended or END, cost, gpus=float(entry.gpus))
        fake.add("kube-system", "coredns-5d78c9869d-x2k7p", START, END, 0.05, gpus=0.0)
        fake.add("", "", START, END, 6.0, gpus=0.0, name="cluster-one/__idle__")
        yield fake


@pytest.mark.parametrize(("page", "command", "printed"), examples())
def test_examples_print_what_they_show(
    page: str,
    command: str,
    printed: str,
    prometheus: Histograms,
    opencost: FakeOpenCost,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Word by word, notes included."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    places = {"http://prometheus:9090": prometheus.url, "http://opencost:9003": opencost.url}
    words = [places.get(word, word) for word in words]
    environment = {f"PUNCTUAL_{name}": "" for name in ("LEDGER", "SUCCESS", "PRICES", "PROMETHEUS", "OPENCOST")}
    result = CliRunner().invoke(app, words, env=environment)
    assert result.exit_code == 0, result.output
    lines = "\n".join(line.rstrip() for line in f"{result.stdout}{result.stderr}".splitlines())
    assert lines == printed, lines


def test_verdicts_are_recorded_as_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of punctual outcome, on a ledger of the example in place of a cluster."""
    monkeypatch.chdir(ROOT / "examples" / "05-results")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    with Ledger(str(tmp_path / "ledger.db")).open() as ledger:
        ledger.write(read_export(Path("ledger.jsonl")))
    (block,) = (
        each for each in re.findall(r"```console\n(.*?)```", PAGES["usage"], re.DOTALL) if "$ punctual outcome" in each
    )
    parts = [part.partition("\n") for part in re.split(r"(?m)^\$ ", block)[1:]]
    assert len(parts) == 2
    for command, _, printed in parts:
        words = [*shlex.split(command, comments=True)[1:], "--ledger", str(tmp_path / "ledger.db")]
        result = CliRunner().invoke(app, words, env={"PUNCTUAL_SUCCESS": ""})
        assert result.stdout == printed, result.output


def test_there_are_examples() -> None:
    """They were found, on both pages."""
    assert {page for page, _, _ in examples()} == set(PAGES)
    assert len(examples()) >= 5


def test_the_price_list_of_the_page_can_be_read() -> None:
    """And it is the one of the example."""
    (text,) = (block for block in re.findall(r"```yaml\n(.*?)```", PAGES["cost"], re.DOTALL) if "gpuHour" in block)
    assert read_prices(text) == read_prices((ROOT / "examples" / "05-results" / "prices.yaml").read_text())


def test_the_role_of_the_page_has_the_verb_of_the_guard() -> None:
    """Who is given it may verify, and patch what the verdict is written on; the guard asks for no other verb."""
    text = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGES["usage"], re.DOTALL) if "kind: Role" in block)
    role, binding = yaml.safe_load_all(text)
    (jobs,) = (rule for rule in role["rules"] if "jobs" in rule["resources"])
    assert set(jobs["verbs"]) == {"get", "patch", "verify"}
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    guard = (ROOT / "manifests" / "guards" / "verdict.yaml").read_text()
    assert re.findall(r"check\('(\w+)'\)", guard) == ["verify"]
