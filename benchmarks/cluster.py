"""The same stream of jobs through plain Kueue and through Punctual, one after the other, on one real local cluster.

Real are Kubernetes, Kueue, the controller, its planner, every patch and every second; pretended are nodes and pods,
which end after a given time. A job's life here takes seconds where it takes hours elsewhere, so what a start costs
(Kubernetes needs about a second to see that a pod has ended) weighs far more than it does in practice, for both alike.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from localcluster import build
from localcluster.cluster import GPUS_PER_NODE, NODES, LocalCluster
from localcluster.kueue import API
from localcluster.nodes import GPU, fake_nodes
from localcluster.observer import Observer, Run
from localcluster.policies import wait_for_policies
from localcluster.processes import Process
from solver.sidecar import READY

MANIFESTS = Path(__file__).resolve().parent.parent / "manifests"

QUOTA = 64
"""GPUs of the queue. There are as many nodes of 8: pods of 1 to 8 GPUs never wait for one another's scraps."""

SIZES, OFTEN = (1, 2, 4, 8), (0.4, 0.3, 0.2, 0.1)
SHORTEST, LONGEST = 6.0, 30.0
"""Run times of pods, seconds. Were they shorter, the bench would measure how many starts a second two cores manage."""
OVERHEAD = 1.1
"""Seconds that quota is held beyond a pod's run time: about what Kubernetes needs to see that it has ended."""
LOAD = 1.0
"""Quota × time asked for by the time of the last arrival, in parts of what there is."""
AT_ONCE, WITHIN = 0.25, 6.0
"""This part of the jobs comes in the first so many seconds: the morning."""
DUE = 0.85
"""Part of the jobs that has a deadline."""
LEAST_SLACK, MOST_SLACK = 6.0, 120.0
"""Seconds that a job may wait and still be on time."""
NOISE = 0.2
"""σ of the logarithm by which estimates of run times are wrong."""

START_SECONDS = 300.0
"""What planner and controller get to start: they compile their kernels first, once on a machine."""

NICE = 10
"""The planner takes what the cluster leaves of the machine, as the kubelet has it do by its small CPU request."""

PATIENCE = 300.0
"""Seconds without any job's end until a half is given up."""

BARS = {
    "misses by plain Kueue's": 0.5,
    "idle GPU-seconds by plain Kueue's": 1.0,
    "interrupted starts": 0.0,
    "controller peak MiB": 300.0,
    "solver peak MiB": 500.0,
}
"""Most of each."""

WANTED = {"release p50 ms": 100.0, "release p95 ms": 500.0}
"""Wanted at most, on two cores that nothing else uses; the machine decides, so these are no bars."""

Progress = Callable[[str], None]


class BenchFailed(RuntimeError):
    """The bench could not be carried out; the message says why."""


@dataclass(frozen=True)
class Planned:
    """One job of the stream. All times are seconds.

    Attributes
    ----------
    at
        When it comes.
    seconds
        How long its pod runs.
    estimate
        For how long it is said to hold its quota.
    due
        Until when it must have finished, from its arrival on; None: no deadline.
    """

    name: str
    at: float
    gpus: int
    seconds: float
    estimate: float
    due: float | None


def stream(n: int, seed: int) -> list[Planned]:
    """``n`` jobs, the same for the same seed, in the order in which they come.

    A quarter comes within 3 seconds, the rest evenly at random until the queue of 64 GPUs would have been kept busy by
    all of them. 1 to 8 GPUs (small ones more often); 3 to 15 seconds, log-uniform; 85 % have a deadline that lets them
    wait for 3 to 60 seconds, log-uniform. Estimates are wrong by a log-normal factor (σ = 0.2).
    """
    rng = np.random.default_rng([seed, n])
    gpus = rng.choice(SIZES, p=OFTEN, size=n)
    seconds = np.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST), size=n))
    held = seconds + OVERHEAD
    last = max(WITHIN, float((gpus * held).sum()) / QUOTA / LOAD)
    first = math.ceil(n * AT_ONCE)
    at = np.sort(np.concatenate([rng.uniform(0, WITHIN, size=first), rng.uniform(WITHIN, last, size=n - first)]))
    slack = np.exp(rng.uniform(math.log(LEAST_SLACK), math.log(MOST_SLACK), size=n))
    estimate = held * np.exp(rng.normal(0, NOISE, size=n))
    has_due = rng.random(n) < DUE
    return [
        Planned(
            name=f"job-{k:04d}",
            at=float(at[k]),
            gpus=int(gpus[k]),
            seconds=round(float(seconds[k]), 2),
            estimate=round(float(estimate[k]), 2),
            due=float(held[k] + slack[k]) if has_due[k] else None,
        )
        for k in range(n)
    ]


