"""What a timeline says about a run."""

import pytest

from simulator.timeline import GPU, Record, Timeline

START = 1_800_000_000_000


def record(name: str, gpus: int, created: int, started: int, ended: int, due: int | None = None) -> Record:
    """A job, in seconds from the start; its quota is held from half a second before to one second after."""
    at = [START + 1000 * second for second in (created, started, ended)]
    return Record(
        "ns", name, "q", at[0], None if due is None else START + 1000 * due, {GPU: gpus},
        admitted=at[1] - 500, started=at[1], ended=at[2], completed=at[2] + 500, finished=at[2] + 1000, starts=1,
    )  # fmt: skip


def timeline(*records: Record) -> Timeline:
    """A timeline of some records."""
    return Timeline({r.key: r for r in records})


def test_idle_counts_free_gpus_only_while_someone_waits() -> None:
    """Free GPUs count from when somebody waits until all have started."""
    run = timeline(record("a", 2, 0, 2, 10), record("b", 4, 4, 12, 20), record("c", 1, 0, 0, 30))
    # a waits 0-2 with 3 free; b waits 4-10 with 1 free, 10-12 with 3 free; nobody waits after
    assert run.idle(4) == pytest.approx(2 * 3 + 6 * 1 + 2 * 3)


def test_peak_is_the_most_quota_held_at_once() -> None:
    """Quota is held from admission to Finished, so two jobs overlap although their pods do not."""
    assert timeline(record("a", 2, 0, 1, 10), record("b", 3, 0, 11, 20)).peak() == 5
    assert timeline(record("a", 2, 0, 1, 10), record("b", 3, 0, 12, 20)).peak() == 3
    assert Timeline().peak() == 0


def test_late_is_what_completed_after_its_due_date_or_never() -> None:
    """A job is on time up to its due date; best effort is neither; what never completed is late."""
    on_time, late, free = record("a", 1, 0, 1, 10, due=11), record("b", 1, 0, 1, 11, due=11), record("c", 1, 0, 1, 99)
    never = record("d", 1, 0, 1, 5, due=9)
    never.completed = None
    assert [r.on_time for r in (on_time, late, free, never)] == [True, False, None, False]
    assert timeline(on_time, late, free, never).late() == [late, never]


def test_makespan_is_from_first_creation_to_last_completion() -> None:
    """In seconds; nothing completed is no makespan."""
    assert timeline(record("a", 1, 5, 6, 10), record("b", 1, 7, 8, 20)).makespan() == pytest.approx(15.5)
    assert Timeline().makespan() == 0
