"""Which rate to try next, from the trials so far: doubling, then bisection, then repeats on both sides of the edge.

It is a function of the trials alone, so that a search that was interrupted goes on where it was. Near the edge chance
decides a trial. So bisection only finds about where the edge is; what is reported are two rates half a bracket away on
either side, each of which had to show the same more than once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

LEAD = 2
"""By how many trials passes must outnumber failures, or the other way round, at an end of the bracket."""


@dataclass(frozen=True)
class Rules:
    """How to search. Rates in requests per second."""

    start: float
    least: float
    most: float
    width: float
    """How wide the bracket may be, as a share of its lower end."""
    trials: int
    """At most so many."""


@dataclass(frozen=True)
class Bracket:
    """Where the limit is: passes at ``low``, fails at ``high``. None: no rate that was tried does so, twice."""

    low: float | None
    high: float | None

    @property
    def width(self) -> float | None:
        """As a share of its lower end."""
        return None if self.low is None or self.high is None else self.high / self.low - 1.0


@dataclass(frozen=True)
class Step:
    """What to do next."""

    rate: float | None
    """To try; None: the search is over."""
    why: str
    """In words."""


Votes = Mapping[float, int]
"""By rate: how many more trials passed than failed."""


def tally(trials: Iterable[tuple[float, bool]]) -> dict[float, int]:
    """Votes from rates and whether they passed."""
    votes: Counter[float] = Counter()
    for rate, passed in trials:
        votes[rate] += 1 if passed else -1
    return dict(votes)


def bracket(votes: Votes, width: float) -> Bracket:
    """The closest pair of a rate that passes and a higher one that fails, each by a lead.

    Those that are nearer to the edge than a quarter of the bracket's width are taken only where there is no other: so
    near, chance may have had a hand in it.
    """
    edge, quarter = _edge(votes), _quarter(width)
    lows = [rate for rate, vote in votes.items() if vote >= LEAD and rate <= edge]
    highs = [rate for rate, vote in votes.items() if vote <= -LEAD and rate >= edge]
    low = max((rate for rate in lows if rate * quarter <= edge), default=max(lows, default=None))
    high = min((rate for rate in highs if rate >= edge * quarter), default=min(highs, default=None))
    return Bracket(low, high)


def _quarter(width: float) -> float:
    """By what a rate must differ from another to be a quarter of the bracket away from it."""
    return math.exp(math.log1p(width) / 4) * (1 - 1e-9)


def next_step(trials: Iterable[tuple[float, bool]], rules: Rules) -> Step:
    """The rate of the next trial.

    Parameters
    ----------
    trials
        Rates and whether they passed, of all trials so far that count.
    """
    done = list(trials)
    votes = tally(done)
    if not votes:
        return Step(_rounded(rules.start), "to begin with")
    low, high = _neighbours(votes)
    if high is None:
        assert low is not None
        return _up(votes, low, rules, len(done))
    if low is None:
        return _down(votes, high, rules, len(done))
    if _is_found(bracket(votes, rules.width), math.sqrt(low * high), rules):
        return Step(None, "the bracket is found")
    if len(done) >= rules.trials:
        return Step(None, f"--max-trials {rules.trials} is used up")
    if high / low > 1.0 + rules.width / 2 and (middle := _rounded(math.sqrt(low * high))) not in votes:
        return Step(middle, f"between {low:g} and {high:g}")
    return _confirm(votes, math.sqrt(low * high), rules)


def _edge(votes: Votes) -> float:
    """Where a limit between the rates would contradict the fewest trials; the middle of the two next to it."""
    low, high = _neighbours(votes)
    if low is None or high is None:
        return math.inf if high is None else 0.0
    return math.sqrt(low * high)


def _neighbours(votes: Votes) -> tuple[float | None, float | None]:
    """The highest rate under the edge and the lowest above it."""
    rates = sorted(votes)
    against = sum(max(0, vote) for vote in votes.values())  # with the edge below all rates, each pass contradicts it
    best, at = against, 0
    for position, rate in enumerate(rates, 1):
        against -= votes[rate]
        if against < best or (against == best and position == len(rates)):
            best, at = against, position
    return (rates[at - 1] if at else None), (rates[at] if at < len(rates) else None)


def _up(votes: Votes, low: float, rules: Rules, count: int) -> Step:
    if low >= rules.most:
        if votes[low] < LEAD and count < rules.trials:
            return Step(low, "again, at the highest rate")
        return Step(None, f"the highest rate, {rules.most:g} a second, passes (--max-rate)")
    if count >= rules.trials:
        return Step(None, f"--max-trials {rules.trials} is used up")
    return Step(min(_rounded(2 * low), rules.most), f"twice {low:g}")


def _down(votes: Votes, high: float, rules: Rules, count: int) -> Step:
    if high <= rules.least:
        if votes[high] > -LEAD and count < rules.trials:
            return Step(high, "again, at the lowest rate")
        return Step(None, f"the lowest rate, {rules.least:g} a second, fails (--min-rate)")
    if count >= rules.trials:
        return Step(None, f"--max-trials {rules.trials} is used up")
    return Step(max(_rounded(high / 2), rules.least), f"half of {high:g}")


def _is_found(found: Bracket, edge: float, rules: Rules) -> bool:
    """Whether it is narrow enough and the edge well inside."""
    if found.low is None or found.high is None or found.high > found.low * (1.0 + rules.width):
        return False
    quarter = _quarter(rules.width)
    return found.low * quarter <= edge and found.high >= edge * quarter


def _confirm(votes: Votes, edge: float, rules: Rules) -> Step:
    """A rate on the side of the edge that needs it more; one that has been tried where there is one."""
    half, quarter = math.sqrt(1.0 + rules.width), _quarter(rules.width)
    below = _one_of(votes, edge / half, edge / quarter, edge / half * 1.002)
    above = _one_of(votes, edge * quarter, edge * half, edge * half * 0.998)
    if abs(votes.get(below, 0)) <= abs(votes.get(above, 0)) and votes.get(below, 0) < LEAD:
        return Step(below, "below the edge, to be sure")
    if votes.get(above, 0) > -LEAD:
        return Step(above, "above the edge, to be sure")
    return Step(below, "below the edge, to be sure")


def _one_of(votes: Votes, least: float, most: float, otherwise: float) -> float:
    inside = [rate for rate in votes if least <= rate <= most]
    return min(inside, key=lambda rate: abs(rate - otherwise), default=_rounded(otherwise))


def _rounded(rate: float) -> float:
    """To four digits, so that it can be read."""
    return float(f"{rate:.4g}")
