"""How far estimates can be believed: what they said against what happened, from the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from scheduler.estimates import LEDGER, Estimates, Said
from scheduler.ledger_entry import Entry
from scheduler.settings import HOUR

QUANTILES = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Calibration:
    """Of one family, or of all.

    Attributes
    ----------
    runs
        That ran to an end of their own.
    ratio
        Median of run time by the estimate that the plan reckoned with; None if there was none.
    within
        Share of them that ended within it.
    user_ratio
        Median of run time by the user's own estimate; None if nobody gave one.
    coverage
        By quantile: of the runs whose family was known before, the share that ended within the estimate that the past
        gave for that quantile. Equal to the quantile if estimates are right.
    """

    family: str
    runs: int
    ratio: float | None
    within: float | None
    user_ratio: float | None
    coverage: dict[float, float | None]


class _Sums:
    def __init__(self) -> None:
        self.runs = 0
        self.ratios: list[float] = []
        self.user_ratios: list[float] = []
        self.hits: dict[float, list[bool]] = {quantile: [] for quantile in QUANTILES}

    def calibration(self, family: str) -> Calibration:
        within = [ratio <= 1 for ratio in self.ratios]
        return Calibration(
            family=family,
            runs=self.runs,
            ratio=median(self.ratios) if self.ratios else None,
            within=_share(within),
            user_ratio=median(self.user_ratios) if self.user_ratios else None,
            coverage={quantile: _share(hits) for quantile, hits in self.hits.items()},
        )


def calibrate(entries: Iterable[Entry]) -> list[Calibration]:
    """Calibration of all (family ``""``), then of each family, the one with most runs first.

    Parameters
    ----------
    entries
        Oldest end first: what each estimate of the past could have known is what stands before it.
    """
    all_of_them, families = _Sums(), defaultdict[str, _Sums](_Sums)
    estimates = Estimates()
    for entry in entries:
        duration = entry.duration
        if not entry.completed or duration is None:
            continue
        said = Said(entry.user_estimate, None, "", entry.estimate or HOUR)
        kin = estimates.kin(entry.family)
        hits = {}
        if kin.estimate(said).source == LEDGER and any(kin.own):
            hits = {quantile: duration <= kin.estimate(said, quantile).duration for quantile in QUANTILES}
        for sums in (all_of_them, families[str(entry.family)]):
            sums.runs += 1
            if entry.estimate:
                sums.ratios.append(duration / entry.estimate)
            if entry.user_estimate:
                sums.user_ratios.append(duration / entry.user_estimate)
            for quantile, hit in hits.items():
                sums.hits[quantile].append(hit)
        estimates.learn(entry.family, duration)
    ordered = sorted(families.items(), key=lambda item: (-item[1].runs, item[0]))
    return [all_of_them.calibration(""), *(sums.calibration(family) for family, sums in ordered)]


def _share(hits: list[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None
