"""What breaks while a hundred jobs come and go, one thing at a time, on a real cluster.

After each: every job has run exactly once, what may not start yet still waits and says why, the quota was never
exceeded (by the Workloads that held some, sampled at each change), and no controller has let anything start unsaid.
"""

from __future__ import annotations

import http.client
import itertools
import json
import random
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.observer import Observer
from localcluster.rest import ApiError
from tests.kueue import liar
from tests.kueue.conftest import with_punctual
from tests.kueue.punctual import Punctual
from tests.kueue.team import GATE, GATES, Team, gates_of, new_team, remove_team, wait_for

pytestmark = pytest.mark.kueue

GPUS = 24
JOBS = 100
LEDGER = "ledger.sqlite"
IN_FLIGHT = 8
"""Patches that a controller has under way at once, at most: it may be killed between such a patch and the log line."""


def instant(seconds: float) -> str:
    """A time as the annotations have it, so many seconds from now."""
    return datetime.fromtimestamp(time.time() + seconds, UTC).isoformat()


class Crowd:
    """Jobs that come one after another, whatever else happens, and some that may not start for a long time.

    Parameters
    ----------
    controllers
        Who releases them.
    """

    def __init__(self, team: Team, observer: Observer, controllers: list[Punctual], count: int) -> None:
        self.team = team
        self.jobs = [f"job-{k}" for k in range(count)]
        self.parked = [f"parked-{k}" for k in range(3)]
        self._observer = observer
        self._controllers = controllers
        self._bodies = self._made()
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._sent = 0

    def __enter__(self) -> Crowd:
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.join()

    def finished(self) -> int:
        """How many have finished."""
        return sum(self._observer.run(self.team.name, job).finished > 0 for job in self.jobs)

    def wait_for_part(self, part: float) -> None:
        """Return when so much of the jobs has finished, and many are under way."""
        wait_for(lambda: self.finished() >= part * len(self.jobs), f"{part:.0%} of the jobs to finish", timeout=90)

    def check(self, seconds: float = 150, unlogged: int = 0) -> None:
        """All has become of them that should, within so many seconds.

        Parameters
        ----------
        unlogged
            How many may have been released without a word in a log: a controller was killed.
        """
        name, run = self.team.name, self._observer.run
        wait_for(lambda: self.finished() == len(self.jobs), "all jobs to finish", timeout=seconds, every=0.2)
        pods = {job: len(run(name, job).pods) for job in self.jobs}
        assert {job: n for job, n in pods.items() if n != 1} == {}, "each job must have run exactly once"
        assert [job for job in self.jobs if run(name, job).evictions] == []
        assert self._observer.peak[name] <= GPUS
        for job in self.parked:
            assert gates_of(self.team.get_job(job)) == [GATE], f"{job} may not start before tomorrow"
            assert not run(name, job).pods
            assert self.team.condition(job, "QuotaReserved")["reason"] == "AdmissionGated"
        unsaid = set(self.jobs) - self.released()
        assert len(unsaid) <= unlogged, f"started though nobody released them: {unsaid}"

    def released(self) -> set[str]:
        """Jobs that a controller says it has released (or found released, when an answer was lost)."""
        lines = itertools.chain.from_iterable(each.said("controller") for each in self._controllers)
        done = [line for line in lines if line.get("message") == "release" and line["outcome"] in ("done", "not gated")]
        ours = f"Job {self.team.name}/"
        return {str(line["root"]).removeprefix(ours) for line in done if str(line["root"]).startswith(ours)}

    def _made(self) -> dict[str, Callable[[], dict[str, object]]]:
        draw = random.Random(len(self.jobs))

        def job(name: str, gpus: int, seconds: float, slack: float) -> Callable[[], dict[str, object]]:
            def body() -> dict[str, object]:
                wishes = {"punctual.kueue/duration": f"{seconds + 1:.1f}s", "punctual.kueue/deadline": instant(slack)}
                return self.team.job_body(name, gpus, seconds, wishes)

            return body

        def parked(name: str) -> Callable[[], dict[str, object]]:
            return lambda: self.team.job_body(name, 1, 1, {"punctual.kueue/earliest-start": instant(86_400)})

        bodies = {name: parked(name) for name in self.parked}
        for name in self.jobs:
            bodies[name] = job(name, draw.choice((1, 2, 4)), draw.choice((0.5, 1.0, 2.0)), draw.uniform(10, 60))
        return bodies

    def _send(self) -> None:
        for body in self._bodies.values():
            while True:
                try:
                    self.team.cluster.api("POST", self.team.jobs, body())
                except ApiError as error:
                    if error.status == 409:  # it had worked, only the answer was lost
                        break
                    time.sleep(0.2)
                except (OSError, http.client.HTTPException):
                    time.sleep(0.2)
                else:
                    break
            time.sleep(0.05)


