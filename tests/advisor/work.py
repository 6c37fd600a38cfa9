"""Work for the tests of usage, outcomes and costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from scheduler.family import Family
from scheduler.ledger_entry import Entry, Judgement, Outcome, Run, Verdict
from scheduler.settings import HOUR

START = 1_795_996_800_000
"""2026-11-30T00:00:00Z."""

GPU = "nvidia.com/gpu"


def work(
    name: str = "train-1",
    runs: tuple[tuple[float, float | None], ...] = ((0, 2),),
    *,
    gpus: int = 2,
    outcome: Outcome | None = Outcome.SUCCEEDED,
    deadline: float | None = None,
    verdict: str = "",
    resource: str = GPU,
    flavor: str = "a100",
    **family: str,
) -> Entry:
    """A piece of work; times are hours from :data:`START`. All runs but the last were evicted."""
    held = tuple(
        Run(
            int(START + begin * HOUR),
            None,
            None if end is None else int(START + end * HOUR),
            "" if end is None else "Finished" if number == len(runs) and outcome else "Preempted",
        )
        for number, (begin, end) in enumerate(runs, 1)
    )
    names = {"namespace": "team", "cluster_queue": "cq", "kind": "Job", "stem": name.rpartition("-")[0] or name}
    return Entry(
        uid=f"uid-{family.get('namespace', 'team')}-{name}",
        name=name,
        family=Family(**{**names, **family}),
        submitted=held[0].started if held else START,
        updated=START,
        deadline=None if deadline is None else int(START + deadline * HOUR),
        started=held[-1].started if held else None,
        ended=held[-1].ended if outcome and held else None,
        flavor=flavor,
        gpus=gpus,
        usage=((flavor, resource, gpus),) if held else (),
        outcome=outcome,
        runs=held,
        judgements=(Judgement(START, Verdict(verdict), "carol", "looked at it"),) if verdict else (),
    )


def changed(entry: Entry, **fields: Any) -> Entry:
    """The same but for some fields."""
    return replace(entry, **fields)


@st.composite
def works(draw: st.DrawFn) -> list[Entry]:
    """Any work in the two days around :data:`START`."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        times = sorted(draw(st.lists(st.floats(-24, 24), min_size=2, max_size=6, unique=True)))
        pairs = [(begin, end) for begin, end in zip(times[::2], times[1::2], strict=False)]
        running = draw(st.booleans())
        runs: list[tuple[float, float | None]] = [*pairs]
        if running:
            runs[-1] = (runs[-1][0], None)
        found.append(
            work(
                f"job-{number}",
                tuple(runs),
                gpus=draw(st.integers(1, 8)),
                outcome=None if running else draw(st.sampled_from(list(Outcome))),
                deadline=draw(st.none() | st.floats(-24, 24)),
                verdict=draw(st.sampled_from(["", "verified", "rejected"])),
                flavor=draw(st.sampled_from(["a100", "l4"])),
                resource=draw(st.sampled_from([GPU, "nvidia.com/mig-1g.5gb"])),
                namespace=draw(st.sampled_from(["team", "other"])),
            )
        )
    return found
