"""``punctual plan``: what people see, what machines get, and what is said about mistakes."""

import itertools
import json
import re
import time
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from cli.main import app
from cli.planview import Clock, length

NOW = "2027-01-15T08:00:00Z"
GPU = "nvidia.com/gpu"
Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs ``punctual plan`` as of NOW, in UTC, on 80 columns."""
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "80")
    time.tzset()

    def run(*arguments: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, ["plan", "--now", NOW, "--budget", "300ms", *arguments], input=stdin)

    return run


def told(result: Result) -> dict[str, Any]:
    """The JSON that was printed."""
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_the_seed_example_is_planned_by_due_dates(run: Run) -> None:
    """Four jobs on four GPUs: those due first start first, all are on time, nothing is wrong."""
    result = run("-f", "examples/01-four-jobs", "-o", "json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    data = told(result)
    assert data["now"] == NOW
    assert data["order"] == ["research/eval-c", "research/eval-d", "research/train-a", "research/train-b"]
    assert [w["start"] for w in data["workloads"]] == [NOW, NOW, "2027-01-15T08:30:00Z", "2027-01-15T08:30:00Z"]
    assert {w["onTime"] for w in data["workloads"]} == {True}
    assert data["workloads"][2]["reason"] == (
        "waits for quota: 4 of 4 nvidia.com/gpu in flavor gpu in use until 2027-01-15T08:30:00Z"
    )
    assert data["peak"] == {"gpu": {"nvidia.com/gpu": "4"}}
    assert data["gap"] == 0


def test_nodes_among_the_files_count(run: Run, tmp_path: Path) -> None:
    """Quota for four jobs of 2 GPUs on three nodes of 3 GPUs: the fourth waits for nodes, and says so."""
    for name in ("jobs.yaml", "queues.yaml"):
        text = Path("examples/01-four-jobs", name).read_text().replace("nominalQuota: 4", "nominalQuota: 8")
        (tmp_path / name).write_text(text)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{k}"}, "status": {"allocatable": {GPU: "3"}}}
        for k in range(3)
    ]
    (tmp_path / "nodes.yaml").write_text(yaml.safe_dump_all(nodes))
    result = run("-f", str(tmp_path), "-o", "json")
    assert (result.exit_code, result.stderr) == (0, "")
    *first, last = told(result)["workloads"]
    assert {workload["reason"] for workload in first} == {"starts now: there is room"}
    assert last["reason"] == (
        f"waits for nodes: those of flavor gpu have no room for pods of 2 {GPU} until 2027-01-15T08:30:00Z"
    )


def test_only_the_hopeless_job_of_two_teams_is_late(run: Run) -> None:
    """One job cannot make it, every other deadline is met; with --fail-on-late that is an exit code."""
    result = run("examples/02-two-teams", "-o", "json", "--fail-on-late")
    assert result.exit_code == 3
    late = [w["name"] for w in told(result)["workloads"] if w["onTime"] is False]
    assert late == ["too-ambitious"]
    assert run("examples/02-two-teams").exit_code == 0


def test_mistakes_are_told_with_file_and_line_and_the_others_are_planned(run: Run) -> None:
    """Each mistake is one line with its place; exit code 1; the sound jobs have a place in the plan."""
    result = run("-f", "examples/03-mistakes", "-o", "json")
    assert result.exit_code == 1
    text = Path("examples/03-mistakes/jobs.yaml").read_text().splitlines()
    places = {}
    for line in result.stderr.splitlines():
        match = re.match(r"examples/03-mistakes/jobs\.yaml:(\d+): Job research/([a-z-]+): (.*)", line)
        assert match, line
        places[match[2]] = match[3]
        assert text[int(match[1]) + 2] == f"  name: {match[2]}"
    assert places["no-offset"].startswith('punctual.kueue/deadline: "2026-12-01T06:00:00" has no UTC offset; write ')
    assert places["no-unit"].startswith('punctual.kueue/duration: "30" has no unit')
    assert places["too-big"].startswith("not planned: insufficient quota for nvidia.com/gpu in flavor gpu")
    assert places["lost"] == "LocalQueue research/gpu does not exist"
    data = told(result)
    assert set(data["order"]) == {"research/good", "research/no-offset", "research/no-unit"}
    assert len(data["remarks"]) == 4


def test_the_table_fits_80_columns_without_colour(run: Run) -> None:
    """Piped output is plain text of at most 80 columns: table, chart with bars, and what it comes to."""
    result = run("-f", "examples/01-four-jobs")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.stdout
    assert re.search(r"^ 1 +research/eval-c +now +08:30 +08:45 +15m +on time", result.stdout, re.MULTILINE)
    assert re.search(r"^ 3 +research/train-a +08:30 +09:00 +11:00 +2h00m +on time", result.stdout, re.MULTILINE)
    bars = {line.split()[0]: line.index("█") for line in lines if "█" in line}
    assert list(bars) == ["research/eval-c", "research/eval-d", "research/train-a", "research/train-b"]
    assert bars["research/eval-c"] == bars["research/eval-d"] < bars["research/train-a"] == bars["research/train-b"]
    assert "4 of 4 deadlines will be met." in lines


def test_long_names_and_reasons_still_fit(run: Run, tmp_path: Path) -> None:
    """Names of 63 characters and late jobs with reasons keep to 80 columns too."""
    jobs = Path("examples/01-four-jobs/jobs.yaml").read_text().replace("train-a", "t" * 63).replace("45m", "20m")
    (tmp_path / "jobs.yaml").write_text(jobs)
    result = run("-f", "examples/01-four-jobs/queues.yaml", str(tmp_path))
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "research/eval-c: late by 10m: it could not meet its deadline" in result.stdout


def test_a_narrow_terminal_loses_no_column(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However narrow it is, every column is there, whole but for the names."""
    monkeypatch.setenv("COLUMNS", "40")
    jobs = Path("examples/01-four-jobs/jobs.yaml").read_text().replace("train-a", "t" * 63)
    (tmp_path / "jobs.yaml").write_text(jobs)
    lines = run("-f", "examples/01-four-jobs/queues.yaml", str(tmp_path)).stdout.splitlines()
    (heading,) = [line for line in lines if "JOB" in line]
    assert heading.split() == ["#", "JOB", "START", "FINISH", "DEADLINE", "SLACK"]
    (row,) = [line for line in lines if line.startswith(" 3 ")]
    assert re.search(r"08:30 +09:00 +11:00 +2h00m +on time", row)


