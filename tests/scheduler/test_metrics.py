"""Metrics, the HTTP port, and log lines."""

from __future__ import annotations

import io
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler.health import HealthServer
from scheduler.logs import LogFormat, configure
from scheduler.metrics import Metrics


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_counts_what_the_loop_tells() -> None:
    """Plans, releases and errors end up under the documented names."""
    now = [100.0]
    metrics = Metrics(clock=lambda: now[0])
    metrics.planned("cpsat", 0.3)
    metrics.released("done", 0.01)
    metrics.released("try again", 0.2)
    metrics.error("watch")
    metrics.notice_dropped()
    metrics.watching("Job", lambda: True)
    metrics.leading(lambda: True)
    now[0] += 7
    assert value(metrics, "punctual_plans_total", engine="cpsat") == 1
    assert value(metrics, "punctual_plan_duration_seconds_count") == 1
    assert value(metrics, "punctual_plan_age_seconds") == 7
    assert value(metrics, "punctual_releases_total", outcome="done") == 1
    assert value(metrics, "punctual_releases_total", outcome="try_again") == 1
    assert value(metrics, "punctual_release_duration_seconds_sum") == pytest.approx(0.21)
    assert value(metrics, "punctual_errors_total", where="watch") == 1
    assert value(metrics, "punctual_notices_dropped_total") == 1
    assert value(metrics, "punctual_watch_synced", kind="Job") == 1
    assert value(metrics, "punctual_leader") == 1
    assert value(metrics, "punctual_heartbeat_age_seconds") == 7


def test_the_planner_is_up_until_it_fails() -> None:
    """The planner counts as up from a plan that came until one that did not come."""
    metrics = Metrics()
    assert value(metrics, "punctual_planner_up") == 0
    metrics.planned("greedy", 0.1)
    assert value(metrics, "punctual_planner_up") == 1
    metrics.plan_failed("UNAVAILABLE")
    assert value(metrics, "punctual_planner_up") == 0
    assert value(metrics, "punctual_plan_failures_total", reason="UNAVAILABLE") == 1
    assert value(metrics, "punctual_plans_total", engine="greedy") == 1


def test_queues_that_vanish_are_forgotten() -> None:
    """Gauges show the queues of the last round, no others."""
    metrics = Metrics()
    metrics.queues(gated={"a": 3, "b": 1}, in_flight={"a": 1}, running={}, late={"b": 2})
    metrics.queues(gated={"a": 2}, in_flight={}, running={"a": 1}, late={})
    assert value(metrics, "punctual_gated_workloads", cluster_queue="a") == 2
    assert value(metrics, "punctual_running_workloads", cluster_queue="a") == 1
    assert value(metrics, "punctual_gated_workloads", cluster_queue="b") is None
    assert value(metrics, "punctual_in_flight_workloads", cluster_queue="a") is None
    assert value(metrics, "punctual_late_forecast_workloads", cluster_queue="b") is None


def test_names_follow_the_conventions() -> None:
    """Everything is ours by its prefix, has a help text, and is counted in base units."""
    for family in text_string_to_metric_families(Metrics().text()):
        assert family.name.startswith("punctual_")
        assert family.documentation
        assert not any(unit in family.name for unit in ("_ms", "milliseconds", "minutes"))


@pytest.fixture
def health() -> Iterator[tuple[HealthServer, dict[str, str]]]:
    problems = {"alive": "", "ready": ""}
    server = HealthServer("127.0.0.1:0", Metrics(), alive=lambda: problems["alive"], ready=lambda: problems["ready"])
    yield server, problems
    server.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_serves_metrics_and_checks(health: tuple[HealthServer, dict[str, str]]) -> None:
    """The port answers Prometheus and the kubelet, and says what is wrong when something is."""
    server, problems = health
    status, text = get(server, "/metrics")
    assert status == 200
    assert "punctual_planner_up" in text
    assert get(server, "/healthz") == (200, "ok\n")
    assert get(server, "/readyz?verbose") == (200, "ok\n")
    problems["ready"] = "jobs have not been listed yet"
    assert get(server, "/readyz") == (503, "jobs have not been listed yet\n")
    assert get(server, "/healthz")[0] == 200
    problems["alive"] = "the loop hangs"
    assert get(server, "/healthz") == (503, "the loop hangs\n")
    assert get(server, "/")[0] == 404


@pytest.mark.parametrize("address", ["8080", "localhost:", "localhost:http", "localhost:99999"])
def test_a_bad_address_is_refused(address: str) -> None:
    """An address without a port is refused with an example of a good one."""
    with pytest.raises(ValueError, match="HOST:PORT"):
        HealthServer(address, Metrics(), alive=str, ready=str)


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_json_lines(restored_logging: None) -> None:
    """Each log line is one JSON object with time, level, logger, message, the extra fields and the traceback."""
    stream = io.StringIO()
    configure(LogFormat.JSON, stream=stream)
    log = logging.getLogger("scheduler.test")
    log.info("released %s", "a", extra={"namespace": "team-a"})
    try:
        raise RuntimeError("line one\nline two")
    except RuntimeError:
        log.exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "scheduler.test", "released a")
    assert first["namespace"] == "team-a"
    assert first["time"].endswith("+00:00")
    assert "line two" in second["exception"]


def test_text_lines(restored_logging: None) -> None:
    """Text lines show level, message and the extra fields."""
    stream = io.StringIO()
    configure(LogFormat.TEXT, stream=stream)
    logging.getLogger("scheduler.test").warning("no sidecar", extra={"address": "unix:///x"})
    assert "warning" in stream.getvalue()
    assert stream.getvalue().endswith("no sidecar  address=unix:///x\n")
