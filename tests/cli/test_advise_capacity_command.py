"""``punctual advise capacity``: what people and machines are told, of files, of a cluster and of the past."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from cli.advise_capacity_view import NOTHING
from cli.main import app
from scheduler.apiserver import RESOURCES
from scheduler.cluster import KINDS
from scheduler.family import Family
from scheduler.ledger import Entry, Ledger, Outcome
from tests.scheduler.fake_apiserver import FakeApiServer
from tests.scheduler.memory_cluster import MemoryCluster

NOW = "2027-01-15T08:00:00Z"
INSTANT = 1_800_000_000_000
HOUR = 3_600_000
GPU = "nvidia.com/gpu"
SEED = "examples/01-four-jobs"
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs it as of NOW."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.delenv("PUNCTUAL_LEDGER", raising=False)
    time.tzset()

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["advise", "capacity", "--now", NOW, "--effort", "2", *arguments])

    return run


def told(result: Result) -> dict[str, Any]:
    """The JSON that was printed."""
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_the_seed_example_needs_four_not_eight(run: Run) -> None:
    """The sentence comes first; three are proved not to do; without a price none is made up."""
    result = run("-f", SEED)
    assert (result.exit_code, result.stderr) == (0, "")
    first, *others = result.stdout.splitlines()
    assert first == (
        "4 GPUs are enough; 8 would be needed to run all at once; "
        "jobs research/eval-c and research/eval-d set the peak."
    )
    assert "Fewer than 4 cannot do: proved." in others
    assert any(line.startswith("No price is known, ") for line in others)
    named = run("-f", SEED, "--prices", "examples/05-results/prices.yaml").stdout
    assert (
        "No price is known of flavor gpu, so none per extra deadline (--price gpu=2.50, or in the price list)." in named
    )
    assert "buy" not in result.stdout


def test_machines_get_the_same(run: Run) -> None:
    """By flavor: needed, at once, proven, the curve with what each extra deadline costs."""
    data = told(run("-f", SEED, "-o", "json", "--price", "gpu=2"))
    (flavor,) = data["flavors"]
    assert (flavor["gpusNeeded"], flavor["gpusAtOnce"], flavor["gpusToday"], flavor["proven"]) == (4, 8, 4, True)
    assert (flavor["flavor"], flavor["resource"], flavor["pool"]) == (
        "gpu", GPU, {"kind": "ClusterQueue", "name": "research"},
    )  # fmt: skip
    assert flavor["setsPeak"] == ["research/eval-c", "research/eval-d"]
    assert [(p["gpus"], p["met"], p["metAtMost"]) for p in flavor["curve"]][-2:] == [(3, 3, 3), (4, 4, 4)]
    assert flavor["curve"][-1]["pricePerExtraDeadline"] == 12  # two more for three hours
    assert data["sentence"].startswith("4 GPUs are enough")


def test_a_part_of_the_deadlines_needs_less(run: Run) -> None:
    """Three of four are met with two GPUs."""
    result = run("-f", SEED, "--on-time", "75")
    assert result.stdout.startswith("2 GPUs are enough for 3 of 4 deadlines; ")


def test_too_little_today_can_be_an_exit_code(run: Run, tmp_path: Path) -> None:
    """With --fail-on-short, and only if it is too little."""
    for name in ("jobs.yaml", "queues.yaml"):
        text = Path(SEED, name).read_text().replace("nominalQuota: 4", "nominalQuota: 3")
        (tmp_path / name).write_text(text)
    result = run("-f", str(tmp_path), "--fail-on-short")
    assert result.exit_code == 3
    assert "1 fewer than that, and 1 deadline would be missed with it." in result.stdout
    assert run("-f", SEED, "--fail-on-short").exit_code == 0


@pytest.mark.long
def test_jobs_that_cannot_be_on_time_and_those_without_a_deadline_are_told(run: Run) -> None:
    """The first are named and left out, the second ask for nothing until they get a deadline."""
    data = told(run("-f", "examples/02-two-teams", "-o", "json"))
    (flavor,) = data["flavors"]
    assert flavor["leftOut"]["tooShort"] == ["speech/too-ambitious"]
    assert flavor["withoutDeadline"]["jobs"] == 2
    assert (flavor["gpusNeeded"], flavor["deadlines"]) == (10, 5)
    data = told(run("-f", "examples/02-two-teams", "-o", "json", "--default-deadline", "2h"))
    assert data["flavors"][0]["gpusNeeded"] > 10
    assert data["counted"] == ["2 jobs without a deadline: due as --default-deadline says"]


def test_mistakes_are_told_with_their_places_and_do_not_hide_the_answer(run: Run) -> None:
    """As with punctual plan: exit code 1, and an answer for the others."""
    result = run("-f", "examples/03-mistakes", "-o", "json")
    assert result.exit_code == 1
    assert "examples/03-mistakes/jobs.yaml:27: Job research/no-offset: punctual.kueue/deadline" in result.stderr
    data = told(result)
    assert data["flavors"][0]["setsPeak"] == ["research/too-big"]
    assert "1 job without a duration: counted with the default (--default-duration)" in data["counted"]


def test_work_that_is_not_ours_keeps_its_order_unless_asked_as_if(run: Run, tmp_path: Path) -> None:
    """In a namespace that is not opted in jobs start in the order of the file: four GPUs are too few then."""
    jobs = Path(SEED, "jobs.yaml").read_text()
    queues = Path(SEED, "queues.yaml").read_text().replace('{punctual.kueue/managed: "true"}', "{}")
    (tmp_path / "all.yaml").write_text(f"{queues}\n---\n{jobs}")
    kueue, ours = (told(run("-f", str(tmp_path), "-o", "json", *more)) for more in ((), ("--gate-all",)))
    assert (kueue["flavors"][0]["gpusNeeded"], ours["flavors"][0]["gpusNeeded"]) == (8, 4)
    assert "4 jobs waiting that Punctual is not in charge of" in kueue["counted"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--on-time", "120"), "120 is no percentage above 0, up to 100"),
        (("--price", "cheap"), "cheap is no price; write 2.50 or h100=2.50"),
        (("--price", "=3"), "=3 is no price"),
        (("--since", "7d"), "needs to know where the past is: --ledger PATH, or --export"),
        (("--ledger", "x.db"), "say how far to look back with --since 7d"),
        (("--default-deadline", "8"), "has no unit"),
        (("--since", "7d", "--ledger", "x.db", "--gate-all"), "is about work that waits"),
    ],
)
def test_wrong_usage_is_told(run: Run, arguments: tuple[str, ...], message: str) -> None:
    """In words, before anything is read."""
    result = run("-f", SEED, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())


def test_what_is_not_there_is_told(run: Run, tmp_path: Path) -> None:
    """A queue, a resource, a ledger, queues at all."""
    for arguments, message in (
        (("-f", SEED, "-q", "nobody"), "there is no ClusterQueue nobody; there are: research"),
        (("-f", SEED, "--resource", "tpu"), "no queue has quota of tpu"),
        (("-f", SEED, "--since", "7d", "--ledger", str(tmp_path / "no.db")), "there is no ledger at"),
        (("-f", f"{SEED}/jobs.yaml"), "there are no queues"),
    ):
        result = run(*arguments)
        assert result.exit_code == 1
        assert message in result.stderr


def test_nothing_to_do_needs_nothing(run: Run) -> None:
    """Queues without work."""
    result = run("-f", f"{SEED}/queues.yaml")
    assert (result.exit_code, result.stdout) == (0, f"{NOTHING}\n")


def test_of_a_live_cluster(run: Run, tmp_path: Path) -> None:
    """What runs there keeps its quota, and what waits behind our gate is counted."""
    server, cluster = FakeApiServer(), MemoryCluster()
    cluster.time = INSTANT
    cluster.queue(gpus=4)
    cluster.job("runs", 2, gates="", duration="4h")
    cluster.admit("runs")
    for name in ("one", "two"):
        cluster.job(name, 2, deadline="90m", duration="30m")
    for kind in KINDS:
        for item in cluster.objects(kind).values():
            server.put(RESOURCES[kind].path(), dict(item))
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me"}}],
    }  # fmt: skip
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config))
    try:
        (flavor,) = told(run("--kubeconfig", str(file), "-o", "json"))["flavors"]
    finally:
        server.stop()
    assert (flavor["gpusHeld"], flavor["gpusNeeded"], flavor["gpusAtOnce"], flavor["deadlines"]) == (2, 4, 6, 2)


# --- the past ----------------------------------------------------------------------------------------------------


def entry(
    uid: str, submitted: float, started: float | None, ended: float, deadline: float | None, **changes: Any
) -> Entry:
    """Two GPUs; hours before NOW."""

    def at(hours: float | None) -> int | None:
        return None if hours is None else INSTANT - round(hours * HOUR)

    whole = Entry(
        uid=uid,
        name=uid,
        family=Family("team", "lq", "research", "Job", "", "", uid, ""),
        submitted=at(submitted) or 0,
        updated=at(ended) or 0,
        started=at(started),
        ended=at(ended),
        deadline=at(deadline),
        usage=(("gpu", GPU, 2),),
        gpus=2,
        outcome=Outcome.SUCCEEDED,
        reason="Succeeded",
    )
    return replace(whole, **changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Two pairs of jobs as in the seed example, run in the wrong order; and others that only take room, or nothing."""
    path = tmp_path / "ledger.db"
    with Ledger(str(path)) as book:
        book.open().write(
            [
                entry("train-a", 10, 10, 9.5, 7),
                entry("train-b", 10, 10, 9.5, 7),
                entry("eval-c", 10, 9.5, 9, 9.25),
                entry("eval-d", 10, 9.5, 9, 9.25),
                entry("failed", 8, 8, 6, 7.5, outcome=Outcome.FAILED),
                entry("before", 30, 30, 9.75, 20),
                entry("never", 9, None, 8, None, usage=()),
                entry("gone", 9, 9, 8, 8, family=Family("team", "lq", "old", "Job", "", "", "gone", "")),
                entry("long-ago", 90, 90, 80, 85),
            ]
        )
    return path


