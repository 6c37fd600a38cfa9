"""How long work will run: what its user says, corrected by what became of its family.

The rule, for any quantile, on a logarithmic scale (half as long and twice as long are equally far off):

1. Begin with what was said: the user's own estimate, which counts as :data:`STRENGTH` runs. If there is none: a limit
   of its run time, which counts only until its family has had a run; else the default, as :data:`STRENGTH` runs,
   corrected by work like it (same queue and shape, then same image and shape).
2. Then of its own family (same label, else same kind and name without what is generated): first the runs with another
   image or shape, then those with the same. From one group of runs to the next, take the mean of what has been found
   so far and of the quantile of the group's run times, weighted by ``STRENGTH`` and by the number of runs.
3. A limit is never exceeded.

For work that has run for a time already only longer runs count, and what was said only if it is longer.

Instants and lengths of time are milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from scheduler.annotations import DURATION, format_duration
from scheduler.family import Family

STRENGTH = 3.0
"""As many runs as what was said counts for."""

KEEP = 200
"""Runs of one family that count; the newest."""

REMEMBERED = 100_000
"""Runs of the ledger that are learnt at the start; the newest."""

FAMILIES = 50_000
"""Families that are kept; those that ran last."""

LEDGER = "ledger"
DEFAULT = "default"
"""Sources of an estimate, beside the name of an annotation or of a field."""

Levels = tuple[Sequence[int], ...]
"""Run times (ascending) of families, from the wide one to the narrow one."""


class Said(NamedTuple):
    """What is said about the run time of work, before anything is known of its family."""

    annotation: int | None
    """The user's own estimate."""
    limit: int | None
    """It is stopped after so long."""
    limit_source: str
    default: int

    @property
    def heeds_no_like(self) -> bool:
        """Whether runs of other work that is merely like it say nothing about it."""
        return self.annotation is not None or self.limit is not None


class Estimate(NamedTuple):
    """An estimated run time, and why."""

    duration: int
    source: str
    """One out of few: the name of an annotation or field, ``ledger``, ``default``."""
    basis: str
    """In words: ``12 runs of team-a/nightly, and the user's 2h``."""


class Runs:
    """Run times of one family: the newest :data:`KEEP`."""

    __slots__ = ("_newest", "ascending", "seen")

    def __init__(self) -> None:
        self._newest: list[tuple[int, int]] = []
        self.ascending: list[int] = []
        self.seen = 0
        """How many there ever were: changes whenever they do."""

    def add(self, duration: int, variant: int) -> None:
        """Add a run. ``variant`` tells narrower families apart."""
        if len(self._newest) == KEEP:
            oldest, _ = self._newest.pop(0)
            del self.ascending[bisect_left(self.ascending, oldest)]
        self._newest.append((duration, variant))
        insort(self.ascending, duration)
        self.seen += 1

    def split(self, variant: int) -> tuple[list[int], list[int]]:
        """Run times of all others, and of one narrower family; ascending."""
        others = sorted(duration for duration, each in self._newest if each != variant)
        return others, sorted(duration for duration, each in self._newest if each == variant)


