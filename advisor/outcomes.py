"""Which results count: complete, verified, and in time.

Whether a result is good, somebody says who may (a verdict in the ledger, :mod:`scheduler.ledger_verdicts`), or
``success.yaml`` asks for no more than that the work ends well. Nothing is guessed: what nobody has judged is unjudged.
Instants are milliseconds since the Unix epoch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from advisor.success import OWN, Match, Service, Success, Task
from advisor.usage import Slot, Worth
from scheduler.ledger_entry import Entry, Outcome, Verdict


class Result(StrEnum):
    """What became of one piece of work, as somebody sees it who waits for its result."""

    VERIFIED = "verified"
    """Complete, in time (if it had a time), and known to be good: a success."""
    LATE = "late"
    """Complete, but not in time."""
    REJECTED = "rejected"
    """Complete, and known not to be good."""
    UNJUDGED = "unjudged"
    """Complete and in time, but nobody has said whether it is good."""
    FAILED = "failed"
    DELETED = "deleted"
    """Gone before it had finished."""
    UNKNOWN = "unknown"
    """Gone while nobody looked, or late or not, nobody knows."""
    RUNNING = "running"
    WAITING = "waiting"


ENDED = tuple(result for result in Result if result not in (Result.RUNNING, Result.WAITING))

GoodHours = Mapping[tuple[str, int], bool | None]
"""Whether a service was within its goals, by its name and the begin of an hour; None (or not there): not known."""


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


def matches(match: Match, entry: Entry) -> bool:
    """Whether work is that which is meant: all that is written must hold, ``*`` stands for anything."""
    family = entry.family
    said = (
        (match.cluster_queue, (family.cluster_queue,)),
        (match.namespace, (family.namespace,)),
        (match.family, (family.label or family.stem,)),
    )
    return all(wanted is None or any(_pattern(wanted).fullmatch(name) for name in names) for wanted, names in said)


class Judge:
    """Says what each piece of work came to: once for each, however often it is asked.

    Parameters
    ----------
    success
        What counts; None: what was verified, by the deadline that it had.
    good_hours
        Of services; empty: nobody was asked.
    """

    def __init__(self, success: Success | None = None, good_hours: GoodHours | None = None) -> None:
        self._tasks = success.tasks if success else {}
        self._services = success.services if success else {}
        self.good_hours: GoodHours = good_hours or {}
        self._known: dict[str, Result] = {}

    def task(self, entry: Entry) -> tuple[str, Task | None]:
        """Name and text of the first task of ``success.yaml`` that it is of; an empty name: of none."""
        return next(((name, each) for name, each in self._tasks.items() if matches(each.match, entry)), ("", None))

    def service(self, entry: Entry) -> tuple[str, Service | None]:
        """The same of services."""
        found = ((name, each) for name, each in self._services.items() if each.match and matches(each.match, entry))
        return next(found, ("", None))

    def name(self, entry: Entry) -> str:
        """Of its task or service; empty for neither."""
        return self.task(entry)[0] or self.service(entry)[0]

    def deadline(self, entry: Entry) -> int | None:
        """By when its result must be there; None: whenever."""
        task = self.task(entry)[1]
        if task is None or task.deadline == OWN:
            return entry.deadline
        due: int | None = task.deadline.of(entry.submitted)
        return due

    def complete(self, entry: Entry) -> bool:
        """Whether it has ended as its task wants it."""
        task = self.task(entry)[1]
        wanted = {Outcome.SUCCEEDED, Outcome.FINISHED}
        if task is not None and task.result.when == "finished":
            wanted.add(Outcome.FAILED)
        return entry.outcome in wanted

    def met(self, entry: Entry) -> bool | None:
        """Whether it was complete by its deadline; None without one, or while that is not known."""
        deadline = self.deadline(entry)
        if deadline is None or entry.outcome in (None, Outcome.UNKNOWN) or entry.ended is None:
            return None
        return self.complete(entry) and entry.ended <= deadline

    def result(self, entry: Entry) -> Result:
        """What it came to."""
        if entry.uid not in self._known:
            self._known[entry.uid] = self._result(entry)
        return self._known[entry.uid]

    def _result(self, entry: Entry) -> Result:
        deadline, verdict = self.deadline(entry), entry.verdict
        if entry.outcome is None:
            return Result.RUNNING if entry.runs and entry.runs[-1].ended is None else Result.WAITING
        in_time = deadline is None or (entry.ended is not None and entry.ended <= deadline)
        if entry.outcome is Outcome.UNKNOWN:  # it ended when it was missed, or before: in time is in time
            if verdict is Verdict.REJECTED:
                return Result.REJECTED
            return Result.VERIFIED if verdict is Verdict.VERIFIED and in_time else Result.UNKNOWN
        if not self.complete(entry):
            return Result.DELETED if entry.outcome is Outcome.DELETED else Result.FAILED
        if verdict is Verdict.REJECTED:
            return Result.REJECTED
        if not in_time:
            return Result.LATE
        if verdict is Verdict.VERIFIED:
            return Result.VERIFIED
        task = self.task(entry)[1]
        enough = task is not None and task.quality is None
        sure = entry.outcome is Outcome.SUCCEEDED or (task is not None and task.result.when == "finished")
        return Result.VERIFIED if enough and sure else Result.UNJUDGED

    def worth(self, slot: Slot) -> Worth:
        """What part of the busy time of a slot is productive; see :func:`advisor.usage.rows`.

        Of work that was interrupted the last run counts alone: what it could keep of the runs before is not known.
        """
        if (service := self.service(slot.entry))[1] is not None:
            good = self.good_hours.get((service[0], slot.hour))
            return Worth(0, 1) if good is None else Worth(float(good), 0)
        if not slot.last or (slot.run.ended is not None and slot.run.ended != slot.entry.ended):
            return Worth(0, 0)
        result = self.result(slot.entry)
        if result is Result.VERIFIED:
            return Worth(1, 0)
        return Worth(0, float(result in (Result.UNJUDGED, Result.RUNNING, Result.UNKNOWN)))


@dataclass
class Tally:
    """What the work of one queue, team or task came to.

    Attributes
    ----------
    counts
        Pieces of work by what they came to.
    results
        That count: pieces of work, each as many as its task says that it is.
    deadlines, met
        Pieces of work that had one and of which it is known; of those, complete by then.
    overdue
        Still waits or runs, and its deadline has passed.
    task
        Where the key is one of ``success.yaml``.
    """

    key: str
    counts: Counter[Result] = field(default_factory=Counter)
    results: int = 0
    deadlines: int = 0
    met: int = 0
    overdue: int = 0
    task: Task | None = None

    @property
    def ended(self) -> int:
        """Pieces of work that are over."""
        return sum(self.counts[result] for result in ENDED)

    @property
    def on_time(self) -> float | None:
        """Share of deadlines that were met; None without any."""
        return self.met / self.deadlines if self.deadlines else None


BY: Mapping[str, Callable[[Judge, Entry], str]] = {
    "queue": lambda judge, entry: entry.family.cluster_queue or "(unknown)",
    "team": lambda judge, entry: entry.family.namespace,
    "task": lambda judge, entry: judge.name(entry) or "(no task)",
    "family": lambda judge, entry: str(entry.family),
}
"""What outcomes are shown by. A team is a namespace; tasks are those of ``success.yaml``."""


def tally(entries: Iterable[Entry], judge: Judge, by: str, now: int) -> list[Tally]:
    """What work came to, by queue, team, task or family: the most first. Services are left out, they never end.

    Parameters
    ----------
    by
        A key of :data:`BY`.
    now
        What ended later has not ended.
    """
    found: dict[str, Tally] = {}
    for entry in entries:
        if judge.service(entry)[1] is not None:
            continue
        key = BY[by](judge, entry)
        task = judge.task(entry)[1]
        each = found.setdefault(key, Tally(key, task=task if by == "task" else None))
        if entry.ended is not None and entry.ended > now:
            each.counts[Result.RUNNING] += 1
            continue
        result = judge.result(entry)
        each.counts[result] += 1
        if result is Result.VERIFIED:
            each.results += task.result.count if task else 1
        met, deadline = judge.met(entry), judge.deadline(entry)
        each.deadlines += met is not None
        each.met += met is True
        each.overdue += entry.outcome is None and deadline is not None and deadline < now
    return sorted(found.values(), key=lambda each: (-each.ended, each.key))


def together(tallies: Iterable[Tally]) -> Tally:
    """All of them."""
    total = Tally("all")
    for each in tallies:
        total.counts += each.counts
        total.results += each.results
        total.deadlines += each.deadlines
        total.met += each.met
        total.overdue += each.overdue
    return total