def test_wide_tells_the_reason_of_each_job_on_one_line(run: Run) -> None:
    """-o wide has queue, request, flavor and the reason, whole."""
    result = run("-f", "examples/01-four-jobs", "-o", "wide")
    (line,) = [line for line in result.stdout.splitlines() if "research/train-a" in line]
    assert re.search(
        r"gpus +2 nvidia.com/gpu +gpu +08:30 .* "
        r"waits for quota: 4 of 4 nvidia.com/gpu in flavor gpu in use until 08:30 *$",
        line,
    )


def test_yaml_is_the_json(run: Run) -> None:
    """Both have the same content."""
    as_json = told(run("-f", "examples/01-four-jobs", "-o", "json"))
    assert yaml.safe_load(run("-f", "examples/01-four-jobs", "-o", "yaml").stdout) == as_json


def test_a_bad_quantity_is_told_of_the_job(run: Run, tmp_path: Path) -> None:
    """What is wrong in a Job's pod template is told of the Job, and the others are planned."""
    good, *others = Path("examples/01-four-jobs/jobs.yaml").read_text().split("---\n")
    bad = good.replace('nvidia.com/gpu: "2"', "nvidia.com/gpu: many").replace(
        "nvidia.com/gpu: 2", "nvidia.com/gpu: many"
    )
    assert bad != good
    (tmp_path / "jobs.yaml").write_text("---\n".join([bad, *others]))
    result = run("-f", "examples/01-four-jobs/queues.yaml", str(tmp_path), "-o", "json")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert re.search(r"jobs.yaml:\d+: Job \S+ cannot be read: 'many' is not a quantity", line)
    assert len(told(result)["workloads"]) == len(others)


def test_the_standard_input_is_read(run: Run) -> None:
    """A minus reads what is piped in, and places are told by line."""
    text = (
        Path("examples/03-mistakes/queues.yaml").read_text()
        + "---\n"
        + Path("examples/03-mistakes/jobs.yaml").read_text()
    )
    result = run("-f", "-", "-o", "json", stdin=text)
    assert "research/good" in told(result)["order"]
    assert re.search(r"^<stdin>:\d+: Job research/lost: LocalQueue", result.stderr, re.MULTILINE)


def test_what_a_cluster_has_is_shown_as_it_is_or_as_if_it_were_ours(run: Run, tmp_path: Path) -> None:
    """A dump of a cluster without Punctual is Kueue's to order; with --gate-all it is planned."""
    queues = Path("examples/01-four-jobs/queues.yaml").read_text().replace('managed: "true"', 'managed: "false"')
    jobs = Path("examples/01-four-jobs/jobs.yaml").read_text()
    seconds = itertools.count(50)
    dumped = re.sub(
        r"^  name: (\S+)$",
        lambda match: f'{match[0]}\n  uid: u-{match[1]}\n  creationTimestamp: "2027-01-15T07:59:{next(seconds)}Z"',
        jobs,
        flags=re.MULTILINE,
    )
    (tmp_path / "all.yaml").write_text(queues + "---\n" + dumped)
    result = run("-f", str(tmp_path), "-o", "json")
    assert [w["onTime"] for w in told(result)["workloads"]] == [True, True, False, False]
    assert told(result)["order"][0] == "research/train-a"
    result = run("-f", str(tmp_path), "-o", "json", "--gate-all")
    assert [w["onTime"] for w in told(result)["workloads"]] == [True] * 4


