"""In which hours a service was within its goals, from the histograms that model servers have in a Prometheus.

A histogram tells how many requests took no longer than the bounds of its buckets. So a goal (``p95: 500ms``) was kept
if 95 % of the requests are below the last bound that is no more than 500 ms, and missed if 95 % are not even below the
next bound; in between nobody knows, and it is not guessed. Counters are read by ``increase``, which sees through
restarts. Requests that got no answer are in no histogram.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from advisor.outcomes import Judge
from advisor.prometheus import Prometheus, SourceError
from advisor.success import Service, Success, percentile
from advisor.usage import Window
from scheduler.ledger_entry import Entry
from scheduler.settings import DAY, HOUR

HISTOGRAMS: Mapping[str, Sequence[str]] = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "perToken": (
        "vllm:request_time_per_output_token_seconds",
        "sglang:request_time_per_output_token_seconds",
        "tgi_request_mean_time_per_token_duration",
    ),
    "endToEnd": (
        "vllm:e2e_request_latency_seconds",
        "sglang:e2e_request_latency_seconds",
        "tgi_request_duration",
        "http_request_duration_seconds",
    ),
}
"""By goal: histograms in seconds, of vLLM, SGLang, TGI, and web servers in general. The first that is there counts."""

MOST_NAMES = 100
"""More pods than that are asked for by their namespace alone."""


@dataclass
class Answers:
    """What services answered.

    Attributes
    ----------
    good_hours
        By service and begin of the hour: whether it was within its goals; None where that is not known.
    answered
        Requests that were answered, by service.
    good
        Of those, the ones in hours in which all goals were kept.
    remarks
        What is not known, in words.
    wrong
        Why a Prometheus did not answer; empty if it did.
    """

    good_hours: dict[tuple[str, int], bool | None] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    good: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    remarks: list[str] = field(default_factory=list)
    wrong: str = ""


Buckets = dict[int, dict[float, float]]
"""By begin of the hour: how many requests took no longer than a bound (seconds)."""


def answers(
    success: Success,
    entries: Iterable[Entry],
    window: Window,
    prometheus: Prometheus,
    progress: Callable[[str], None] = lambda text: None,
) -> Answers:
    """What the services of ``success.yaml`` that have work in the ledger answered, hour by hour.

    Parameters
    ----------
    progress
        Told what is asked for.
    """
    told, judge = Answers(), Judge(success)
    work: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if name := judge.service(entry)[0]:
            work[name].append(entry)
    if window.bucket != HOUR:
        if work:
            told.remarks.append("services are judged by the hour, in windows of a month at most: here they are not")
        return told
    for name, found in sorted(work.items()):
        progress(f"asking Prometheus for {name}")
        try:
            _judge(told, name, success.services[name], selector_of(found), window, prometheus)
        except SourceError as error:
            told.wrong = str(error)
            break
    return told


def _judge(told: Answers, name: str, service: Service, selector: str, window: Window, prometheus: Prometheus) -> None:
    kept: dict[int, list[bool | None]] = defaultdict(list)
    counted: dict[int, float] = {}
    for goal, limits in service.goals.limits().items():
        buckets = _read(prometheus, HISTOGRAMS[goal], selector, window)
        if not buckets:
            told.remarks.append(f"{name}: no histogram of {goal} in Prometheus ({', '.join(HISTOGRAMS[goal])})")
        for hour, bounds in buckets.items():
            counted[hour] = max(counted.get(hour, 0.0), max(bounds.values()))
        for hour, _ in window.slots(window.start, window.end):
            verdicts = [within(buckets.get(hour, {}), percentile(each), ms / 1000) for each, ms in limits.items()]
            kept[hour] += verdicts
    for hour, verdicts in kept.items():
        good = False if False in verdicts else None if None in verdicts else True
        told.good_hours[name, hour] = good
        told.answered[name] += counted.get(hour, 0.0)
        told.good[name] += counted.get(hour, 0.0) if good else 0.0
    unknown = sum(good is None for (each, _), good in told.good_hours.items() if each == name)
    if unknown:
        told.remarks.append(
            f"{name}: in {unknown} of {len(kept)} hours it is not known whether it kept its goals "
            "(no requests, or limits between the bounds of its histograms)"
        )


def within(bounds: Mapping[float, float], share: float, limit: float) -> bool | None:
    """Whether a share of requests took no longer than a limit; None if the buckets do not tell.

    Parameters
    ----------
    bounds
        How many requests took no longer than so many seconds; infinity is all of them.
    """
    total = bounds.get(math.inf, 0.0)
    if total <= 0:
        return None
    below = max((count for bound, count in bounds.items() if bound <= limit), default=0.0)
    above = min((count for bound, count in bounds.items() if bound >= limit), default=total)
    if below >= share * total * (1 - 1e-9):
        return True
    return False if above < share * total * (1 - 1e-9) else None


def _read(prometheus: Prometheus, metrics: Sequence[str], selector: str, window: Window) -> Buckets:
    """The buckets of the first of these histograms that is there."""
    for metric in metrics:
        found: Buckets = defaultdict(dict)
        start = window.start - window.start % HOUR
        while start < window.end:
            end = min(start + 7 * DAY, window.end + -window.end % HOUR)
            query = f"sum by (le) (increase({metric}_bucket{{{selector}}}[1h]))"
            for series in prometheus.range(query, (start + HOUR) / 1000, end / 1000, 3600):
                try:
                    bound = float(series.labels.get("le", ""))
                except ValueError:
                    continue
                for at, count in series.samples:
                    found[round(at * 1000) - HOUR][bound] = count
            start = end
        if found:
            return found
    return {}


def selector_of(entries: Iterable[Entry]) -> str:
    """Which pods: of all runs of a service, by their names where those are not too many."""
    spaces = sorted({entry.family.namespace for entry in entries})
    names = sorted({entry.name for entry in entries})
    chosen = f'namespace=~"{either(spaces)}"'
    if len(names) <= MOST_NAMES:
        chosen += f',pod=~"({either(names)})(-.*)?"'
    return chosen


def either(names: Iterable[str]) -> str:
    """A regular expression for any of these names, to stand in a PromQL string."""
    return "|".join(re.escape(name).replace("\\", "\\\\") for name in names)
