"""Demand on a service, on a real Prometheus: servers that are restarted, and one that comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.advise_requests import COUNTERS, requests
from advisor.prometheus import Prometheus
from advisor.usage import Window
from scheduler.settings import HOUR, MINUTE
from tests.advisor.test_usage_real_prometheus import backfill, prometheus
from tests.advisor.work import START


def test_demand_of_a_service_whose_servers_are_restarted(tmp_path: Path) -> None:
    """Two a second and three, then five from the first after its restart; counters that begin at 0 are no fall."""
    lines: list[tuple[str, str]] = []
    name = COUNTERS[0]
    first = second = 0
    for minute in range(0, 121):
        if minute == 60:
            first = 0  # restarted
        first += 60 * (5 if 90 <= minute < 100 else 2)
        second += 60 * 3
        at = (START + minute * MINUTE) // 1000
        for pod, reason, count in (
            ("chat-a", "stop", first // 2),
            ("chat-a", "length", first // 2),
            ("other", "", 9**9),
        ):
            labels = f'{{namespace="{"chat" if reason else "else"}",pod="{pod}",finished_reason="{reason}"}}'
            lines.append((name, f"{name}{labels} {count} {at}\n"))
        if minute >= 30:
            lines.append((name, f'{name}{{namespace="chat",pod="chat-b",finished_reason="stop"}} {second} {at}\n'))
    backfill(tmp_path, lines)
    with prometheus(tmp_path) as url:
        found = requests(Prometheus(url), Window(START, START + 2 * HOUR), pods='namespace="chat"')
        own = requests(Prometheus(url), Window(START, START + HOUR), query=f'sum(rate({name}{{pod="chat-a"}}[5m]))')
    assert found.rate == pytest.approx(8, rel=0.01)
    assert (found.servers, found.growth, found.wrong) == (2, None, "")
    assert START + 95 * MINUTE <= found.at <= START + 100 * MINUTE
    assert found.measured >= 0.95
    assert (own.rate, own.servers) == (pytest.approx(2, rel=0.01), None)
