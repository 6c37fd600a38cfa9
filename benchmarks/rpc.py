"""What a whole ``Plan`` call costs: a client, a real sidecar process, many workloads in one request.

The instance is random but the same for the same seed: see :func:`instance`. The round trip goes from columns in the
client's memory to the columns of the plan in its memory. It is split with the server's own account of its time; what
neither side can see (gRPC, the socket, parsing and writing messages in the server) is the rest.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import numpy as np
import numpy.typing as npt

from solver.api import planner_pb2 as pb

NOW = 1_790_000_000_000
HOUR = 3_600_000
RESOURCES = ("cpu", "memory", "nvidia.com/gpu")
FLAVORS = ("h200", "h100", "a100", "l40s")
GPUS = (1, 2, 4, 8, 16)
DIVISIONS, TEAMS, QUEUES, SHAPES = 3, 7, 20, 40
GIB = 1 << 30

PARTS = ("client encode", "decode", "solve", "verify", "encode", "client decode", "rest")
"""Of a round trip, in their order; those without "client" are the server's, the rest is nobody's."""

TARGET_MS = {1_000: 50, 10_000: 250, 100_000: 1_500}
"""Round trips that we want on two cores; the machine decides, so these are no bars."""

MOST_OVERHEAD = 1.0
"""Bar: reading and writing messages takes no longer than planning and verifying them."""

Columns = dict[str, npt.NDArray[Any] | list[str]]


class Instance(NamedTuple):
    """Tables of a request, and the columns of its workloads by their names in the contract."""

    tables: pb.PlanRequest
    columns: Columns

    def message(self) -> pb.PlanRequest:
        """The request."""
        request = pb.PlanRequest()
        request.CopyFrom(self.tables)
        for name, column in self.columns.items():
            getattr(request.workloads, name).extend(column if isinstance(column, list) else column.tolist())
        return request


def instance(n: int, seed: int = 0) -> Instance:
    """A morning's backlog of ``n`` workloads, for one pass of the greedy engine.

    * 20 ClusterQueues in 7 team cohorts, in 3 division cohorts, under one root: three levels of cohorts. Each queue has
      8 to 64 GPUs of each of 4 flavors, with 16 CPUs and 128 GiB a GPU; a third may borrow as much again at most, a
      third lend half at most.
    * 40 shapes of 1 to 16 pods of one GPU; each may run on 2, 3 or 4 of the flavors.
    * A third of the GPUs is busy with running work that ends within 4 hours.
    * Run times are log-normal (median 1 h, σ = 1, 1 minute to 2 days). Slack is uniform up to the time for which the
      work would keep all GPUs busy. One in five has no due date, a third of the work is hard. Weights are 1, 2 or 4.
      One in ten has a release date in the next two hours.
    """
    rng = np.random.default_rng(seed)
    tables = pb.PlanRequest(schema=1, now_ms=NOW, seed=seed, policy=pb.Policy(engine=pb.GREEDY))
    tables.budget.wall_ms = 1  # the first plan is what is measured
    total = _quota(tables.quota, rng)
    gpus = rng.choice(GPUS, size=SHAPES)
    for count in gpus.tolist():
        excluded = rng.choice(len(FLAVORS), size=int(rng.integers(0, 3)), replace=False)
        pod_set = tables.shapes.add().pod_sets.add(count=count, resources=[0, 1, 2], amounts=[16_000, 128 * GIB, 1])
        pod_set.excluded_flavors.extend(sorted(excluded.tolist()))

    shape = rng.integers(SHAPES, size=n)
    duration = np.clip(rng.lognormal(np.log(HOUR), 1.0, size=n), HOUR / 60, 48 * HOUR).astype(np.int64)
    reach = max(HOUR, int((gpus[shape] * duration).sum() / total))
    release = np.where(rng.random(n) < 0.1, rng.integers(1, 2 * HOUR, size=n), 0)
    due = NOW + release + duration + rng.integers(0, reach, size=n)
    pending: dict[str, npt.NDArray[Any]] = {
        "cluster_queue": rng.integers(QUEUES, size=n),
        "shape": shape,
        "state": np.full(n, pb.PENDING),
        "created_ms": NOW - rng.integers(0, 12 * HOUR, size=n),
        "release_ms": np.where(release > 0, NOW + release, 0),
        "duration_ms": duration,
        "due_ms": np.where(rng.random(n) < 0.2, 0, due),
        "hard": rng.random(n) < 1 / 3,
        "weight": rng.choice([1.0, 2.0, 4.0], size=n),
        "assignment": np.zeros(n, dtype=np.int64),
    }
    running = _running(tables, rng)
    more = len(running["state"])
    columns: Columns = {"id": [f"batch/job-{k}" for k in range(n)] + [f"batch/running-{k}" for k in range(more)]}
    for name, column in pending.items():
        columns[name] = np.concatenate([column, running.get(name, np.zeros(more, dtype=column.dtype))])
    return Instance(tables, columns)


def _quota(quota: pb.Quota, rng: np.random.Generator) -> int:
    """Fill in the tree; the number of GPUs in it."""
    quota.resources.extend(RESOURCES)
    for name in FLAVORS:
        quota.flavors.add(name=name)
    quota.cohorts.add(name="org")
    for k in range(DIVISIONS):
        quota.cohorts.add(name=f"division-{k}", parent="org")
    for k in range(TEAMS):
        quota.cohorts.add(name=f"team-{k}", parent=f"division-{k % DIVISIONS}")
    total = 0
    for k in range(QUEUES):
        queue = quota.cluster_queues.add(name=f"queue-{k:02d}", cohort=f"team-{k % TEAMS}")
        group = queue.resource_groups.add(covered_resources=range(len(RESOURCES)))
        for flavor in range(len(FLAVORS)):
            gpus = int(rng.integers(1, 9)) * 8
            total += gpus
            offer = group.flavors.add(flavor=flavor)
            for resource, each in enumerate((16_000, 128 * GIB, 1)):
                amount = pb.ResourceQuota(resource=resource, nominal=gpus * each)
                if k % 3 == 1:
                    amount.borrowing_limit = gpus * each
                if k % 3 == 2:
                    amount.lending_limit = gpus // 2 * each
                offer.resources.append(amount)
    return total


def _running(tables: pb.PlanRequest, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """Columns of running work of 8 GPUs each, on a third of each queue's own quota."""
    rows = []
    for position, queue in enumerate(tables.quota.cluster_queues):
        for offer in queue.resource_groups[0].flavors:
            for _ in range(round(offer.resources[2].nominal / 8 / 3)):
                held = tables.assignments.add(flavors=[offer.flavor] * 3, resources=[0, 1, 2])
                held.amounts.extend([8 * 16_000, 8 * 128 * GIB, 8])
                rows.append((position, int(rng.integers(HOUR // 60, 4 * HOUR))))
    queue_column, remaining = np.array(rows, dtype=np.int64).T
    return {
        "cluster_queue": queue_column,
        "state": np.full(len(rows), pb.RUNNING),
        "created_ms": np.full(len(rows), NOW - 12 * HOUR),
        "duration_ms": remaining,
        "assignment": np.arange(len(rows)),
    }


def measure(
    address: str, sizes: Sequence[int], runs: int, seed: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Median round trips, in milliseconds, for several numbers of pending workloads.

    Parameters
    ----------
    address
        A planner that takes calls.
    runs
        Calls that count, for each size; one more goes before them, so that all is warm.
    progress
        Told what is being done.

    Returns
    -------
    dict
        ``bench``, ``figures`` by size (``round trip``, its parts, ``planned`` rows and ``request`` and ``response``
        sizes), ``reference`` (what we want), ``bars`` and whether each ``holds``.

    Raises
    ------
    grpc.RpcError
        If the planner does not plan.
    """
    figures: dict[str, dict[str, float]] = {}
    with grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)]) as channel:
        # Bytes in, bytes out: reading and writing messages is timed apart.
        call = channel.unary_unary("/punctual.planner.v1.Planner/Plan", None, None)
        for n in sizes:
            progress(f"{n:,} pending")
            work = instance(n, seed)
            taken = [_round_trip(call, work) for _ in range(runs + 1)][1:]
            figures[str(n)] = {name: statistics.median(t[name] for t in taken) for name in taken[0]}
    overhead = {n: (f["decode"] + f["encode"]) / max(1e-9, f["solve"] + f["verify"]) for n, f in figures.items()}
    return {
        "bench": "rpc",
        "figures": figures,
        "reference": {"round trip": {str(n): ms for n, ms in TARGET_MS.items() if str(n) in figures}},
        "bars": {"(decode + encode) / (solve + verify)": {"most": MOST_OVERHEAD, "is": overhead}},
        "holds": all(ratio <= MOST_OVERHEAD for ratio in overhead.values()),
        "runs": runs,
        "seed": seed,
    }


def _round_trip(call: Callable[..., Any], work: Instance) -> dict[str, float]:
    """One call, and where its time went."""
    spent: dict[str, float] = {}

    @contextmanager
    def timed(part: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        spent[part] = (time.perf_counter() - begun) * 1000

    with timed("round trip"):
        with timed("client encode"):
            request = work.message().SerializeToString()
        answer = call(request, timeout=600)
        with timed("client decode"):
            response = pb.PlanResponse.FromString(answer)
            plan = response.plan
            for column in (plan.workload, plan.start_ms, plan.not_before_ms, plan.finish_ms, plan.assignment):
                np.fromiter(column, np.int64, len(column))
    timing = response.timing
    for part in ("decode", "solve", "verify", "encode"):
        spent[part] = getattr(timing, f"{part}_us") / 1000
    spent["rest"] = spent["round trip"] - sum(spent[part] for part in PARTS if part in spent)
    ordered = {part: spent[part] for part in ("round trip", *PARTS)}
    return ordered | {"planned": len(plan.workload), "request": len(request), "response": len(answer)}
