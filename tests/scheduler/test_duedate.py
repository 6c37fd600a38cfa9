"""Deadlines by rule: the next six o'clock is six o'clock on the clocks of its place, whatever those do at night."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.annotations import format_instant, parse_instant
from scheduler.duedate import NEVER, After, By, parse_due_date

ZONES = ("Europe/Lisbon", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca", "UTC")


@pytest.mark.parametrize(
    ("rule", "created", "due"),
    [
        ("due 06:00 Europe/Lisbon", "2026-12-01T05:59:59Z", "2026-12-01T06:00:00Z"),
        ("due 06:00 Europe/Lisbon", "2026-12-01T06:00:00Z", "2026-12-02T06:00:00Z"),
        ("due 06:00 Europe/Lisbon", "2026-07-01T05:59:59Z", "2026-07-02T05:00:00Z"),
        ("due 06:00 Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-29T04:00:00Z"),
        # Skipped in spring: clocks show 03:30 then. Twice in autumn: the first, unless that has passed.
        ("due 02:30 Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
        ("due 02:30 Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z"),
        ("due 02:30 Europe/Berlin", "2026-10-25T00:45:00Z", "2026-10-25T01:30:00Z"),
        # Samoa had no 30 December in 2011.
        ("due 06:00 Pacific/Apia", "2011-12-29T17:00:00Z", "2011-12-30T16:00:00Z"),
        ("8h", "2026-12-01T05:00:00Z", "2026-12-01T13:00:00Z"),
    ],
)
def test_examples(rule: str, created: str, due: str) -> None:
    """A time of day at a place, a time after creation: also on the days on which clocks change."""
    deadline = parse_due_date(rule).of(parse_instant(created))
    assert deadline is not None
    assert format_instant(deadline) == due


@given(
    created=st.datetimes(datetime(2000, 1, 1), datetime(2040, 1, 1)),
    zone=st.sampled_from(ZONES),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
@settings(max_examples=40)
def test_it_is_the_next_such_time(created: datetime, zone: str, hour: int, minute: int) -> None:
    """It is after creation, clocks show that time (or skip it), and have not shown it in between."""
    start = created.replace(tzinfo=UTC)
    instant = int(start.timestamp() * 1000)
    due = By(hour, minute, ZoneInfo(zone)).of(instant)
    assert due is not None
    assert instant < due <= instant + 2 * 86_400_000
    end = datetime.fromtimestamp(due / 1000, UTC)
    there = ZoneInfo(zone)
    shown = end.astimezone(there)
    if (shown.hour, shown.minute) != (hour, minute):  # skipped: within an hour after the gap
        before = (end - timedelta(hours=2)).astimezone(there).utcoffset()
        assert before is not None
        assert shown.utcoffset() != before
    at = start.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while at < end:
        clock = at.astimezone(there)
        assert (clock.hour, clock.minute) != (hour, minute)
        at += timedelta(minutes=1)


@pytest.mark.parametrize("text", ["none", "8h", "1d12h", "due 06:00 Europe/Lisbon", "due 23:59 UTC"])
def test_text_is_the_rule(text: str) -> None:
    """A rule's text is what was written."""
    rule = parse_due_date(text)
    assert str(rule) == text
    assert parse_due_date(str(rule)) == rule


def test_none_is_no_deadline() -> None:
    """``none`` is best effort; a rule never reaches beyond the calendar."""
    assert parse_due_date("none") is NEVER
    assert NEVER.of(0) is None
    assert isinstance(parse_due_date("1h"), After)
    assert By(6, 0, ZoneInfo("UTC")).of(parse_instant("9999-12-31T23:00:00Z")) is None


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("due 25:00 UTC", "00:00 to 23:59"),
        ("due 06:00 Europe/Lisboa", "no time zone"),
        ("due 06:00 ../../etc/passwd", "due 06:00 Europe/Lisbon"),
        ("due tomorrow", "due 06:00 Europe/Lisbon"),
        ("06:00", "due 06:00 Europe/Lisbon"),
        ("8", "8h"),
        ("-8h", "not positive"),
    ],
)
def test_nonsense_says_what_to_write(text: str, hint: str) -> None:
    """What is no rule is refused, with what to write instead."""
    with pytest.raises(ValueError, match=hint):
        parse_due_date(text)