def measure(
    n: int = 300, gated: int = 1000, seed: int = 0, progress: Progress = lambda _: None, folder: Path | None = None
) -> dict[str, Any]:
    """Run both halves.

    Parameters
    ----------
    n
        Jobs of the stream.
    gated
        More jobs, in the same queue, that wait behind the gate all the time of Punctual's half (they may start
        tomorrow): what a large backlog costs.
    folder
        Where the logs of planner and controller are to stay; by default nowhere.

    Returns
    -------
    dict
        ``bench``, ``figures`` of ``kueue`` and ``punctual``, ``reference`` (what we want), ``bars`` and whether each
        ``holds``.

    Raises
    ------
    BenchFailed, LocalClusterError
    """
    work = stream(n, seed)
    if not MANIFESTS.exists():
        raise BenchFailed(f"there is no {MANIFESTS}: this bench works from a checkout of the repository")
    build.build(progress)
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="punctual-bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        progress("starting a cluster")
        cluster = LocalCluster(folder / "cluster")
        cluster.stop_with_me()
        stack.callback(cluster.down)
        cluster.up()
        for node in fake_nodes(QUOTA, GPUS_PER_NODE)[NODES:]:
            cluster.api("POST", "/api/v1/nodes", node)
        cluster.kubectl("apply", "--server-side", "-k", MANIFESTS)
        for name, managed in (("plain", False), ("planned", True)):
            _queue(cluster, name, managed)
        wait_for_policies(cluster, "planned", "queue")
        observer = stack.enter_context(Observer(cluster, keep=False))
        kueue = _half(cluster, observer, "plain", work, progress)
        token = cluster.token("punctual-system", "punctual-controller")
        kubeconfig = cluster.kubeconfig_as(token, cluster.folder / "controller.kubeconfig")
        processes = stack.enter_context(_punctual(kubeconfig, folder, progress))
        _park(cluster, observer, gated, progress)
        begun = (folder / "controller.log").stat().st_size
        punctual = _half(cluster, observer, "planned", work, progress)
        punctual |= _latency(folder / "controller.log", begun)
        punctual |= {f"{name} peak MiB": float(process.usage().peak) for name, process in processes.items()}
    return verdict(n, gated, seed, kueue, punctual)


def verdict(n: int, gated: int, seed: int, kueue: dict[str, Any], punctual: dict[str, Any]) -> dict[str, Any]:
    """What :func:`measure` returns, of the figures of the two halves."""
    found = {
        "misses by plain Kueue's": _ratio(punctual["missed"], kueue["missed"]),
        "idle GPU-seconds by plain Kueue's": _ratio(punctual["idle GPU-seconds"], kueue["idle GPU-seconds"]),
        "interrupted starts": float(punctual["interrupted"]),
        **{name: punctual[name] for name in ("controller peak MiB", "solver peak MiB")},
    }
    return {
        "bench": "cluster",
        "jobs": n,
        "gated": gated,
        "seed": seed,
        "figures": {"kueue": kueue, "punctual": punctual},
        "reference": WANTED,
        "bars": {name: {"most": most, "is": found[name]} for name, most in BARS.items()},
        "holds": all(found[name] <= most for name, most in BARS.items()),
    }


def _ratio(ours: float, theirs: float) -> float:
    """Of two figures that should be small; where theirs is nothing, ours counts by itself."""
    return round(ours / max(1.0, theirs), 3)


