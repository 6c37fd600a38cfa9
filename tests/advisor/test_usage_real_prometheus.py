"""On a real Prometheus: that metrics of the DCGM exporter's names come out as they went in."""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from advisor.outcomes import Judge
from advisor.prometheus import Prometheus
from advisor.success import read_success
from advisor.usage import Window, allocate, rows, total
from advisor.usage_busy import measure
from advisor.usage_pods import Pods
from advisor.usage_services import answers
from cli.advise import app
from cli.ledger import object_of
from scheduler.ledger_entry import Entry
from scheduler.settings import HOUR, SECOND
from tests.advisor.work import START, changed, work

GPU = (
    'DCGM_FI_PROF_GR_ENGINE_ACTIVE{{gpu="{n}",UUID="GPU-{n}",device="nvidia{n}",modelName="NVIDIA A100",'
    'Hostname="node-1",container="main",namespace="{namespace}",pod="{pod}"{more}}} {value}'
)
UTIL = GPU.replace("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL")


def tool(name: str) -> str:
    """A program of Prometheus', or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here (Debian: apt-get install prometheus)")
    return found


@contextmanager
def prometheus(folder: Path, **configuration: Any) -> Iterator[str]:
    """A real one with its data in a folder; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    command = [
        tool("prometheus"),
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    ]
    command.append("--storage.tsdb.retention.time=100y")
    with (folder / "log").open("wb") as log, subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as run:
        try:
            wait_until(lambda: ready(address), f"Prometheus is ready: {folder / 'log'}")
            yield f"http://{address}"
        finally:
            run.terminate()


def ready(address: str) -> bool:
    """Whether it answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> None:
    """Wait for something that must come to be."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def page(*lines: str) -> str:
    """What an exporter shows."""
    metrics = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL")
    text = ""
    for metric in metrics:
        found = [line for line in lines if line.startswith(metric)]
        text += f"# TYPE {metric} gauge\n" + "".join(f"{line}\n" for line in found) if found else ""
    return text


def busy_work() -> tuple[list[Entry], list[tuple[float, float, str]]]:
    """Work of six hours, and samples of it: begin and end in hours, and the line."""
    entries = [
        work("train-1", ((0, 4),), gpus=2, verdict="verified", deadline=5),
        work("eval-1", ((1, 3),), gpus=1, verdict="rejected"),
        work("slice-1", ((0, 2),), gpus=1, resource="nvidia.com/mig-1g.10gb"),
        work("sweep-1", ((4, None),), gpus=1, outcome=None),
    ]
    line = GPU.format
    samples = [
        (0, 4, line(n=0, namespace="team", pod="train-1-bcdf5", more="", value=0.9)),
        (0, 2, line(n=1, namespace="team", pod="train-1-bcdf5", more="", value=0.5)),  # then a gap
        (1, 3, UTIL.format(n=2, namespace="team", pod="eval-1-bcdf5", more="", value=40)),
        (0, 2, line(n=3, namespace="team", pod="slice-1-bcdf5", more=',GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"', value=1)),
        (4, 6, line(n=0, namespace="team", pod="sweep-1-bcdf5", more="", value=0.25)),
        (0, 6, line(n=4, namespace="", pod="", more="", value=0)),
    ]
    return entries, samples