def test_nothing_to_plan_is_said(run: Run) -> None:
    """Queues without jobs are no error."""
    result = run("-f", "examples/01-four-jobs/queues.yaml")
    assert result.exit_code == 0
    assert result.stdout == "Nothing to plan: no job waits or runs.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-f", "nowhere"], 1, "nowhere: cannot be read: No such file or directory"),
        (["-f", "examples/01-four-jobs", "--now", "2026-12-01T06:00:00"], 2, "has no UTC offset"),
        (["-f", "examples/01-four-jobs", "--budget", "1"], 2, "has no unit"),
        (["-f", "examples/01-four-jobs", "--default-duration", "0s"], 2, "is not positive"),
        (["--gate-all"], 2, "works with files only"),
        (["-f", "examples/01-four-jobs", "--now", "1969-12-01T06:00:00Z"], 2, "is before 1970"),
        (["-f", "examples/01-four-jobs", "--seed", "-1"], 2, "greater than or equal to 0"),
        (["--kubeconfig", "nowhere"], 2, "no cluster to talk to"),
        (["--kubeconfig", "examples/01-four-jobs/queues.yaml"], 2, "no cluster to talk to"),
        (["-f", "examples/01-four-jobs", "--solver", "unix:///nowhere"], 1, "planner at unix:///nowhere: UNAVAILABLE"),
    ],
)
def test_what_cannot_be_done_is_said_without_a_traceback(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str
) -> None:
    """Wrong usage, or no cluster, is exit code 2, everything else 1; the message says what and where."""
    monkeypatch.setenv("COLUMNS", "200")
    result = run(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_the_time_is_now_unless_it_is_given() -> None:
    """Without --now jobs from files are planned as if created at this moment: a deadline of 45m leaves 15m of 30m."""
    result = CliRunner().invoke(app, ["plan", "-f", "examples/01-four-jobs", "-o", "json", "--budget", "300ms"])
    assert result.exit_code == 0
    assert {w["onTime"] for w in told(result)["workloads"]} == {True}


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        (0, "08:00"),
        (90_000, "08:01:30"),
        (90_000 + 3_600_000, "09:01"),
        (16 * 3_600_000, "Sat 00:00"),
        (10 * 86_400_000, "2027-01-25 08:00"),
        (-86_400_000, "Thu 08:00"),
        (1 << 51, "9999-12-30 00:00"),
    ],
)
def test_instants_are_written_as_people_read_them(instant: int, expected: str) -> None:
    """The day only when it is another, the date when it is far, seconds only when it is near."""
    now = 1_800_000_000_000
    assert Clock(now, UTC)(now + instant) == expected


def test_instants_are_in_the_zone() -> None:
    """Another zone, another clock."""
    now = 1_800_000_000_000
    assert Clock(now, timezone(timedelta(hours=-5)))(now) == "03:00"
    assert Clock(now, UTC).full(now) == "Fri 2027-01-15 08:00:00 UTC"


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (0, "0s"),
        (-400, "0s"),
        (45_000, "45s"),
        (90_000, "1m30s"),
        (-900_000, "-15m"),
        (7_500_000, "2h05m"),
        (-97_200_000, "-1d03h"),
    ],
)
def test_lengths_have_at_most_two_units(milliseconds: int, expected: str) -> None:
    """Short enough for a column, and never a negative zero."""
    assert length(milliseconds) == expected


def test_no_state_is_cut_at_80_columns(run: Run) -> None:
    """Where the table has no room, only names may be cut: every state stays whole, and so does its column."""
    lines = run("-f", "examples/02-two-teams").output.splitlines()
    rows = [line for line in lines if re.match(r" \d+ ", line)]
    assert len(rows) == 8
    assert all(len(line) <= 80 for line in lines)
    assert sum("best effort" in line for line in rows) == 2


def test_the_same_files_give_the_same_plan() -> None:
    """Without a time budget a plan does not depend on how fast the machine happens to be."""
    arguments = ["plan", "-f", "examples/02-two-teams", "-o", "json", "--now", NOW]
    first, second = (CliRunner().invoke(app, arguments).stdout for _ in range(2))
    assert json.loads(first)["order"]
    assert first == second
