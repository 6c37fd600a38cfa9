"""How busy GPUs were, from the DCGM exporter's metrics in a Prometheus, put beside what was allocated.

``DCGM_FI_PROF_GR_ENGINE_ACTIVE`` (share of time that any engine was active) is taken where it is there, else
``DCGM_FI_DEV_GPU_UTIL`` (percent of time that a kernel ran). Both are gauges: a restart of the exporter leaves a gap,
and no jump. What was not scraped is not measured, and never counts as idle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from advisor.prometheus import Prometheus, Reading, Series, skew_told
from advisor.usage import Slot, Usage
from advisor.usage_gpus import profile_share
from advisor.usage_pods import Part, Pods
from scheduler.annotations import format_duration, format_instant
from scheduler.settings import DAY, HOUR, MINUTE

ACTIVE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
UTILISATION = "DCGM_FI_DEV_GPU_UTIL"

STEP = 5 * MINUTE
"""Resolution: means over so long are read."""

CHUNK = DAY
"""So much is asked for at once; less, when that is too much."""

_METRICS = ((ACTIVE, 1.0), (UTILISATION, 100.0))
"""Metrics, the better one first, and what they show of a GPU that is busy all the time."""


class Gpu(NamedTuple):
    """A GPU, or a slice of one."""

    host: str
    gpu: str
    slice: str
    profile: str


class Pod(NamedTuple):
    """Where a GPU's samples say it was used; both empty if nowhere."""

    namespace: str
    name: str


class Mean(NamedTuple):
    """Of a GPU used by a pod, in one step."""

    busy: float
    """0 to 1."""
    samples: float
    """That it is the mean of."""
    labels: Mapping[str, str]


Means = dict[tuple[int, Pod, Gpu], Mean]
"""By the end of the step (milliseconds), pod and GPU."""


def measure(
    usage: Usage,
    pods: Pods,
    prometheus: Prometheus,
    progress: Callable[[str], None] = lambda text: None,
    step: int = STEP,
) -> str:
    """Fill in how busy the GPUs of all slots were. What went wrong; empty if it answered for all of the window.

    What is known when it stops to answer is kept.

    Parameters
    ----------
    progress
        Told what is asked for.
    step
        Milliseconds.
    """
    measuring = _Measuring(usage, pods, step)
    reading = Reading(partial(_read, prometheus, step=step), step)
    for start, end in _chunks(usage.window.start, usage.window.end, step):
        progress(f"asking Prometheus for {format_instant(start)[:10]}")
        for means in reading.read(start, end):
            measuring.add(means)
        if reading.stopped:
            break
    usage.measured = measuring.anything
    measuring.remark(prometheus)
    if reading.failures:
        return reading.failures[0]
    return "" if measuring.anything else f"it has no {ACTIVE} and no {UTILISATION} in this window"