def _queue(cluster: LocalCluster, name: str, managed: bool) -> None:
    """A namespace with a LocalQueue ``queue``, and a ClusterQueue and flavor of its own behind it."""
    labels = {"punctual.kueue/managed": "true"} if managed else {}
    named: dict[str, Any] = {"apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": {"name": name}}
    quota = {"cpu": "10000", GPU: QUOTA}
    resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
    group = {"coveredResources": list(quota), "flavors": [{"name": name, "resources": resources}]}
    spec = {"namespaceSelector": {}, "resourceGroups": [group]}
    local = {"metadata": {"name": "queue"}, "kind": "LocalQueue", "spec": {"clusterQueue": name}}
    cluster.api("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    cluster.api("POST", f"{API}/resourceflavors", {**named, "kind": "ResourceFlavor"})
    cluster.api("POST", f"{API}/clusterqueues", {**named, "kind": "ClusterQueue", "spec": spec})
    cluster.api("POST", f"{API}/namespaces/{name}/localqueues", {**named, **local})


def _job(name: str, gpus: int, seconds: float, wishes: dict[str, str]) -> dict[str, Any]:
    resources = {"requests": {"cpu": "1", GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none", "resources": resources}]}
    run_for = {"annotations": {"punctual.kueue/run-for": f"{seconds}s"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "queue"}, "annotations": wishes},
        "spec": {"suspend": True, "backoffLimit": 0, "template": {"metadata": run_for, "spec": pod}},
    }


def _instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _park(cluster: LocalCluster, observer: Observer, count: int, progress: Progress) -> None:
    """Jobs that wait behind the gate until tomorrow."""
    jobs = "/apis/batch/v1/namespaces/planned/jobs"
    tomorrow, later = _instant(time.time() + 86_400), _instant(time.time() + 3 * 86_400)
    wishes = {
        "punctual.kueue/earliest-start": tomorrow,
        "punctual.kueue/deadline": later,
        "punctual.kueue/duration": "1h",
    }

    def create(k: int) -> None:
        cluster.api("POST", jobs, _job(f"parked-{k:04d}", SIZES[k % len(SIZES)], 3600, wishes))

    with ThreadPoolExecutor(4) as pool:
        for k, _ in enumerate(pool.map(create, range(count))):
            if k % 100 == 0:
                progress(f"making {count:,} gated jobs: {k:,}")
    end = time.monotonic() + PATIENCE
    while any(not observer.run("planned", f"parked-{k:04d}").pending for k in range(count)):
        if time.monotonic() > end:
            raise BenchFailed("Kueue has not made Workloads of all gated jobs")
        time.sleep(0.2)
    # Each owner is told of a planned start: that is written before the stream comes, as it would be of a real backlog.
    progress("waiting until their owners have been told")
    told, still = -1, 0
    while still < 3 and time.monotonic() < end:
        time.sleep(1)
        events = cluster.api("GET", "/api/v1/namespaces/planned/events?limit=1")
        now_told = events["metadata"].get("remainingItemCount", 0)
        still, told = (still + 1, told) if now_told == told else (0, now_told)


def _half(
    cluster: LocalCluster, observer: Observer, namespace: str, work: Sequence[Planned], progress: Progress
) -> dict[str, Any]:
    """The stream through one queue; its figures."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    created: dict[str, float] = {}

    def create(job: Planned) -> None:
        created[job.name] = now = time.time()
        wishes = {"punctual.kueue/duration": f"{job.estimate}s"}
        if job.due is not None:
            wishes["punctual.kueue/deadline"] = _instant(now + job.due)
        cluster.api("POST", jobs, _job(job.name, job.gpus, job.seconds, wishes))

    begun = time.monotonic()
    with ThreadPoolExecutor(4) as pool:
        sent = []
        for job in work:
            time.sleep(max(0.0, begun + job.at - time.monotonic()))
            sent.append(pool.submit(create, job))
            progress(f"{namespace}: {len(sent)} of {len(work)} jobs sent")
        for future in sent:
            future.result()
    moved, left = time.monotonic(), len(work)
    while left:
        time.sleep(0.2)
        now_left = sum(not observer.run(namespace, job.name).finished for job in work)
        if now_left < left:
            moved, left = time.monotonic(), now_left
            progress(f"{namespace}: {left} of {len(work)} jobs to go")
        if time.monotonic() - moved > PATIENCE:
            raise BenchFailed(f"{left} jobs of {namespace} do not end; logs: {cluster.folder}")
    return figures(work, created, {job.name: observer.run(namespace, job.name) for job in work})


def figures(work: Sequence[Planned], created: dict[str, float], runs: dict[str, Run]) -> dict[str, Any]:
    """What became of a stream.

    Returns
    -------
    dict
        ``due`` jobs with a deadline, ``missed`` of them; ``interrupted`` starts (evictions, and pods beyond the first);
        ``idle GPU-seconds``: GPUs of the quota on which no pod ran while a job waited; ``refill ms``: median time from
        a job's end to the next admission while jobs waited, left out if none did; ``waits``: median and 95th
        percentile, in seconds, from creation to a running pod, by GPUs; ``seconds`` from the first creation to the
        last end.
    """
    due = [job for job in work if job.due is not None]
    missed = [job for job in due if runs[job.name].finished > created[job.name] + (job.due or 0)]
    waits = {}
    for size in SIZES:
        waited = sorted(runs[job.name].running - created[job.name] for job in work if job.gpus == size)
        if waited:
            waits[str(size)] = {"p50": round(_quantile(waited, 0.5), 2), "p95": round(_quantile(waited, 0.95), 2)}
    refill = _refill(created, runs)
    return {
        "due": len(due),
        "missed": len(missed),
        "interrupted": sum(run.evictions + max(0, len(run.pods) - 1) for run in runs.values()),
        "idle GPU-seconds": round(_idle(work, created, runs), 1),
        **({} if math.isnan(refill) else {"refill ms": round(1000 * refill)}),
        "waits": waits,
        "seconds": round(max(run.finished for run in runs.values()) - min(created.values()), 1),
    }


def _idle(work: Sequence[Planned], created: dict[str, float], runs: dict[str, Run]) -> float:
    changes = []
    for job in work:
        run = runs[job.name]
        changes += [(created[job.name], 1, 0), (run.running, -1, job.gpus), (run.ended, 0, -job.gpus)]
    idle, waiting, busy, before = 0.0, 0, 0, 0.0
    for at, more_wait, more_busy in sorted(changes):
        if waiting:
            idle += (at - before) * (QUOTA - busy)
        waiting, busy, before = waiting + more_wait, busy + more_busy, at
    return idle


def _refill(created: dict[str, float], runs: dict[str, Run]) -> float:
    """Median seconds from a job's end to the next admission, where a job waited at its end; NaN if none did."""
    reserved = np.sort([run.reserved for run in runs.values()])
    waits = [(created[name], run.reserved) for name, run in runs.items()]
    gaps = [
        float(reserved[np.searchsorted(reserved, run.finished)]) - run.finished
        for run in runs.values()
        if any(came < run.finished < admitted for came, admitted in waits)
    ]
    return statistics.median(gaps) if gaps else math.nan


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, math.floor(q * len(ordered)))]