@pytest.fixture(scope="module")
def broken_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster to break things on."""
    yield from with_punctual(LocalCluster(tmp_path_factory.mktemp("broken")))


@pytest.fixture(scope="module")
def kubeconfig(broken_cluster: LocalCluster) -> Path:
    """What the controller may do there."""
    token = broken_cluster.token("punctual-system", "punctual-controller")
    return broken_cluster.kubeconfig_as(token, broken_cluster.folder / "controller.kubeconfig")


@pytest.fixture(scope="module")
def started(kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Punctual]:
    """Planner and controller; the clock of the controller can be set."""
    folder = tmp_path_factory.mktemp("ours")
    disk = folder / "disk"
    disk.mkdir()
    running = Punctual(kubeconfig, folder, clock=folder / "clock", options=("--ledger", str(disk / LEDGER)))
    set_clock(running, 0)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "none", disk], capture_output=True)
    try:
        yield running
    finally:
        running.stop()
        if mounted.returncode == 0:
            subprocess.run(["umount", disk], check=True)


@pytest.fixture
def ours(started: Punctual) -> Iterator[Punctual]:
    """The same, both at work and with the right time at the beginning, whatever the test before has left."""
    set_clock(started, 0)
    if not started.runs("solver"):
        started.start_solver()
    if not started.runs("controller"):
        started.start_controller()
    yield started
    set_clock(started, 0)


def set_clock(punctual: Punctual, seconds: int) -> None:
    """From now on the controller's wall clock is off by so much."""
    assert punctual.clock is not None
    new = punctual.clock.with_suffix(".new")
    new.write_text(str(seconds))
    new.replace(punctual.clock)


_numbers = itertools.count(1)


@pytest.fixture
def crowd(broken_cluster: LocalCluster, ours: Punctual) -> Iterator[Crowd]:
    """Jobs on the way."""
    team = new_team(broken_cluster, f"crowd-{next(_numbers)}", GPUS, True, "lq", None, {})
    with Observer(broken_cluster) as observer, Crowd(team, observer, [ours], JOBS) as crowd:
        yield crowd
    remove_team(team)


def kept_alive(punctual: Punctual, stop: threading.Event, codes: list[int]) -> threading.Thread:
    """What a kubelet does: starts the controller again when it has ended, until told to stop."""

    def watch() -> None:
        while not stop.wait(0.2):
            code = punctual.ended("controller")
            if code is not None:
                codes.append(code)
                punctual.wait("controller")
                punctual.launch_controller()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


@pytest.mark.long
@pytest.mark.parametrize("part", ["controller", "solver"])
def test_a_part_of_ours_is_killed(crowd: Crowd, ours: Punctual, part: str) -> None:
    """SIGKILL of controller or planner amid it all, started again two seconds later."""
    crowd.wait_for_part(0.25)
    ours.kill(part)
    time.sleep(2)
    ours.start_controller() if part == "controller" else ours.start_solver()
    crowd.check(unlogged=IN_FLIGHT if part == "controller" else 0)


@pytest.mark.long
@pytest.mark.parametrize("part", ["kueue", "kube-apiserver", "etcd"])
def test_a_part_of_the_cluster_is_killed(crowd: Crowd, broken_cluster: LocalCluster, ours: Punctual, part: str) -> None:
    """SIGKILL of Kueue, apiserver or etcd amid it all, started again two seconds later."""
    crowd.wait_for_part(0.25)
    broken_cluster.kill(part)
    time.sleep(2)
    broken_cluster.start(part)
    crowd.check()
    assert ours.ended("controller") is None


@pytest.mark.long
def test_the_apiserver_is_away_for_half_a_minute(crowd: Crowd, broken_cluster: LocalCluster, ours: Punctual) -> None:
    """The controller cannot renew its Lease, so it ends with 3 and is started again, as a kubelet does."""
    stop, codes = threading.Event(), list[int]()
    keeper = kept_alive(ours, stop, codes)
    try:
        crowd.wait_for_part(0.25)
        broken_cluster.kill("kube-apiserver")
        time.sleep(30)
        broken_cluster.start("kube-apiserver")
        crowd.check()
    finally:
        stop.set()
        keeper.join()
    assert codes
    assert set(codes) == {3}


