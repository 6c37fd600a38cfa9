"""What users say: read exactly, complained about when it cannot be."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.annotations import (
    DEADLINE,
    DURATION,
    EARLIEST_START,
    LATENESS,
    MAX_DURATION,
    WEIGHT,
    format_duration,
    format_instant,
    parse_duration,
    parse_instant,
    read_wishes,
)
from scheduler.settings import DAY, HOUR, MINUTE, SECOND

CREATED = 1_800_000_000_000  # 2027-01-15T08:00:00Z


def complaint(**annotations: str) -> str:
    wishes = read_wishes({f"punctual.kueue/{k.replace('_', '-')}": v for k, v in annotations.items()}, CREATED)
    assert len(wishes.complaints) == 1
    return wishes.complaints[0].message


def test_all_annotations() -> None:
    """All five annotations are read, durations counted from creation."""
    wishes = read_wishes(
        {
            DEADLINE: "8h",
            DURATION: "2h30m",
            EARLIEST_START: "2027-01-15T10:00:00+01:00",
            WEIGHT: "2.5",
            LATENESS: "hard",
            "example.com/deadline": "nonsense",
        },
        CREATED,
    )
    assert wishes.complaints == ()
    assert wishes.deadline == CREATED + 8 * HOUR
    assert wishes.duration == 150 * MINUTE
    assert wishes.earliest_start == CREATED + HOUR
    assert (wishes.weight, wishes.hard) == (2.5, True)


def test_nothing_said() -> None:
    """Without annotations there are no wishes and no complaints."""
    assert read_wishes(None, CREATED) == read_wishes({}, CREATED)
    assert read_wishes({}, CREATED).deadline is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2h30m", 150 * MINUTE),
        ("1d12h", 36 * HOUR),
        ("500ms", 500),
        ("1.5h", 90 * MINUTE),
        (".5s", 500),
        ("1m1m", 2 * MINUTE),
        ("0", 0),
        ("-90s", -90 * SECOND),
        ("+90s", 90 * SECOND),
        ("1us", 1),
        ("1µs", 1),
        ("1μs", 1),
        ("300ns", 1),
    ],
)
def test_durations(text: str, milliseconds: int) -> None:
    """Durations are Go's, with days, in milliseconds, rounded up."""
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "h", "1", "1.5", "1 h", "1H", "1w", "2h30", "--1h", "1h-", ".h", "٣h", "1e3s"])
def test_no_durations(text: str) -> None:
    """Anything else is no duration."""
    with pytest.raises(ValueError, match="write"):
        parse_duration(text)


@given(st.integers(-10 * MAX_DURATION, 10 * MAX_DURATION))
def test_duration_round_trip(duration: int) -> None:
    """A duration reads back as it was written."""
    assert parse_duration(format_duration(duration)) == duration


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1)),
    st.integers(-23 * 60 - 59, 23 * 60 + 59),
)
def test_instant_round_trip(time: datetime, offset: int) -> None:
    """An instant reads back as it was written, whatever the offset."""
    time = time.replace(microsecond=time.microsecond // 1000 * 1000)
    here = time.replace(tzinfo=timezone(timedelta(minutes=offset)))
    instant = (here - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_instant(here.isoformat(timespec="milliseconds")) == instant
    assert parse_instant(format_instant(instant)) == instant


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "2026-12-01T06:00:00",
            '"2026-12-01T06:00:00" has no UTC offset; write 2026-12-01T06:00:00Z or 2026-12-01T06:00:00+01:00',
        ),
        ("2026-12-01 06:00", "no UTC offset; write 2026-12-01T06:00:00Z"),
        ("2026-12-01", "is a day, not a time; write 2026-12-01T00:00:00Z"),
        ("2026-12-01T06:00Z", "no seconds; write 2026-12-01T06:00:00Z"),
        ("2026-13-01T06:00:00Z", "month must be in 1..12"),
        ("2026-02-30T06:00:00Z", "not a time"),
        ("2026-12-01T06:00:00+25:00", "not a time"),
        ("tomorrow", "neither a time like"),
        ("06:00", "not a duration"),
        ("20261201T060000Z", "not a duration"),
        ("8", "has no unit; write 8s, 8m, 8h or 8d"),
        ("0s", "is not positive"),
        ("-1h", "is not positive"),
        ("4000d", "longer than ten years"),
        ("2027-01-15T07:59:59Z", "before the object's creation at 2027-01-15T08:00:00Z"),
    ],
)
def test_bad_deadlines(text: str, words: str) -> None:
    """A deadline that cannot be meant is absent, and the message says what to write instead."""
    message = complaint(deadline=text)
    assert message.startswith("punctual.kueue/deadline: ")
    assert words in message