def _latency(log: Path, begun: int) -> dict[str, float]:
    """Milliseconds from the watch event by which quota came free to sending the patch, by the controller's own log."""
    taken = []
    with log.open("rb") as lines:
        lines.seek(begun)
        for line in lines:
            said = json.loads(line)
            if said.get("message") == "release" and said.get("latency_seconds") is not None:
                taken.append(1000 * said["latency_seconds"])
    taken.sort()
    if not taken:
        return {"timed releases": 0}
    return {
        "timed releases": len(taken),
        "release p50 ms": round(_quantile(taken, 0.5), 1),
        "release p95 ms": round(_quantile(taken, 0.95), 1),
    }


@contextmanager
def _punctual(kubeconfig: Path, folder: Path, progress: Progress) -> Iterator[dict[str, Process]]:
    """Planner and controller of this very installation, while the block runs."""
    progress("starting planner and controller")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"unix://{folder}/solver.sock"
    words = {
        "solver": ["--listen", address],
        "controller": [
            *("--solver", address, "--kubeconfig", str(kubeconfig), "--http", f"127.0.0.1:{port}"),
            *("--identity", "bench", "--log-format", "json"),
        ],
    }
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("POD_", "KUBE"))}
    with ExitStack() as stack:
        running = {}
        for name, options in words.items():
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            command = [sys.executable, "-c", "from cli.main import main; main()", name, *options]
            if name == "solver":
                command = ["nice", "-n", str(NICE), *command]
            child = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
            )
            stack.callback(child.terminate)
            running[name] = child
        end = time.monotonic() + START_SECONDS
        while not (_leads(port) and READY in (folder / "solver.log").read_text(errors="replace")):
            for name, child in running.items():
                if child.poll() is not None or time.monotonic() > end:
                    said = (folder / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise BenchFailed(f"the {name} does not start: {said}")
            time.sleep(0.1)
        yield {name: Process.of(child.pid) for name, child in running.items()}


def _leads(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return b"\npunctual_leader 1.0\n" in connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
