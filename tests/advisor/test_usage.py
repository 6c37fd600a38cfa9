"""What was allocated, by queue, team, workload, flavor and hour."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.usage import BY, Window, allocate, peak, rows, total
from advisor.usage_export import BadExport, read_export
from advisor.usage_gpus import parse_shares, profile_share, share_of
from scheduler.ledger_entry import Entry, Outcome
from scheduler.settings import DAY, HOUR
from tests.advisor.work import START, changed, work, works

DAY_LONG = Window(START, START + DAY)
EXAMPLE = Path(__file__).parents[2] / "examples" / "05-results"


def by(key: str, *entries: Entry, now: int = START + DAY) -> dict[str, float]:
    """Allocated GPU-hours by something."""
    return {row.key: row.allocated for row in rows(allocate(entries, DAY_LONG, now), key)}


def test_each_hour_has_what_was_held_in_it() -> None:
    """Two GPUs from half past one to three: one GPU-hour in the first hour that it touches, two in the next."""
    assert by("hour", work(runs=((1.5, 3),))) == {"2026-11-30T01:00:00Z": 1.0, "2026-11-30T02:00:00Z": 2.0}


def test_only_what_lies_in_the_window_counts() -> None:
    """What began before and ends after it is cut off; what runs is held until now, not until the window's end."""
    assert by("queue", work(runs=((-5, 30),))) == {"cq": 48.0}
    assert by("queue", work(runs=((20, None),), outcome=None), now=START + 22 * HOUR) == {"cq": 4.0}
    assert by("queue", work(runs=((-3, -1),))) == {}


def test_runs_that_were_interrupted_count() -> None:
    """All times that quota was held, not only the last."""
    assert by("workload", work(runs=((0, 1), (5, 8)))) == {"team/train-1": 8.0}


def test_work_without_gpus_has_none() -> None:
    """Nothing is allocated to work that asks for cpu only."""
    assert by("queue", changed(work(), gpus=0, usage=(("cpu", "cpu", 4000),))) == {}


@pytest.mark.parametrize(
    ("profile", "share"),
    [
        ("1g.5gb", "1/7"),
        ("3g.40gb", "3/7"),
        ("7g.80gb", "1"),
        ("1g.6gb", "1/4"),
        ("2g.12gb", "1/2"),
        ("1c.3g.40gb", "3/7"),
    ],
)
def test_a_slice_is_a_part_of_a_gpu(profile: str, share: str) -> None:
    """MIG profiles say how many of seven slices they are; some GPUs have four."""
    found = profile_share(profile)
    assert found is not None
    assert found.gpus == Fraction(share)
    assert share_of(f"nvidia.com/mig-{profile}", {}).gpus == Fraction(share)


def test_slices_are_counted_as_parts() -> None:
    """Seven slices of a seventh are a GPU."""
    slices = work(gpus=7, resource="nvidia.com/mig-1g.5gb", runs=((0, 1),))
    assert by("flavor", slices) == {"a100": pytest.approx(1.0)}


def test_what_part_of_a_gpu_a_replica_is_must_be_said() -> None:
    """Time-sliced replicas count as whole GPUs, with a remark, unless somebody says what they are."""
    shared = work(gpus=4, resource="nvidia.com/gpu.shared", runs=((0, 1),))
    usage = allocate([shared], DAY_LONG, START + DAY)
    assert total(usage).allocated == 4.0
    assert "nvidia.com/gpu.shared" in usage.remarks[0]
    said = parse_shares(["nvidia.com/gpu.shared=1/4"])
    usage = allocate([shared], DAY_LONG, START + DAY, said)
    assert (total(usage).allocated, usage.remarks) == (1.0, [])


@pytest.mark.parametrize(
    "text", ["gpu=1", "nvidia.com/gpu.shared", "nvidia.com/gpu=0", "nvidia.com/gpu=2", "nvidia.com/gpu=1/0"]
)
def test_shares_that_make_no_sense_are_refused(text: str) -> None:
    """With what to write."""
    with pytest.raises(ValueError, match=r"write|is no fraction|more than 0"):
        parse_shares([text])


def test_what_nobody_saw_ending_is_said() -> None:
    """Work that was gone when the controller came back held its GPUs at most until then."""
    entry = work(outcome=Outcome.UNKNOWN)
    lost = changed(entry, runs=tuple(replace(run, ending=str(Outcome.UNKNOWN)) for run in entry.runs))
    assert "too many" in allocate([lost], DAY_LONG, START + DAY).remarks[0]


@given(entries=works(), now=st.integers(-24, 48))
@settings(max_examples=25, deadline=None)
def test_it_adds_up_however_it_is_shown(entries: list[Entry], now: int) -> None:
    """By queue, team, workload, flavor or hour: the sum is the same, and no more than the peak all the time."""
    usage = allocate(entries, DAY_LONG, START + now * HOUR)
    whole = total(usage).allocated
    for key in BY:
        assert sum(row.allocated for row in rows(usage, key)) == pytest.approx(whole)
    assert whole <= peak(usage, entries, START + now * HOUR) * 24 + 1e-6
    assert all(row.allocated > 0 for row in rows(usage, "hour"))


def test_a_long_window_is_shown_by_day() -> None:
    """More than a month by the hour is more than anybody reads."""
    usage = allocate([work(runs=((0, 30),))], Window(START - 40 * DAY, START + 2 * DAY), START + 2 * DAY)
    assert [row.key for row in rows(usage, "hour")] == ["2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"]


def test_an_export_is_as_good_as_the_ledger(tmp_path: Path) -> None:
    """What punctual ledger export writes gives the same figures, and a line that is no entry is named."""
    entries = read_export(EXAMPLE / "ledger.jsonl")
    assert len(entries) == 24
    assert sum(len(entry.runs) for entry in entries) == 25
    assert {entry.verdict for entry in entries} == {None, "verified", "rejected"}
    broken = tmp_path / "broken.jsonl"
    broken.write_text((EXAMPLE / "ledger.jsonl").read_text() + "{}\n")
    with pytest.raises(BadExport, match=r"broken.jsonl:25: no field"):
        read_export(broken)
    broken.write_text("uid,namespace\n")
    with pytest.raises(BadExport, match=r"broken.jsonl:1: .*punctual ledger export -o json"):
        read_export(broken)
