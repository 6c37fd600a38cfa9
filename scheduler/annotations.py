"""What users say about a job, in annotations on its root object.

A value that cannot be read is treated as absent and complained about; it never stops the job. Instants and lengths of
time are milliseconds, instants since the Unix epoch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import TypeVar

from scheduler.cluster import PREFIX
from scheduler.settings import DAY, HOUR, MINUTE, SECOND

DEADLINE = f"{PREFIX}/deadline"
"""When it must finish: an instant, or a duration counted from creation."""
DURATION = f"{PREFIX}/duration"
"""The user's estimate of its run time."""
EARLIEST_START = f"{PREFIX}/earliest-start"
"""It must not start before this instant."""
WEIGHT = f"{PREFIX}/weight"
"""Worth of being on time, compared with other work."""
LATENESS = f"{PREFIX}/lateness"
"""``hard``: worthless when late; ``soft``: worth less the later it is."""

BYPASS = f"{PREFIX}/bypass"
"""Why it passes by the plan: an emergency. Counts at creation only, and takes the RBAC verb ``bypass``."""
BYPASSED_BY = f"{PREFIX}/bypassed-by"
"""Written by our admission policy: who made it pass by the plan."""

VERDICT = f"{PREFIX}/verdict"
"""``verified`` or ``rejected``: whether its result counts. Our admission policy asks for the RBAC verb ``verify``."""
VERDICT_BY = f"{PREFIX}/verdict-by"
"""Who said so; the admission policy lets nobody write another's name."""
VERDICT_REASON = f"{PREFIX}/verdict-reason"
"""Why."""

PLANNED_START = f"{PREFIX}/planned-start"
"""Written by us, where that is switched on: the planned start."""

MAX_DURATION = 3650 * DAY
"""Ten years. Whoever writes more has mistaken the unit."""

MAX_WEIGHT = 1e9
"""Larger weights would drown all others in rounding errors."""


_LONGEST = 100
_UNITS = {
    "ns": Fraction(1, 1_000_000),
    "us": Fraction(1, 1_000),
    "µs": Fraction(1, 1_000),  # micro sign
    "μs": Fraction(1, 1_000),  # Greek mu
    "ms": Fraction(1),
    "s": Fraction(SECOND),
    "m": Fraction(MINUTE),
    "h": Fraction(HOUR),
    "d": Fraction(DAY),
}
_PART = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-zµμ]+)")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INSTANT = re.compile(
    r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"(?:[Tt ](?P<minute>[0-9]{2}:[0-9]{2})(?P<second>:[0-9]{2}(?:\.[0-9]+)?)?(?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})?)?"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = 253_402_300_799_000  # 9999-12-31T23:59:59Z
T = TypeVar("T")


@dataclass(frozen=True)
class Complaint:
    """What is wrong with one annotation, in words for the one who wrote it."""

    annotation: str
    message: str


@dataclass(frozen=True)
class Wishes:
    """What the annotations say; None where they say nothing (readable)."""

    deadline: int | None = None
    duration: int | None = None
    earliest_start: int | None = None
    weight: float | None = None
    hard: bool | None = None
    complaints: tuple[Complaint, ...] = ()


def read_wishes(annotations: Mapping[str, str] | None, created: int) -> Wishes:
    """Read our annotations. Never raises, whatever the text.

    Parameters
    ----------
    annotations
        All annotations of the object.
    created
        When the object was created: deadlines given as a duration count from it.
    """
    annotations = annotations or {}
    complaints: list[Complaint] = []

    def read(name: str, parse: Callable[[str], T]) -> T | None:
        if name not in annotations:
            return None
        try:
            return parse(str(annotations[name]).strip())
        except ValueError as error:
            complaints.append(Complaint(name, f"{name}: {error}"))
            return None

    return Wishes(
        deadline=read(DEADLINE, lambda text: _deadline(text, created)),
        duration=read(DURATION, parse_estimate),
        earliest_start=read(EARLIEST_START, parse_instant),
        weight=read(WEIGHT, parse_weight),
        hard=read(LATENESS, parse_lateness),
        complaints=tuple(complaints),
    )


