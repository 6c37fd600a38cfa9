"""The scenarios of ``punctual demo``."""

from __future__ import annotations

import math
import random
from typing import Any

from scheduler.settings import HOUR, MINUTE
from simulator.manifests import flavor, job, team
from simulator.scenario import Scenario


def four_jobs() -> Scenario:
    """Four jobs of two GPUs on four GPUs; the two that come last are due first."""
    jobs = [("train-a", 3 * HOUR), ("train-b", 3 * HOUR), ("eval-c", 45 * MINUTE), ("eval-d", 45 * MINUTE)]
    return Scenario(
        name="four jobs of two GPUs",
        queues=(flavor(), *team(gpus=4)),
        jobs=tuple((0, job(name, 2, 30 * MINUTE, deadline=deadline)) for name, deadline in jobs),
        gpus=4,
    )


_KINDS = (
    # name, how many, GPUs, hours, due: hours after 22:00, or after it comes (negative), or None; comes within hours
    ("train", 3, 8, 2.5, 13.0, 1.0),
    ("finetune", 6, 4, 1.5, 10.0, 4.0),
    ("eval", 8, 2, 0.75, 8.0, 6.0),
    ("report", 8, 1, 0.5, -2.0, 8.0),
    ("sweep", 7, 2, 1.0, None, 8.0),
)


def fuller_morning(seed: int = 1) -> Scenario:
    """A night on 12 GPUs: training, fine-tuning and evaluations due in the morning, reports due within two hours, and
    sweeps without a deadline. Estimates are good, not exact.

    Parameters
    ----------
    seed
        Decides when each job comes and how long it really runs.
    """
    draw = random.Random(seed)
    jobs: list[tuple[int, dict[str, Any]]] = []
    for kind, count, gpus, hours, due, within in _KINDS:
        for number in range(1, count + 1):
            comes = round(draw.uniform(0, within) * 60) * MINUTE
            estimate = round(hours * draw.uniform(0.8, 1.2) * 60) * MINUTE
            runs = round(estimate * math.exp(draw.gauss(-0.05, 0.1)))
            deadline = None if due is None else round(-due * HOUR if due < 0 else due * HOUR - comes)
            jobs.append((comes, job(f"{kind}-{number}", gpus, estimate, deadline=deadline, runs=runs)))
    jobs.sort(key=lambda entry: entry[0])
    name = f"a fuller morning, {len(jobs)} jobs"
    return Scenario(name=name, queues=(flavor(), *team(gpus=12)), jobs=tuple(jobs), gpus=12)
