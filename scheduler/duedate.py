"""When work is due that says nothing about it: never, after some time, or by the next six o'clock.

A time of day is that of a place (``due 06:00 Europe/Lisbon``), so that it stays six o'clock when clocks change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from scheduler.annotations import format_duration, parse_estimate

NONE = "none"
_AT = re.compile(r"due ([0-9]{1,2}):([0-9]{2}) ([A-Za-z0-9_+\-/]+)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_DAYS = 9
"""How far to look for a time of day: even where a whole day was left out of the calendar, the next has one."""


class DueDate(Protocol):
    """A rule that gives work a deadline. Its text (``str``) parses to the same rule."""

    def of(self, created: int) -> int | None:
        """The deadline of work created at an instant; both in milliseconds since the Unix epoch. None: it has none."""


@dataclass(frozen=True)
class Never:
    """Best effort."""

    def of(self, created: int) -> None:
        """None."""

    def __str__(self) -> str:
        return NONE


@dataclass(frozen=True)
class After:
    """Some time after creation, in milliseconds."""

    duration: int

    def of(self, created: int) -> int:
        """Creation and that time."""
        return created + self.duration

    def __str__(self) -> str:
        return format_duration(self.duration)


@dataclass(frozen=True)
class By:
    """The first time after creation that clocks at a place show so much.

    A time that clocks skip in spring (02:30) counts as the one that they show instead (03:30); of a time that they show
    twice in autumn the first counts, unless that has passed.
    """

    hour: int
    minute: int
    zone: ZoneInfo

    def of(self, created: int) -> int | None:
        """The next such instant, never the creation itself; None where the calendar ends."""
        try:
            return self._next(created)
        except OverflowError:
            return None

    def _next(self, created: int) -> int:
        here = (_EPOCH + created * _MILLISECOND).astimezone(self.zone)
        midnight = here.replace(hour=self.hour, minute=self.minute, second=0, microsecond=0, tzinfo=None)
        instants: list[int] = []
        for day in range(-1, _DAYS):
            wall = midnight + timedelta(days=day)
            first = wall.replace(tzinfo=self.zone, fold=0)
            second = wall.replace(tzinfo=self.zone, fold=1)
            skipped = first.astimezone(UTC).astimezone(self.zone).replace(tzinfo=None) != wall
            times = (first,) if skipped else (first, second)
            instants += [(time.astimezone(UTC) - _EPOCH) // _MILLISECOND for time in times]
        return min(instant for instant in instants if instant > created)

    def __str__(self) -> str:
        return f"due {self.hour:02}:{self.minute:02} {self.zone.key}"


NEVER = Never()


def parse_due_date(text: str) -> DueDate:
    """A rule as the policy writes it.

    Raises
    ------
    ValueError
        If it is none; the message says what to write instead.
    """
    if text == NONE:
        return NEVER
    if match := _AT.fullmatch(text):
        hour, minute = int(match[1]), int(match[2])
        if hour > 23 or minute > 59:
            raise ValueError(f'"{text}": {match[1]}:{match[2]} is no time of day; write one from 00:00 to 23:59')
        try:
            return By(hour, minute, ZoneInfo(match[3]))
        except (LookupError, ValueError, OSError):
            known = "write one like Europe/Lisbon or UTC"
            raise ValueError(f'"{text}": {match[3]} is no time zone that this machine knows; {known}') from None
    if text.startswith("due"):
        raise ValueError(f'"{text}" is no time of day at a place; write one like "due 06:00 Europe/Lisbon"')
    try:
        return After(parse_estimate(text))
    except ValueError as error:
        example = '"none", a time after creation like "8h", or a time of day like "due 06:00 Europe/Lisbon"'
        raise ValueError(f"{error}; allowed are {example}") from None