@pytest.mark.parametrize("text", ["0", "0s", "-5m", "87601h", "soon", "90", "", "nan", "1e99h"])
def test_bad_estimates(text: str) -> None:
    """A run time of zero, negative, beyond ten years or unreadable is complained about."""
    assert complaint(duration=text).startswith("punctual.kueue/duration: ")


@pytest.mark.parametrize(
    "text", ["nan", "NaN", "inf", "-inf", "-1", "-0.5", "1e400", "heavy", "", "1_000", "0x10", "١"]
)
def test_bad_weights(text: str) -> None:
    """A weight that is no finite number from 0 up is complained about."""
    assert complaint(weight=text).startswith("punctual.kueue/weight: ")


def test_bad_lateness() -> None:
    """Lateness is one of two words."""
    assert "neither hard nor soft" in complaint(lateness="firm")


def test_one_bad_annotation_spares_the_others() -> None:
    """A bad value is absent; the others count."""
    wishes = read_wishes({DEADLINE: "2027-01-15T12:00:00", DURATION: "1h", WEIGHT: "3"}, CREATED)
    assert wishes.deadline is None
    assert (wishes.duration, wishes.weight, len(wishes.complaints)) == (HOUR, 3.0, 1)


def test_past_deadline_is_legal() -> None:
    """A deadline right at creation, long past by now, is one: the work is late already."""
    assert read_wishes({DEADLINE: "2027-01-15T08:00:00Z"}, CREATED).deadline == CREATED


texts = st.one_of(
    st.text(max_size=120),
    st.text(alphabet="0123456789.dhmsnuµ+-eE", max_size=30),
    st.from_regex(r"[0-9]{1,4}-[0-9]{1,2}-[0-9]{1,2}[T ][0-9:.]{0,20}(Z|[+-][0-9:]{0,6})?", fullmatch=True),
)


@given(st.dictionaries(st.sampled_from([DEADLINE, DURATION, EARLIEST_START, WEIGHT, LATENESS]), texts))
@example({DEADLINE: "9" * 5000 + "h", WEIGHT: "1" * 5000, EARLIEST_START: "9" * 5000})
@example({DEADLINE: "0001-01-01T00:00:00+14:00"})
def test_never_raises(annotations: dict[str, str]) -> None:
    """Whatever somebody writes: read and sound, or absent and complained about."""
    wishes = read_wishes(annotations, CREATED)
    said = (
        (DEADLINE, wishes.deadline),
        (DURATION, wishes.duration),
        (EARLIEST_START, wishes.earliest_start),
        (WEIGHT, wishes.weight),
        (LATENESS, wishes.hard),
    )
    wrong = {c.annotation for c in wishes.complaints}
    assert {name for name, value in said if value is None} == set(dict(said)) - set(annotations) | wrong
    assert wishes.duration is None or 0 < wishes.duration <= MAX_DURATION
    assert wishes.deadline is None or wishes.deadline >= CREATED
    assert wishes.weight is None or (math.isfinite(wishes.weight) and wishes.weight >= 0)


def test_formats() -> None:
    """Durations and instants are written as people read them."""
    assert format_duration(36 * HOUR + 90 * SECOND) == "1d12h1m30s"
    assert format_duration(0) == "0s"
    assert format_instant(CREATED) == "2027-01-15T08:00:00Z"
    assert format_instant(CREATED + DAY + 5) == "2027-01-16T08:00:00.005Z"
