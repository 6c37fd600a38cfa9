"""Scores for answers: 1 for a right one, 0 for a wrong one, or what a program says."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from advisor.serving_profile import Request
from advisor.success import Judge
from scheduler.annotations import format_duration

_SHOWN = 300


class Answered(NamedTuple):
    """An answer to be judged."""

    request: Request
    text: str


class JudgeFailed(RuntimeError):
    """A judge that has not judged."""


def scores(judge: Judge, answers: Sequence[Answered]) -> list[float]:
    """A score from 0 to 1 for each answer.

    Raises
    ------
    JudgeFailed
        If a program cannot be started, fails, takes too long or writes anything but one score for each answer; or what
        should be a pattern is none.
    """
    if judge.kind == "command":
        objects = [
            {
                "id": each.request.id,
                "request": each.request.told,
                "expected": each.request.expected,
                "answer": each.text,
            }
            for each in answers
        ]
        return ask_command(judge, objects)
    return [float(_right(judge, each)) for each in answers]


def ask_command(judge: Judge, objects: Sequence[Any]) -> list[float]:
    """What the program of a judge says of each object.

    Raises
    ------
    JudgeFailed
        If it does not say it.
    """
    if not objects:
        return []
    told = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in objects)
    name = judge.command[0]
    try:
        done = subprocess.run(judge.command, input=told.encode(), capture_output=True, timeout=judge.timeout / 1000)
    except subprocess.TimeoutExpired:
        raise JudgeFailed(f"the judge {name} was not done after {format_duration(judge.timeout)}") from None
    except OSError as error:
        raise JudgeFailed(f"the judge {name} cannot be started: {error.strerror}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[-_SHOWN:]
        raise JudgeFailed(f"the judge {name} failed with exit code {done.returncode}: {said or 'it said nothing'}")
    lines = done.stdout.decode(errors="replace").split()
    if len(lines) != len(objects):
        raise JudgeFailed(f"the judge {name} wrote {len(lines)} scores for {len(objects)} answers")
    return [_score(name, line, number) for number, line in enumerate(lines, 1)]


def _score(name: str, text: str, number: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = -1.0
    if not 0.0 <= score <= 1.0:
        raise JudgeFailed(f"the judge {name} wrote {text[:40]!r} in line {number}; a score is a number from 0 to 1")
    return score


def _right(judge: Judge, answered: Answered) -> bool:
    answer, expected = _field(answered.text, judge.field), _text(answered.request.expected)
    if answer is None:
        return False
    return _COMPARE[judge.kind](answer.strip(), expected.strip(), judge.ignore_case)


def _exact(answer: str, expected: str, ignore_case: bool) -> bool:
    return answer.casefold() == expected.casefold() if ignore_case else answer == expected


def _contains(answer: str, expected: str, ignore_case: bool) -> bool:
    return expected.casefold() in answer.casefold() if ignore_case else expected in answer


def _regex(answer: str, expected: str, ignore_case: bool) -> bool:
    try:
        return re.search(expected, answer, re.IGNORECASE if ignore_case else 0) is not None
    except re.error as error:
        raise JudgeFailed(f"{expected!r} is expected, and is no pattern: {error}") from None


_COMPARE: dict[str, Callable[[str, str, bool], bool]] = {"exact": _exact, "contains": _contains, "regex": _regex}


def _field(text: str, field: str | None) -> str | None:
    """What is at a place of an answer that is JSON; None if nothing is."""
    if field is None:
        return text
    try:
        found = json.loads(text)
        for step in field.split("."):
            found = found[int(step)] if isinstance(found, list) else found[step]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return _text(found)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