@pytest.mark.long
def test_watches_are_too_old_to_go_on(crowd: Crowd, broken_cluster: LocalCluster, ours: Punctual) -> None:
    """An apiserver starts anew on an etcd that has forgotten the versions which the controller knows (410)."""
    crowd.wait_for_part(0.25)
    known = len(ours.log("controller"))
    broken_cluster.kill("kube-apiserver")  # with its memory of what has changed
    compact(broken_cluster)
    broken_cluster.start("kube-apiserver")
    crowd.check()
    assert "its version is too old" in ours.log("controller")[known:]


def compact(cluster: LocalCluster) -> None:
    """Let etcd forget all versions but the newest."""
    address = f"http://127.0.0.1:{cluster.ports()['etcd']}/v3/kv"

    def ask(what: str, **question: object) -> dict[str, dict[str, str]]:
        request = urllib.request.Request(f"{address}/{what}", json.dumps(question).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    revision = ask("range", key="AA==", limit="1")["header"]["revision"]
    ask("compaction", revision=revision, physical=True)


@pytest.mark.long
@pytest.mark.parametrize("seconds", [300, -300])
def test_the_clock_is_set(crowd: Crowd, ours: Punctual, seconds: int) -> None:
    """The controller's clock jumps by five minutes amid it all, and stays there."""
    crowd.wait_for_part(0.25)
    set_clock(ours, seconds)
    crowd.check()


@pytest.mark.long
def test_the_planner_hangs(crowd: Crowd, ours: Punctual) -> None:
    """A planner that takes requests and says nothing for twenty seconds: releases go on, and so do plans after it."""
    crowd.wait_for_part(0.25)
    with ours.paused("solver"):
        before = crowd.finished()
        time.sleep(20)
        assert crowd.finished() > before + 10, "jobs must go on without a plan"
    crowd.check()
    crowd.team.job("afterwards", gpus=1, run_for=1)
    wait_for(lambda: ours.metric("punctual_planner_up") == 1, "a plan")


@pytest.mark.long
def test_the_planner_lies(crowd: Crowd, ours: Punctual) -> None:
    """In place of the planner one that answers nonsense, then well-formed plans that start all at once."""
    crowd.wait_for_part(0.2)
    ours.kill("solver")
    lies, before = itertools.cycle((liar.nonsense, liar.everything_now)), refused(ours)
    with liar.lying(ours.address, lambda request: next(lies)(request)) as other:
        crowd.wait_for_part(0.8)
        assert other.calls > 3
        assert refused(ours) > before
        assert (ours.metric('punctual_plans_total{engine="liar"}') or 0) > 0
    ours.start_solver()
    crowd.check()


def refused(punctual: Punctual) -> float:
    """How many plans made no sense so far."""
    return punctual.metric('punctual_plan_failures_total{reason="bad_plan"}') or 0.0


@pytest.mark.long
def test_the_planner_answers_64_mebibytes(crowd: Crowd, ours: Punctual) -> None:
    """Answers of 64 MiB, time and again: they are taken or not, and memory does not pile up."""
    crowd.wait_for_part(0.2)
    ours.kill("solver")
    with liar.lying(ours.address, liar.huge(64)) as other:
        crowd.wait_for_part(0.9)
        assert other.calls > 3
    ours.start_solver()
    crowd.check()
    assert ours.peak_mebibytes("controller") < 700


@pytest.mark.long
def test_others_write_the_same_objects(crowd: Crowd, ours: Punctual) -> None:
    """Someone edits the waiting Jobs all the time, with patches and with whole objects: no edit and no gate is lost."""
    team, stop, written = crowd.team, threading.Event(), dict[str, int]()

    def edit() -> None:
        for number in itertools.count(1):
            for job in crowd.jobs:
                if stop.is_set():
                    return
                with suppress(ApiError, OSError, http.client.HTTPException):
                    item = team.get_job(job)
                    if GATE not in gates_of(item):
                        continue
                    item["metadata"]["annotations"] |= {"example.com/edit": str(number)}
                    if number % 2:
                        team.cluster.api("PUT", f"{team.jobs}/{job}", item)
                    else:
                        team.cluster.api("PATCH", f"{team.jobs}/{job}", {"metadata": {"annotations": {
                            "example.com/edit": str(number), "punctual.kueue/deadline": instant(20 + number)
                        }}})  # fmt: skip
                    written[job] = number

    editors = [threading.Thread(target=edit, daemon=True) for _ in range(2)]
    for editor in editors:
        editor.start()
    try:
        crowd.wait_for_part(0.9)
    finally:
        stop.set()
        for editor in editors:
            editor.join()
    crowd.check()
    assert len(written) > 0.1 * len(crowd.jobs)
    for job in written:
        assert "example.com/edit" in team.get_job(job)["metadata"]["annotations"], job
        assert GATES not in team.get_job(job)["metadata"]["annotations"]


@pytest.mark.long
def test_a_leader_sleeps_past_its_lease(
    broken_cluster: LocalCluster, ours: Punctual, kubeconfig: Path, tmp_path: Path
) -> None:
    """A stopped leader is replaced; when it wakes up it finishes what it had under way, at most, and ends with 3."""
    (tmp_path / "second").mkdir()
    second = Punctual(kubeconfig, tmp_path / "second", identity="second")
    team = new_team(broken_cluster, f"crowd-{next(_numbers)}", GPUS, True, "lq", None, {})
    try:
        second.start_solver()
        second.launch_controller()
        with Observer(broken_cluster) as observer, Crowd(team, observer, [ours, second], JOBS) as crowd:
            crowd.wait_for_part(0.25)
            with ours.paused("controller"):
                wait_for(lambda: second.metric("punctual_leader") == 1, "the other to lead", timeout=60)
                before = crowd.finished()
                wait_for(lambda: crowd.finished() > before + 5, "the other to release something", timeout=60)
                known = len(ours.said("controller"))
            assert ours.wait("controller") == 3
            after = [line for line in ours.said("controller")[known:] if line.get("message") == "release"]
            done = [line for line in after if line["outcome"] == "done"]
            assert len(done) <= IN_FLIGHT, "a leader that was replaced goes on releasing"
            crowd.check()
    finally:
        second.stop()
        remove_team(team)


def on_record(ours: Punctual, crowd: Crowd) -> list[str]:
    """Names of the crowd's work that the ledger has as finished, one for each entry."""
    with closing(sqlite3.connect(f"file:{ours.folder / 'disk' / LEDGER}?mode=ro", uri=True)) as ledger:
        rows = ledger.execute("SELECT name, outcome FROM workload WHERE namespace = ?", (crowd.team.name,)).fetchall()
    return sorted(name for name, outcome in rows if outcome == "Succeeded")


def check_record(ours: Punctual, crowd: Crowd) -> None:
    """All that has finished is on record soon, once."""
    with suppress(sqlite3.Error):
        wait_for(lambda: len(on_record(ours, crowd)) >= len(crowd.jobs), "the ledger to catch up", timeout=90)
    names = on_record(ours, crowd)
    assert len(names) == len(set(names)) == len(crowd.jobs)


@pytest.mark.long
def test_the_ledgers_disk_is_full(crowd: Crowd, ours: Punctual) -> None:
    """No room for a single page amid it all: releases go on, and when there is room the ledger has everything, once."""
    disk = ours.folder / "disk"
    if not disk.is_mount():
        pytest.skip("only root can give the ledger a disk of its own")
    crowd.wait_for_part(0.2)
    known = len(ours.log("controller"))
    try:
        with closing(sqlite3.connect(disk / LEDGER)) as ledger:  # its log would be written over, and need no room
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with (disk / "rest").open("wb", buffering=0) as rest, suppress(OSError):
            while rest.write(bytes(4096)):
                pass
        wait_for(lambda: "full" in ours.log("controller")[known:], "the ledger to find no room", timeout=60)
        crowd.wait_for_part(0.9)
    finally:
        (disk / "rest").unlink(missing_ok=True)
    crowd.check()
    check_record(ours, crowd)


@pytest.mark.long
def test_the_ledger_is_locked(crowd: Crowd, ours: Punctual) -> None:
    """Somebody else holds the database amid it all: releases go on, and the ledger has everything afterwards, once."""
    crowd.wait_for_part(0.2)
    known = len(ours.log("controller"))
    other = sqlite3.connect(ours.folder / "disk" / LEDGER, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        wait_for(lambda: "locked" in ours.log("controller")[known:], "the ledger to find it locked", timeout=60)
        crowd.wait_for_part(0.9)
    finally:
        other.close()
    crowd.check()
    check_record(ours, crowd)


@pytest.mark.long
def test_kueue_and_controller_are_killed_at_once(
    cluster: LocalCluster, punctual: Punctual, make_team: Callable[..., Team]
) -> None:
    """A short sample of the above: both are killed amid 30 jobs and started again."""
    team = make_team(GPUS)
    with Observer(cluster) as observer, Crowd(team, observer, [punctual], 30) as crowd:
        crowd.wait_for_part(0.2)
        cluster.kill("kueue")
        punctual.kill("controller")
        cluster.start("kueue")
        punctual.start_controller()
        crowd.check(unlogged=IN_FLIGHT)
