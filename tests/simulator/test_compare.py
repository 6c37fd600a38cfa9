"""Two runs side by side."""

import pytest

from simulator.compare import figures, in_words
from simulator.timeline import GPU, Record, Timeline

START = 1_800_000_000_000
MINUTE = 60_000


def run(**starts: tuple[int, int | None]) -> Timeline:
    """A run of jobs of one hour and two GPUs: minute of the start, minute of the deadline, by name."""
    records = [
        Record(
            "ns",
            name,
            "q",
            START,
            None if due is None else START + due * MINUTE,
            {GPU: 2},
            admitted=START + start * MINUTE,
            started=START + start * MINUTE,
            ended=START + (start + 60) * MINUTE,
            completed=START + (start + 60) * MINUTE,
            finished=START + (start + 60) * MINUTE,
            starts=1,
        )
        for name, (start, due) in starts.items()
    ]
    return Timeline({record.key: record for record in records})


def test_figures_say_what_a_run_comes_to() -> None:
    """Late jobs and by how much, peak, idle GPU-hours, wait of best effort, makespan."""
    told = figures(run(a=(0, 60), b=(60, 90), c=(30, None)), gpus=4)
    assert told.late == ("b",)
    assert told.hours_late == pytest.approx(0.5)
    assert told.peak == 4
    assert told.idle == pytest.approx(2 * 0.5)  # c waits for half an hour beside two free GPUs; b then beside none
    assert told.wait == pytest.approx(0.5)
    assert told.makespan == pytest.approx(2.0)
    assert told.to_json()["late"] == ["b"]


def test_words_tell_who_gained_and_who_paid() -> None:
    """Rescued jobs, jobs that moved and are still on time, and best effort that waits longer are each named."""
    before = run(a=(0, 300), b=(60, 90), free=(0, None))
    after = run(a=(60, 300), b=(0, 90), free=(30, None))
    assert in_words(before, after) == [
        "On time now: b (before, b ended 30m late).",
        "To make room, a starts up to 1h later, and still on time.",
        "Without a deadline, free starts up to 30m later.",
    ]


def test_words_do_not_hide_a_loss() -> None:
    """A job that was on time and is late now is named."""
    assert in_words(run(a=(0, 90)), run(a=(60, 90))) == ["Late now, on time before: a."]


def test_nothing_changed_is_nothing_said() -> None:
    """Two equal runs need no words."""
    assert in_words(run(a=(0, 90)), run(a=(0, 90))) == []


def test_many_names_are_cut_short() -> None:
    """Long lists name five and count the rest."""
    before = run(**{f"j{n}": (60, 90) for n in range(9)})
    after = run(**{f"j{n}": (0, 90) for n in range(9)})
    assert in_words(before, after)[0].startswith("On time now: j0, j1, j2, j3, j4 and 4 more (before, j0 ended")
