"""How much is asked of a service: requests a second at its busiest, from a Prometheus, and whether that grows.

Without a query it is one of the counters of requests that model servers have. Those count answers: what was asked in
vain is not in them, so a query on what stands before the servers (an ingress, a gateway) tells more. ``rate`` sees
through restarts. Times that were not measured are left out and told, never taken for quiet ones.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from statistics import median

from advisor.prometheus import Prometheus, Reading, skew_told
from advisor.success import Match
from advisor.usage import Window
from advisor.usage_services import either
from scheduler.annotations import format_instant
from scheduler.settings import DAY, MINUTE

COUNTERS = (
    "vllm:request_success_total",
    "sglang:num_requests_total",
    "tgi_request_count",
    "nv_inference_request_success",
    "http_requests_total",
)
"""Of vLLM, SGLang, TGI, Triton, and web servers in general. The first that is there counts."""

STEP = 5 * MINUTE
"""A rate is the mean over so long."""

WEEK = 7 * DAY

ENOUGH = 0.8
"""A day counts for growth if this part of it was measured."""

SURE = 1.96
"""Standard deviations from which on a trend is none of chance: 95 of 100."""


class NoRequests(Exception):
    """How much is asked is not known; the message says why, and what to do."""


@dataclass(frozen=True)
class Requests:
    """What was asked of a service in a window.

    Attributes
    ----------
    rate
        Requests a second in its busiest five minutes.
    at
        Their end, in milliseconds since the Unix epoch.
    servers
        Pods that answered then; None: the query does not tell.
    growth
        By so many requests a second the busiest time of a day grows in a week; 0: it neither grows nor falls for sure;
        None: not known, as it takes two whole weeks.
    measured
        Which part of the window was measured.
    query
        What was asked.
    wrong
        Why the source did not answer for all of it; empty if it did.
    remarks
        What is odd, in words.
    """

    rate: float
    at: int
    servers: int | None
    growth: float | None
    measured: float
    query: str
    wrong: str = ""
    remarks: tuple[str, ...] = ()


Rates = dict[int, tuple[float, frozenset[str]]]
"""By the end of each step: requests a second, and the pods that had them."""


def check_query(query: str) -> str:
    """What is wrong with a query that should give requests a second; empty if nothing is seen."""
    if not query.strip():
        return "is empty; write sum(rate(NAME[5m]))"
    counts = re.search(r"[\w:]_(total|count)\b", query)
    if counts and not re.search(r"\b(i?rate|deriv|increase|delta)\s*\(", query):
        return f"{query}: counts all requests since a server started; write sum(rate({query.strip()}[5m]))"
    if re.search(r"\bincrease\s*\(", query) and "/" not in query:
        return f"{query}: increase() counts requests over all of its time; rate() gives requests a second"
    return ""


def selector(match: Match | None) -> str:
    """Which pods a service of ``success.yaml`` has, for a query; empty if that cannot be said without its work."""
    if match is None or match.namespace is None:
        return ""
    chosen = f'namespace=~"{_pattern(match.namespace)}"'
    return chosen if match.family is None else f'{chosen},pod=~"{_pattern(match.family)}(-.*)?"'


def _pattern(text: str) -> str:
    return ".*".join(either([part]) if part else "" for part in text.split("*"))


def requests(
    prometheus: Prometheus,
    window: Window,
    *,
    query: str = "",
    pods: str = "",
    told: Callable[[str], None] = lambda text: None,
) -> Requests:
    """Ask how much was asked.

    Parameters
    ----------
    query
        PromQL that gives requests a second, of all servers or one series for each; empty: the counters are tried.
    pods
        Selector of the service's pods, for those.
    told
        Told what is asked for.

    Raises
    ------
    NoRequests
        If nothing is known of any of that time.
    """
    candidates = [query] if query else [f"sum by (pod) (rate({name}{{{pods}}}[5m]))" for name in COUNTERS]
    failures: list[str] = []
    for candidate in candidates:
        reading = Reading(partial(_read, prometheus, candidate), STEP)
        rates: Rates = {}
        for start, end in _weeks(window):
            told(f"asking Prometheus for requests since {format_instant(start)[:10]}")
            for part in reading.read(start, end):
                rates.update(part)
            if reading.stopped:
                break
        failures += reading.failures
        if rates:
            return _sum_up(rates, candidate, window, failures, prometheus)
        if reading.stopped:
            break
    if failures:
        raise NoRequests(failures[0])
    if query:
        raise NoRequests(f"Prometheus {prometheus.url} has nothing for {query} in this time")
    raise NoRequests(
        f"Prometheus {prometheus.url} has none of {', '.join(COUNTERS)} for {{{pods}}} in this time; "
        "say what counts requests: --demand-query"
    )


def _weeks(window: Window) -> list[tuple[int, int]]:
    start, end = window.start - window.start % STEP, window.end - window.end % STEP
    return [(at, min(at + WEEK, end)) for at in range(start, end, WEEK)]


def _read(prometheus: Prometheus, query: str, start: int, end: int) -> Rates:
    rates: dict[int, float] = defaultdict(float)
    pods: dict[int, set[str]] = defaultdict(set)
    for series in prometheus.range(query, (start + STEP) / 1000, end / 1000, STEP / 1000):
        pod = series.labels.get("pod") or series.labels.get("instance") or ""
        for at, value in series.samples:
            if value < 0:
                raise NoRequests(f"{query} gives {value:g}: that is no number of requests a second")
            rates[round(at * 1000)] += value
            pods[round(at * 1000)] |= {pod} - {""}
    return {at: (rate, frozenset(pods[at])) for at, rate in rates.items()}


def _sum_up(rates: Rates, query: str, window: Window, failures: Sequence[str], prometheus: Prometheus) -> Requests:
    at = max(rates, key=lambda each: (rates[each][0], -each))
    rate, pods = rates[at]
    steps = max(1, (window.end - window.end % STEP - window.start + window.start % STEP) // STEP)
    remarks = [f"Prometheus warns: {warning}" for warning in sorted(prometheus.warnings)]
    if skew := skew_told("Prometheus", prometheus.skew):
        remarks.append(skew)
    return Requests(
        rate=rate,
        at=at,
        servers=len(pods) or None,
        growth=growth({each: value for each, (value, _) in rates.items()}, window.end),
        measured=min(1.0, len(rates) / steps),
        query=query,
        wrong=failures[0] if failures else "",
        remarks=tuple(remarks),
    )


def growth(rates: Mapping[int, float], end: int) -> float | None:
    """By how much the busiest time of a day grows in a week: the median over pairs of days whole weeks apart.

    Days of a week differ, so each is compared with its like only. 0 where a test for trends (Hirsch, Slack and Smith's
    seasonal Kendall test, Water Resources Research 18, 1982) cannot tell it from chance; None with less than two weeks.

    Parameters
    ----------
    rates
        Requests a second, by the end of the step.
    end
        Of the last day.
    """
    steps: dict[int, list[float]] = defaultdict(list)
    for at, rate in rates.items():
        steps[(end - at) // DAY].append(rate)  # days before the end
    peaks = {day: max(each) for day, each in steps.items() if len(each) >= ENOUGH * DAY / STEP}
    if len(peaks) < 14:
        return None
    slopes: list[float] = []
    sign, variance = 0, 0.0
    for weekday in range(7):
        days = sorted((day for day in peaks if day % 7 == weekday), reverse=True)
        for earlier, later in combinations(days, 2):
            slopes.append((peaks[later] - peaks[earlier]) / ((earlier - later) // 7))
            sign += (slopes[-1] > 0) - (slopes[-1] < 0)
        count = len(days)
        variance += count * (count - 1) * (2 * count + 5) / 18
    if not slopes or (abs(sign) - 1) / variance**0.5 < SURE:
        return 0.0
    return median(slopes)