class Kin:
    """The families of one kind of work: as long as it is not forgotten, it knows what they learn."""

    __slots__ = ("_estimates", "_like", "_like_seen", "_name", "_named", "_named_seen", "_variant", "like", "own")

    def __init__(self, like: tuple[Runs, ...], named: Runs, variant: int, name: str) -> None:
        self._like, self._named, self._variant, self._name = like, named, variant, name
        self._like_seen = self._named_seen = -1
        self._estimates: dict[tuple[Said, float], Estimate] = {}
        self.like: Levels = ()
        """Run times of work like it: same queue and shape; same namespace, image and shape."""
        self.own: Levels = ()
        """Run times of its own family, which has its label or name: with another image or shape, then with the same."""

    def stamp(self, said: Said) -> int:
        """Changes when an estimate may have."""
        return self._named.seen if said.heeds_no_like else self._named.seen + sum(runs.seen for runs in self._like)

    def estimate(self, said: Said, quantile: float = 0.5) -> Estimate:
        """How long work will run as a whole: that quantile of its run time."""
        self._look()
        known = self._estimates.get((said, quantile))
        if known is None:
            value, counts = shrunk(said, self.like, self.own, quantile)
            if counts:
                duration = rounded(value) if said.limit is None else min(rounded(value), said.limit)
                known = Estimate(duration, LEDGER, self._basis(said))
            else:
                known = said_alone(said)
            self._estimates[said, quantile] = known
        return known

    def remaining(self, said: Said, elapsed: int, least: int, quantile: float = 0.5) -> int:
        """How much longer work will run that has run for ``elapsed``; at least ``least``."""
        total = self.estimate(said, quantile).duration
        if elapsed >= min((runs[0] for runs in (*self.like, *self.own) if runs), default=total) or elapsed >= total:
            total = shrunk_total(said, self.like, self.own, quantile, elapsed, least)
        return max(least, total - elapsed)

    def _look(self) -> None:
        """Take note of what is new."""
        like_seen = sum(runs.seen for runs in self._like)
        if like_seen != self._like_seen or self._named.seen != self._named_seen:
            self._like_seen, self._named_seen = like_seen, self._named.seen
            self.like = tuple(runs.ascending for runs in self._like)
            self.own = self._named.split(self._variant)
            self._estimates.clear()

    def _basis(self, said: Said) -> str:
        wide = not any(self.own)
        runs = sum(map(len, self.own)) or next(len(runs) for runs in reversed(self.like) if runs)
        basis = f"{runs} {'run' if runs == 1 else 'runs'} {'like it' if wide else f'of {self._name}'}"
        if said.annotation is not None:
            basis += f", and the user's {format_duration(said.annotation)}"
        elif wide:
            basis += f", and the default {format_duration(said.default)}"
        return basis


