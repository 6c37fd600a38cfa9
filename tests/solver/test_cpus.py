"""The number of CPUs is the one that the process may use."""

from __future__ import annotations

from pathlib import Path

import pytest

from solver.cpus import cpus


@pytest.fixture
def four_cpus(monkeypatch):
    """A process bound to four CPUs."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})


def write(path: Path, text: str) -> None:
    """A file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 4)],
)
def test_quota_of_a_container(tmp_path, quota, expected):
    """The quota of a version 2 cgroup limits the CPUs, rounded down, but there is at least one."""
    write(tmp_path / "cpu.max", quota + "\n")
    assert cpus(tmp_path, tmp_path / "none") == expected


@pytest.mark.usefixtures("four_cpus")
def test_tightest_cgroup_counts(tmp_path):
    """Of all cgroups above the process the tightest counts."""
    write(tmp_path / "cgroup", "0::/a/b\n")
    write(tmp_path / "fs/a/b/cpu.max", "max 100000\n")
    write(tmp_path / "fs/a/cpu.max", "300000 100000\n")
    assert cpus(tmp_path / "fs", tmp_path / "cgroup") == 3


@pytest.mark.usefixtures("four_cpus")
def test_version_1(tmp_path):
    """The CFS quota of a version 1 cgroup limits the CPUs; −1 does not."""
    write(tmp_path / "cgroup", "5:cpuset:/c\n4:cpu,cpuacct:/d\n")
    write(tmp_path / "fs/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "fs/cpu/cpu.cfs_period_us", "100000\n")
    write(tmp_path / "fs/cpu/d/cpu.cfs_quota_us", "200000\n")
    write(tmp_path / "fs/cpu/d/cpu.cfs_period_us", "100000\n")
    assert cpus(tmp_path / "fs", tmp_path / "cgroup") == 2


@pytest.mark.usefixtures("four_cpus")
def test_no_cgroups(tmp_path):
    """Where there are no cgroups, the CPUs are those that the process is bound to."""
    assert cpus(tmp_path, tmp_path / "none") == 4
