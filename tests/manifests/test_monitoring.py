"""Alerts, dashboard and their page fit the metrics that there are."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.health import HealthServer
from scheduler.ledger import Ledger
from scheduler.ledger_writer import LedgerWriter
from scheduler.metrics import Metrics

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "manifests" / "monitoring"
PAGE = (ROOT / "docs" / "alerts.md").read_text()
RULES: dict[str, Any] = yaml.safe_load((MONITORING / "rules.yaml").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
TARGETS: list[str] = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def tool(name: str) -> str:
    """A program of Prometheus', or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here (Debian: apt-get install prometheus)")
    return found


def busy_metrics() -> Metrics:
    """Metrics of a controller that has seen everything once, so that every metric has a sample."""
    metrics = Metrics()
    metrics.build(version="1", identity="me")
    LedgerWriter(Ledger("never-opened.db"), keep_ms=0, registry=metrics.registry)
    metrics.planned("cpsat", 0.3, 0.01)
    metrics.plan_failed("unavailable")
    metrics.released("done", 0.01)
    metrics.release_latency(0.02)
    states = ("gated", "in_flight", "running", "late", "overdue", "stuck", "overrunning", "bypassing")
    metrics.queues(**{state: {"q": 1} for state in states})
    metrics.finished("q", "gold", lateness=-5.0, forecast_error=1.0, estimate_ratio=0.9, estimate_source="default")
    metrics.overran("q")
    metrics.idle({("q", "nvidia.com/gpu"): 2.0})
    metrics.idle({})
    metrics.unsupported([("q", "FAIR_SHARING")])
    metrics.leads({"gpu": 60_000})
    metrics.watching("Job", lambda: True)
    metrics.policy("abc", "ConfigMap")
    metrics.policy_valid(True)
    metrics.policy_read("good")
    figures = {"missed": 1.0, "idleGpus": 2.0, "idleGpuSeconds": 3.0}
    metrics.beside(3600.0, 4, dict.fromkeys(("real", "planned", "kueue"), figures))
    return metrics


def samples() -> set[str]:
    """Names of all samples."""
    return {line.partition("{")[0].split()[0] for line in busy_metrics().text().splitlines() if line[:1] != "#"}


def named_in(text: str) -> set[str]:
    """Names of metrics in a text."""
    return set(re.findall(r"\bpunctual_\w+", text))


def test_the_rules_are_the_same_for_the_operator() -> None:
    """rules.yaml and the PrometheusRule say the same."""
    assert yaml.safe_load((MONITORING / "prometheusrule.yaml").read_text())["spec"] == RULES


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_is_about_something_and_says_what_to_do(alert: dict[str, Any]) -> None:
    """Each alert reads metrics that exist, has a severity and a summary, and a place on the page of that name."""
    metrics = named_in(alert["expr"])
    assert metrics
    assert metrics <= samples()
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == "docs/alerts.md"
    assert anchor == alert["alert"].lower()
    heading, _, rest = PAGE.partition(f"### {alert['alert']}\n")
    assert rest.strip(), f"{heading[-60:]} has nothing about it"


def test_the_page_has_no_alert_that_is_gone() -> None:
    """What the page explains is what the rules have, in their order."""
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [alert["alert"] for alert in ALERTS]


def test_the_page_lists_every_metric() -> None:
    """The table has each metric by its full name, and no other."""
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in samples() if not name.endswith("_created")}
    assert named_in(PAGE.partition("## Alerts")[0]) - {"punctual_"} == families


def test_the_dashboard_shows_metrics_that_exist() -> None:
    """Each panel's queries read something that the controller exports."""
    assert TARGETS
    for expression in TARGETS:
        assert named_in(expression)
        assert named_in(expression) <= samples(), expression


def test_the_pod_monitor_finds_the_controller() -> None:
    """Its selector and its port are those of the Deployment."""
    monitor = yaml.safe_load((MONITORING / "podmonitor.yaml").read_text())["spec"]
    pod = yaml.safe_load((ROOT / "manifests" / "controller" / "deployment.yaml").read_text())["spec"]["template"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    ports = {port["name"] for container in pod["spec"]["containers"] for port in container.get("ports", ())}
    assert {endpoint["port"] for endpoint in monitor["podMetricsEndpoints"]} <= ports


def test_every_alert_fires_in_its_case_and_no_other(tmp_path: Path) -> None:
    """Prometheus' own checker takes the rules, and its own engine fires them in the cases of alerts.test.yaml."""
    promtool = tool("promtool")
    shutil.copy(MONITORING / "rules.yaml", tmp_path)
    shutil.copy(Path(__file__).with_name("alerts.test.yaml"), tmp_path)
    for command in (["check", "rules", "--lint-fatal", "rules.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run([promtool, *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    cases = (tmp_path / "alerts.test.yaml").read_text()
    untried = [a["alert"] for a in ALERTS if f'"{a["alert"]}"' not in cases]
    assert not untried


def test_the_metrics_are_as_prometheus_wants_them() -> None:
    """Prometheus' linter has nothing to say about names, units and help texts."""
    done = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=busy_metrics().text(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    """A real Prometheus with our rules, that scrapes the controller's port; its address."""
    program = tool("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    server = HealthServer("127.0.0.1:0", busy_metrics(), alive=str, ready=str)
    scrape = {"job_name": "punctual", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}
    configuration = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "250ms"},
        "rule_files": [str(MONITORING / "rules.yaml")],
        "scrape_configs": [scrape],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = [program, "--config.file=prometheus.yml", "--storage.tsdb.path=data", f"--web.listen-address={address}"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log) as run:
        yield f"http://{address}"
        run.terminate()
    server.stop()


def ask(address: str, path: str, **query: str) -> Any:
    """The data of an answer of Prometheus' API; None while there is none."""
    try:
        with urllib.request.urlopen(f"{address}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=5) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def rule_health(address: str) -> dict[str, str]:
    """By alert: ok, err or unknown."""
    return {rule["name"]: rule["health"] for group in ask(address, "rules")["groups"] for rule in group["rules"]}


@pytest.mark.long
def test_a_real_prometheus_scrapes_and_evaluates(prometheus: str) -> None:
    """It reads the controller's page, and every rule and every panel evaluates without an error."""
    end = time.monotonic() + 60
    while not (ask(prometheus, "query", query="punctual_running_workloads") or {}).get("result"):
        assert time.monotonic() < end, "Prometheus has not scraped the page"
        time.sleep(0.1)
    (target,) = ask(prometheus, "targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    assert {name for name in ask(prometheus, "label/__name__/values") if name.startswith("punctual_")} == samples()
    while "unknown" in (health := rule_health(prometheus)).values():
        assert time.monotonic() < end, "Prometheus has not evaluated the rules"
        time.sleep(0.1)
    assert health == {alert["alert"]: "ok" for alert in ALERTS}
    for expression in TARGETS:
        assert ask(prometheus, "query", query=expression) is not None, expression