class History:
    """Run times of all families.

    Attributes
    ----------
    epoch
        Changes when families were forgotten, and what :meth:`kin` gave before has to be asked for again.
    """

    def __init__(self, families: int = FAMILIES) -> None:
        self.epoch = 0
        self._most = families
        self._runs: dict[int, Runs] = {}

    def learn(self, family: Family, duration: int) -> None:
        """Work of a family has run to its end."""
        *like, named = _keys(family)
        for key, variant in (*((key, 0) for key in like), (named, _variant(family))):
            runs = self._runs.pop(key) if key in self._runs else Runs()
            runs.add(max(1, duration), variant)
            self._runs[key] = runs  # at the end: what ran last
        self._forget()

    def kin(self, family: Family, name: str) -> Kin:
        """The families that work belongs to; ``name``: what to call its own in words."""
        *like, named = (self._runs.setdefault(key, Runs()) for key in _keys(family))
        self._forget()
        return Kin(tuple(like), named, _variant(family), name)

    def _forget(self) -> None:
        if len(self._runs) > self._most:
            for key in list(self._runs)[: len(self._runs) // 10 + 1]:
                del self._runs[key]
            self.epoch += 1


def _keys(family: Family) -> tuple[int, int, int]:
    """From wide to narrow. Hashes: of very many families their names would fill the memory."""
    named = ("label", family.label) if family.label else ("stem", family.kind, family.stem)
    return (
        hash(("queue", family.cluster_queue, family.kind, family.shape)),
        hash(("image", family.namespace, family.kind, family.image, family.shape)),
        hash((family.namespace, *named)),
    )


def _variant(family: Family) -> int:
    return hash((family.kind, family.stem, family.image, family.shape))


class Estimates:
    """Estimates from a history that grows.

    Attributes
    ----------
    version
        Changes when anything new is known.
    """

    def __init__(self) -> None:
        self.version = 0
        self._history = History()
        self._adopted = 0
        self._kin: dict[Family, Kin] = {}
        self._epoch = self.epoch
        self._hide: Callable[[Family], Family] | None = None

    @property
    def epoch(self) -> tuple[int, int]:
        """Changes when what :meth:`kin` gave before has to be asked for again."""
        return self._adopted, self._history.epoch

    def learn(self, family: Family, duration: int) -> None:
        """Work has run to its end."""
        self._history.learn(self._hide(family) if self._hide else family, duration)
        self.version += 1

    def adopt(
        self, history: History, hide: Callable[[Family], Family] | None, since: Iterable[tuple[Family, int]]
    ) -> None:
        """Go on from a history that was written down.

        Parameters
        ----------
        hide
            How that history names families, if not by their names.
        since
            What has been learnt and is not in it.
        """
        self._history, self._hide = history, hide
        self._adopted += 1
        self.version += 1
        for family, duration in since:
            self.learn(family, duration)

    def kin(self, family: Family) -> Kin:
        """The families of some work."""
        if self._epoch != self.epoch or len(self._kin) > FAMILIES:
            self._epoch = self.epoch
            self._kin.clear()
        kin = self._kin.get(family)
        if kin is None:
            kin = self._history.kin(self._hide(family) if self._hide else family, str(family))
            self._kin[family] = kin
        return kin


def said_alone(said: Said) -> Estimate:
    """The estimate when nothing is known of a family."""
    if said.annotation is not None:
        return Estimate(said.annotation, DURATION, "the user's own")
    if said.limit is not None:
        return Estimate(said.limit, said.limit_source, f"it is stopped after {format_duration(said.limit)}")
    return Estimate(said.default, DEFAULT, "nothing is known of it")


def rounded(duration: int) -> int:
    """Two significant digits: more would promise too much, and each finished run would move every plan a little."""
    return round(duration, 2 - len(str(duration))) if duration >= 100 else duration


def quantile_of(ascending: Sequence[int], quantile: float) -> float:
    """The quantile of some run times, as a logarithm, between neighbours interpolated there."""
    position = quantile * (len(ascending) - 1)
    below = math.floor(position)
    low, high = ascending[below], ascending[min(below + 1, len(ascending) - 1)]
    return math.log(low) + (position - below) * (math.log(high) - math.log(low))


def shrunk(said: Said, like: Levels, own: Levels, quantile: float) -> tuple[int, bool]:
    """The estimate by the rule above, and whether any run counts."""
    return _shrunk(said, like, own, quantile, 0, said_alone(said).duration)


def shrunk_total(said: Said, like: Levels, own: Levels, quantile: float, elapsed: int, least: int) -> int:
    """The whole run time of work that has run for ``elapsed`` already, by the same rule.

    When it has outlived all that was said, that counts as another tenth of it, at least ``least``.
    """
    first, _ = shrunk(said, like, own, quantile)
    said_now = said_alone(said).duration
    if said_now <= elapsed:
        said_now = elapsed + max(least, said_now // 10)
    value, counts = _shrunk(said, like, own, quantile, elapsed, said_now)
    if not counts and said.annotation is None:  # all that counts is what it has outlived, or has not
        value = first
    if said.limit is not None and elapsed < said.limit:
        value = min(value, said.limit)
    return value if value > elapsed else elapsed + max(least, first // 10)


def _shrunk(said: Said, like: Levels, own: Levels, quantile: float, elapsed: int, said_now: int) -> tuple[int, bool]:
    if elapsed:
        like, own = (tuple(runs[bisect_right(runs, elapsed) :] for runs in levels) for levels in (like, own))
    strength = STRENGTH
    if said.annotation is not None:
        levels = own
    elif said.limit is not None:
        levels, strength = own, 0.0
    else:
        levels = (*like, *own)
    value, counts = math.log(said_now), any(levels)
    for runs in filter(None, levels):
        value = (strength * value + len(runs) * quantile_of(runs, quantile)) / (strength + len(runs))
        strength = STRENGTH
    duration = round(math.exp(value)) if counts else said_now
    if said.limit is not None and not elapsed:
        duration = min(duration, said.limit)
    return duration, counts