def parse_instant(text: str) -> int:
    """An RFC 3339 time with an offset, as milliseconds since the Unix epoch.

    Raises
    ------
    ValueError
        If it is anything else; the message says what to write instead.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError(f"{_quoted(text)} is not a time; write one like 2026-12-01T06:00:00Z (RFC 3339)")
    date, minute, second, offset = match.group("date", "minute", "second", "offset")
    try:
        whole = f"{date}T{minute or '00:00'}{second or ':00'}"
        time = datetime.fromisoformat(whole + (offset or "Z").upper())
    except ValueError as error:
        raise ValueError(f"{_quoted(text)} is not a time: {error}") from None
    if minute is None:
        raise ValueError(f"{_quoted(text)} is a day, not a time; write {whole}Z or {whole}+01:00")
    if offset is None:
        raise ValueError(f"{_quoted(text)} has no UTC offset; write {whole}Z or {whole}+01:00")
    if second is None:
        raise ValueError(f"{_quoted(text)} has no seconds; write {whole}{offset}")
    return (time - _EPOCH) // _MILLISECOND


def format_instant(instant: int) -> str:
    """An instant in RFC 3339, UTC; milliseconds only where there are any. What RFC 3339 cannot write is cut off."""
    time = _EPOCH + max(0, min(instant, _LAST)) * _MILLISECOND
    return time.isoformat(timespec="milliseconds" if instant % SECOND else "seconds").replace("+00:00", "Z")


def parse_duration(text: str) -> int:
    """A duration in Go's grammar with ``d`` for 24 hours added (``1d12h``), in milliseconds, rounded up.

    Raises
    ------
    ValueError
        If it is anything else; the message says what to write instead.
    """
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if digits == "0":
        return 0
    if _NUMBER.fullmatch(digits) and len(text) <= _LONGEST:
        raise ValueError(f"{_quoted(text)} has no unit; write {text}s, {text}m, {text}h or {text}d")
    total, end = Fraction(0), 0
    while len(text) <= _LONGEST and (part := _PART.match(digits, end)) and part[2] in _UNITS:
        total += Fraction(part[1]) * _UNITS[part[2]]
        end = part.end()
    if not end or end < len(digits):
        raise ValueError(f"{_quoted(text)} is not a duration; write one like 90s, 2h30m or 1d12h")
    return sign * math.ceil(total)


def format_duration(duration: int) -> str:
    """A duration in the same grammar, largest units first: ``1d2h30m``."""
    if duration == 0:
        return "0s"
    text, rest = "-" if duration < 0 else "", abs(duration)
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text


def parse_estimate(text: str) -> int:
    """A duration that a job may have: positive, and not absurd.

    Raises
    ------
    ValueError
        If it is not.
    """
    duration = parse_duration(text)
    if duration <= 0:
        raise ValueError(f"{_quoted(text)} is not positive")
    if duration > MAX_DURATION:
        raise ValueError(f"{_quoted(text)} is longer than ten years; is the unit right?")
    return duration


def parse_weight(text: str) -> float:
    """A weight: a finite number, not negative.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not _NUMBER.fullmatch(text) or len(text) > _LONGEST:
        raise ValueError(f"{_quoted(text)} is not a number; write one like 1 or 2.5")
    weight = float(text)
    if weight < 0:
        raise ValueError(f"{_quoted(text)} is negative; the least weight is 0")
    if weight > MAX_WEIGHT:
        raise ValueError(f"{_quoted(text)} is larger than {MAX_WEIGHT:.0e}")
    return weight


def parse_lateness(text: str) -> bool:
    """Whether late work is worthless (``hard``) or not (``soft``).

    Raises
    ------
    ValueError
        If it is another word.
    """
    if text not in ("hard", "soft"):
        raise ValueError(f"{_quoted(text)} is neither hard nor soft")
    return text == "hard"


def _deadline(text: str, created: int) -> int:
    if _INSTANT.match(text):
        deadline = parse_instant(text)
    elif re.match(r"[+-]?[0-9.]", text):
        deadline = created + parse_estimate(text)
    else:
        raise ValueError(f"{_quoted(text)} is neither a time like 2026-12-01T06:00:00Z nor a duration like 8h")
    if deadline < created:
        raise ValueError(f"{_quoted(text)} is before the object's creation at {format_instant(created)}")
    return deadline


def _quoted(text: str) -> str:
    return json.dumps(text if len(text) <= _LONGEST else text[:_LONGEST] + "…", ensure_ascii=False)
