"""``punctual sweep`` on a real Kueue, with the sweeper's own rights."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from scheduler.apiserver import connect
from scheduler.leader import Elector, Timing
from tests.kueue.punctual import COMMAND, Punctual
from tests.kueue.team import GATE, Team, gates_of, wait_for

pytestmark = pytest.mark.kueue

LEASE = "test-of-sweeper"
WAITS = {"punctual.kueue/earliest-start": "2099-01-01T00:00:00Z"}


@pytest.fixture(scope="module")
def kubeconfig(cluster: LocalCluster) -> Path:
    """Kubeconfig of the sweeper's ServiceAccount, with a real token."""
    return cluster.kubeconfig_as(cluster.token("punctual-system", "punctual-sweeper"), cluster.folder / "sweeper")


class Sweep:
    """A sweeper as a process of its own."""

    def __init__(self, kubeconfig: Path, log: Path, *words: str) -> None:
        self.log = log
        command = [COMMAND, "sweep", "--kubeconfig", kubeconfig, "--log-format", "json", *words]
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def lines(self) -> list[dict[str, object]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.endswith("}")]

    def swept(self) -> list[str]:
        """What it has released so far, in order."""
        return [str(line["root"]) for line in self.lines() if line["message"] == "swept" and line["outcome"] == "done"]

    def end(self, seconds: float = 30) -> int:
        """Its exit code, when it has ended by itself."""
        return self.process.wait(seconds)

    def terminate(self) -> int:
        """End it as the kubelet does."""
        self.process.terminate()
        return self.end()


@pytest.fixture
def sweep(kubeconfig: Path, tmp_path: Path) -> Iterator[Callable[..., Sweep]]:
    """Starts sweepers; none outlives the test."""
    started: list[Sweep] = []

    def start(*words: str) -> Sweep:
        started.append(Sweep(kubeconfig, tmp_path / f"sweep-{len(started)}.log", *words))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.terminate()


@pytest.fixture
def elector(punctual_kubeconfig: Path) -> Elector:
    """What a controller renews its Lease with; this one on a Lease of its own that others take after two seconds."""
    timing = Timing(lease=2, renew=1.5, retry=0.3)
    return Elector(connect(punctual_kubeconfig), "punctual-system", LEASE, "test", timing)


def queue_up(team: Team, count: int) -> list[str]:
    """So many gated jobs, the last one due first; in the order of their deadlines."""
    for number in range(count):
        team.job(f"job-{number}", gpus=1, run_for=1, annotations={"punctual.kueue/deadline": f"{60 - number}m"})
    names = [f"job-{number}" for number in reversed(range(count))]
    wait_for(lambda: all(team.workload_of(name) for name in names), "their Workloads")
    return [f"Job {team.name}/{name}" for name in names]


def waiting(team: Team) -> int:
    return sum(GATE in gates_of(job) for job in team.cluster.api("GET", team.jobs)["items"])


def test_nothing_is_swept_beside_a_living_controller(team: Team, elector: Elector, sweep: Callable[..., Sweep]) -> None:
    """While the Lease is renewed, a sweeper ends at once and content, and all that waits goes on waiting."""
    queue_up(team, 2)
    elector.start()
    assert elector.acquired.wait(10)
    try:
        sweeper = sweep("--lease", LEASE, "--after", "2s")
        assert sweeper.end() == 0
    finally:
        elector.stop()
    assert sweeper.lines()[-1]["why"] == "the controller renews its Lease"
    assert waiting(team) == 2


def test_all_goes_when_the_controller_is_gone_until_it_returns(
    team: Team, elector: Elector, sweep: Callable[..., Sweep]
) -> None:
    """Nobody renews: gates come off due first, at the pace told. The controller returns midway: not one more."""
    order = queue_up(team, 5)
    elector.attempt()
    sweeper = sweep("--lease", LEASE, "--after", "2s", "--rate", "2")
    wait_for(lambda: len(sweeper.swept()) >= 2, "the first to be swept", timeout=60)
    elector.attempt()
    assert sweeper.end() == 0
    gone = sweeper.swept()
    assert gone == order[: len(gone)]
    assert 2 <= len(gone) <= 4
    assert waiting(team) == 5 - len(gone)
    path = f"/api/v1/namespaces/{team.name}/events?fieldSelector=reason%3DSwept"
    told = {event["involvedObject"]["name"] for event in team.cluster.api("GET", path)["items"]}
    assert told == {name.rpartition("/")[2] for name in gone}


@pytest.mark.long
def test_hold_and_release(team: Team, elector: Elector, sweep: Callable[..., Sweep]) -> None:
    """With orders to hold nothing goes, it is only said. Without, all goes that waits, and what comes."""
    order = queue_up(team, 4)
    elector.attempt()
    held = sweep("--lease", LEASE, "--after", "1s", "--on-loss", "hold")
    assert held.end() == 0
    assert held.lines()[-1]["why"] == "the controller is gone, and work is held"
    assert waiting(team) == 4
    rest = sweep("--lease", LEASE, "--after", "1s", "--rate", "50")
    wait_for(lambda: rest.swept() == order, "all to be swept", timeout=60)
    team.job("newcomer", gpus=1, run_for=1)
    wait_for(lambda: waiting(team) == 0, "the newcomer to be swept", timeout=30)
    assert rest.terminate() == 0
    wait_for(lambda: team.finished("newcomer") and team.finished("job-0"), "them to run")


@pytest.mark.long
def test_with_a_real_controller(team: Team, punctual: Punctual, sweep: Callable[..., Sweep]) -> None:
    """Beside the controller nothing is swept; killed, its gated work goes 15 s later, until it is back."""
    for number in range(8):
        team.job(f"job-{number}", gpus=1, run_for=1, annotations=WAITS)
    wait_for(lambda: all(team.workload_of(f"job-{number}") for number in range(8)), "their Workloads")
    assert sweep("--after", "5s").end() == 0
    assert waiting(team) == 8
    punctual.kill("controller")
    killed = time.monotonic()
    sweeper = sweep("--after", "5s", "--rate", "0.2")  # slower than a controller starts
    wait_for(lambda: sweeper.swept(), "the first to be swept", timeout=60)
    assert time.monotonic() - killed > 12, "the Lease's own duration counts"
    punctual.start_controller()
    assert sweeper.end() == 0
    left = waiting(team)
    assert 0 < left < 8
    time.sleep(2)
    assert waiting(team) == left