def _chunks(start: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut a window at whole steps, since the epoch: the last step of each chunk ends where the next begins."""
    start, end = start - start % step, end + -end % step
    while start < end:
        until = min(end, start - start % CHUNK + CHUNK)
        yield start, until
        start = until


class _Measuring:
    """Puts what was measured beside what was allocated."""

    def __init__(self, usage: Usage, pods: Pods, step: int) -> None:
        self._usage, self._pods, self._step = usage, pods, step
        self._slots: dict[tuple[str, int, int], Slot] = {}
        for slot in usage.slots:  # work with GPUs of two sorts is rare, and pods do not say which: those it has more of
            key = slot.entry.uid, slot.run.started, slot.hour
            if key not in self._slots or self._slots[key].allocated < slot.allocated:
                self._slots[key] = slot
        self._over: dict[str, float] = defaultdict(float)
        self._ambiguous = False
        self.anything = False

    def add(self, means: Means) -> None:
        """What was measured in a chunk."""
        self.anything = self.anything or bool(means)
        most: dict[str, float] = defaultdict(float)  # samples in a step; hosts may be scraped at other intervals
        for (_, _, gpu), mean in means.items():
            most[gpu.host] = max(most[gpu.host], mean.samples)
        shared = _shared(means, most)
        for (at, pod, gpu), mean in means.items():
            if not pod.name:
                continue  # a GPU that nobody uses, the whole of one that is cut into slices, or nobody knows who
            share = profile_share(gpu.profile)
            part = float(share.gpus) if share else 1.0
            full = mean.samples >= most[gpu.host] - 1 and mean.samples > 1
            length = self._step if full else mean.samples / most[gpu.host] * self._step
            if (at, gpu) in shared:
                self._usage.shared += mean.busy * length * part
            elif parts := self._pods.parts(pod.namespace, pod.name, at - self._step, at, mean.labels):
                self._give(parts, mean.busy, length, part)
            else:
                self._ambiguous = self._ambiguous or parts is None
                self._usage.elsewhere += mean.busy * length * part

    def _give(self, parts: list[Part], busy: float, length: float, part: float) -> None:
        """Give a mean to the runs that it is of: each as much as lies in it, of what was measured."""
        inside = sum(each.end - each.start for each in parts)
        for each in parts:
            for hour, overlap in self._usage.window.slots(each.start, each.end):
                slot = self._slots.get((each.entry.uid, each.run.started, hour))
                if slot is None:
                    continue
                seen = min(1.0, length / inside) * overlap * part
                if not slot.alone:
                    self._usage.shared += busy * seen
                    continue
                room = max(0.0, slot.allocated - slot.seen)
                if seen > room + 1:
                    self._over[f"{each.entry.family.namespace}/{each.entry.name}"] += seen - room
                slot.seen += min(seen, room)
                slot.busy += busy * min(seen, room)

    def remark(self, prometheus: Prometheus) -> None:
        """Say what is odd."""
        usage, remarks = self._usage, self._usage.remarks
        if usage.shared:
            remarks.append(
                f"{usage.shared / HOUR:.1f} busy GPU-hours of GPUs that pods share at the same time (time-slicing): "
                "of whom is not known"
            )
        if usage.elsewhere >= HOUR / 20:
            remarks.append(f"{usage.elsewhere / HOUR:.1f} busy GPU-hours are of pods that the ledger does not know")
        if self._ambiguous:
            remarks.append("some pods could be of two jobs by their name: how busy they were counts for neither")
        if self._over:
            name, most = max(self._over.items(), key=lambda item: item[1])
            remarks.append(
                f"more GPUs were measured than allocated for {len(self._over)} workloads "
                f"({name}: {most / HOUR:.1f} GPU-hours); what is too much is left out"
            )
        if told := skew_told("Prometheus", prometheus.skew):
            remarks.append(f"{told}: begin and end of runs may be off by as much")
        remarks += [f"Prometheus warns: {warning}" for warning in sorted(prometheus.warnings)]


def _read(prometheus: Prometheus, start: int, end: int, *, step: int) -> Means:
    found: Means = {}
    first, last, seconds, length = (start + step) / 1000, end / 1000, step / 1000, format_duration(step)
    for metric, full in _METRICS:
        means = prometheus.range(f"avg_over_time({metric}[{length}])", first, last, seconds)
        counts = prometheus.range(f"count_over_time({metric}[{length}])", first, last, seconds)
        for key, mean in _together(means, counts, full).items():
            found.setdefault(key, mean)
    return found


def _together(means: list[Series], counts: list[Series], full: float) -> Means:
    """Means and the numbers of their samples; of one GPU that is scraped twice, what has more samples counts."""
    samples = {(_identity(series.labels), at): value for series in counts for at, value in series.samples}
    found: Means = {}
    for series in means:
        identity, pod, gpu = _identity(series.labels), _pod(series.labels), _gpu(series.labels)
        for at, value in series.samples:
            key = round(at * 1000), pod, gpu
            mean = Mean(min(1.0, max(0.0, value / full)), samples.get((identity, at), 1.0), series.labels)
            if key not in found or found[key].samples < mean.samples:
                found[key] = mean
    return found


def _identity(labels: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in labels.items() if name != "__name__")


def _pod(labels: Mapping[str, str]) -> Pod:
    """Who uses the GPU. Scraped in the usual way, ``pod`` is the exporter's own, and the user's is ``exported_pod``."""
    if "exported_pod" in labels or "exported_namespace" in labels:
        return Pod(labels.get("exported_namespace", ""), labels.get("exported_pod", ""))
    return Pod(labels.get("namespace", ""), labels.get("pod", ""))


def _gpu(labels: Mapping[str, str]) -> Gpu:
    gpu = labels.get("UUID") or labels.get("gpu") or labels.get("device") or ""
    return Gpu(labels.get("Hostname", ""), gpu, labels.get("GPU_I_ID", ""), labels.get("GPU_I_PROFILE", ""))


def _shared(means: Means, most: Mapping[str, float]) -> set[tuple[int, Gpu]]:
    """GPUs that several pods had at once, by step. One after the other is not at once: together they fill one step."""
    users: dict[tuple[int, Gpu], list[float]] = defaultdict(list)
    for (at, pod, gpu), mean in means.items():
        if pod.name:
            users[at, gpu].append(mean.samples)
    return {key for key, counts in users.items() if len(counts) > 1 and sum(counts) > most[key[1].host] + 1}