def test_a_window_of_the_past(run: Run, ledger: Path) -> None:
    """With hindsight four GPUs and the two that ran before were enough; in fact two deadlines were missed."""
    arguments = ("-f", f"{SEED}/queues.yaml", "--since", "12h", "--ledger", str(ledger))
    data = told(run(*arguments, "-o", "json"))
    (flavor,) = data["flavors"]
    assert (flavor["deadlines"], data["missedInFact"]) == (4, 2)
    assert (flavor["gpusNeeded"], flavor["proven"], flavor["gpusHeld"]) == (4, True, 2)
    assert flavor["withoutDeadline"] == {
        "jobs": 1,
        "gpuHours": 4.0,
        "roomGpuHours": flavor["withoutDeadline"]["roomGpuHours"],
    }
    assert data["counted"][0].startswith("asked of the past")
    counted = " ".join(data["counted"])
    assert "left out, as it never ran: 1" in counted
    assert "left out, as its queue is not there any more: 1" in counted


def test_a_copy_of_a_ledger_and_a_price_list_are_enough(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a cluster or files each queue counts by itself, with what it had in use; slices cost their share."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    source = ("--export", "examples/05-results/ledger.jsonl", "--now", "2026-11-30T00:00:00Z", "--since", "7d")
    data = told(run(*source, "--prices", "examples/05-results/prices.yaml", "-o", "json"))
    found = {flavor["flavor"]: flavor for flavor in data["flavors"]}
    assert {name: flavor["gpusNeeded"] for name, flavor in found.items()} == {"l4": 1, "a100-mig": 2, "a100": 4}
    assert {name: flavor["pricePerHour"] for name, flavor in found.items()} == {
        "l4": 0.6, "a100-mig": pytest.approx(2.2 * 3 / 7), "a100": 2.2,
    }  # fmt: skip
    assert "the most that it had in use at once" in data["counted"][0]
    assert found["a100-mig"]["deadlines"] == 0  # those of the queue's other flavor are not its business


def test_the_page_shows_what_is_printed(run: Run) -> None:
    """The example in docs/capacity.md is what the command says, but for spaces at the ends of lines."""
    page = Path("docs/capacity.md").read_text()
    (block,) = (part for part in page.split("```") if part.startswith("console"))
    command, *expected = block.removeprefix("console\n").splitlines()
    assert command.startswith("$ punctual advise capacity ")
    printed = run(*command.split()[4:]).stdout.splitlines()
    assert [line.rstrip() for line in printed] == expected