def backfill(folder: Path, lines: list[tuple[str, str]]) -> None:
    """Make the data of a Prometheus from samples: metric, and line with a time."""
    text = ""
    for name, group in itertools.groupby(sorted(lines, key=lambda each: each[0]), key=lambda each: each[0]):
        kind = "gauge" if name.startswith("DCGM") else "unknown"
        text += f"# TYPE {name} {kind}\n" + "".join(line for _, line in group)
    (folder / "samples").write_text(text + "# EOF\n")
    command = [tool("promtool"), "tsdb", "create-blocks-from", "openmetrics", "samples", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_what_a_real_prometheus_has_of_six_hours(tmp_path: Path) -> None:
    """Backfilled by Prometheus' own tool, asked through the command: busy, productive, gaps, slices as they were."""
    entries, samples = busy_work()
    lines: list[tuple[str, str]] = []
    for begin, end, line in samples:
        name = line.partition("{")[0]
        at = START / 1000 + begin * 3600 + 7
        while at < START / 1000 + end * 3600:
            lines.append((name, f"{line} {at:.0f}\n"))
            at += 30
    backfill(tmp_path, lines)
    (tmp_path / "ledger.jsonl").write_text("".join(json.dumps(object_of(entry)) + "\n" for entry in entries))
    with prometheus(tmp_path) as url:
        words = [
            "-f",
            str(tmp_path / "ledger.jsonl"),
            "--until",
            "2026-11-30T06:00:00Z",
            "--since",
            "6h",
            "--prometheus",
            url,
        ]
        result = CliRunner().invoke(app, ["usage", *words, "-o", "json"])
    assert result.exit_code == 0, result.output
    found = {row["key"].removeprefix("team/"): row for row in json.loads(result.stdout)["by"]["workload"]}
    figures = ("allocatedGpuHours", "measuredGpuHours", "busyGpuHours", "productiveGpuHours", "unjudgedGpuHours")
    told = {name: tuple(row[figure] for figure in figures) for name, row in found.items()}
    assert told == {
        "train-1": pytest.approx((8, 6, 4.6, 4.6, 0), abs=0.03),
        "eval-1": pytest.approx((2, 2, 0.8, 0, 0), abs=0.03),
        "slice-1": pytest.approx((2 / 7, 2 / 7, 2 / 7, 0, 2 / 7), abs=0.03),
        "sweep-1": pytest.approx((2, 2, 0.5, 0, 0.5), abs=0.03),
    }
    hours = json.loads(result.stdout)["by"]["hour"]
    assert [row["measuredGpuHours"] for row in hours] == pytest.approx([2 + 1 / 7, 3 + 1 / 7, 2, 1, 1, 1], abs=0.03)


def test_goals_of_a_service_that_is_restarted(tmp_path: Path) -> None:
    """Its counters begin at 0 again in the middle of an hour: the hours are judged as if they had not."""
    success = read_success("version: 1\nservices: {chat: {match: {namespace: chat}, goals: {ttft: {p90: 500ms}}}}\n")
    entry = work("chat-7d9f8c5b6-x2k7p", ((0, None),), outcome=None, kind="Pod", namespace="chat")
    lines, counts = [], {"0.5": 0, "1.0": 0, "+Inf": 0}
    for minute in range(0, 181):
        quick = 10 if minute <= 60 else 5 if minute <= 120 else 10  # of ten requests a minute
        if minute == 150:
            counts = dict.fromkeys(counts, 0)
        counts = {le: count + (quick if le == "0.5" else 10) for le, count in counts.items()}
        for le, count in counts.items():
            name = "vllm:time_to_first_token_seconds_bucket"
            labels = f'{{namespace="chat",pod="{entry.name}",le="{le}"}}'
            lines.append((name, f"{name}{labels} {count} {START // 1000 + 60 * minute}\n"))
    backfill(tmp_path, lines)
    with prometheus(tmp_path) as url:
        found = answers(success, [entry], Window(START, START + 3 * HOUR), Prometheus(url))
    assert [found.good_hours["chat", START + hour * HOUR] for hour in range(3)] == [True, False, True]
    assert found.answered["chat"] == pytest.approx(1800, rel=0.02)
    assert found.good["chat"] == pytest.approx(1200, rel=0.02)


@contextmanager
def exporter(lines: list[str]) -> Iterator[str]:
    """Shows what is in a list, as the DCGM exporter does; its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            body = page(*lines).encode()
            self.send_response(200 if lines else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.long
def test_a_real_prometheus_that_scrapes_an_exporter(tmp_path: Path) -> None:
    """Scraped with labels of the exporter's own pod: users' pods come as exported_pod, and a gap as not measured."""
    line = GPU.format
    lines = [
        line(n=0, namespace="team", pod="train-1-bcdf5", more="", value=0.75),
        line(n=1, namespace="team", pod="eval-1-bcdf5", more="", value=1),
        UTIL.format(n=1, namespace="team", pod="eval-1-bcdf5", more="", value=3),
    ]
    with exporter(lines) as target:
        labels = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"}
        scrape = {"job_name": "dcgm", "static_configs": [{"targets": [target], "labels": labels}]}
        with prometheus(tmp_path, **{"global": {"scrape_interval": "200ms"}, "scrape_configs": [scrape]}) as url:
            asked = Prometheus(url)
            step = 2 * SECOND

            def begun() -> bool:
                return bool(asked.range("DCGM_FI_PROF_GR_ENGINE_ACTIVE", time.time() - 2, time.time(), 1))

            wait_until(begun, "Prometheus has not scraped the exporter")
            start = (time.time_ns() // 1_000_000 // step + 1) * step
            time.sleep(start / 1000 + 4 - time.time())
            kept, lines[:] = list(lines), []  # the exporter is restarted
            time.sleep(2)
            lines[:] = kept
            time.sleep(2.5)
            hours = (start - START) / HOUR, None
            entries = [
                changed(work(name, (hours,), gpus=1, outcome=None, verdict=""), updated=start)
                for name in ("train-1", "eval-1")
            ]
            window = Window(start, start + 8 * SECOND)
            usage = allocate(entries, window, window.end)
            assert measure(usage, Pods(entries, window.end), asked, step=step) == ""
    found = {row.key: row for row in rows(usage, "workload", Judge().worth)}
    assert total(usage).allocated * 3600 == pytest.approx(16)
    for name, busy in (("team/train-1", 0.75), ("team/eval-1", 1.0)):
        row = found[name]
        assert row.busy is not None
        assert row.allocated * 3600 == pytest.approx(8)
        assert 4.5 < row.seen * 3600 < 7, "about six of eight seconds were scraped"
        assert row.busy / row.seen == pytest.approx(busy)
        assert row.unjudged == row.busy
    assert usage.elsewhere == usage.shared == 0
