"""What is needed of a pool, in words: the sentence first, then what it rests on. Never says what to buy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from advisor.capacity import MOST_NAMES, Capacity, unit_of


def sentence(answer: Capacity, alone: bool = True) -> str:
    """The answer in one sentence.

    Parameters
    ----------
    alone
        Whether there is only one pool, so that nobody needs to be told which.
    """
    found = answer.least
    prefix = "" if alone else f"{answer.where[0].upper()}{answer.where[1:]}: "
    if not answer.deadlines:
        return f"{prefix}{_nothing_due(answer)}."
    enough = f"{_count(answer, found.needed)} {'is' if found.needed == 1 else 'are'} enough"
    if found.required < answer.deadlines - len(found.stuck):
        enough += f" for {found.required} of {answer.deadlines - len(found.stuck)} deadlines"
    parts = [enough, _at_once(answer), _peak(answer)]
    if found.stuck:
        parts.append(f"{_jobs(answer.named(found.stuck))} would be late with any number")
    return f"{prefix}{'; '.join(part for part in parts if part)}."


def details(answer: Capacity) -> Iterator[str]:
    """What the sentence rests on, a line each."""
    found, pool = answer.least, answer.pool
    yield _today(answer)
    if found.needed > 0 and answer.deadlines:
        yield _proof(answer)
    late = [*answer.cut.too_short, *answer.cut.running_late]
    if late:
        yield (
            f"Left out, as no number of {answer.unit} makes them punctual: {_jobs(answer.named(late))}"
            " (too little time from now, or running already)."
        )
    for row, message in list(answer.cut.never.items())[:MOST_NAMES]:
        yield f"Left out, as it never fits: {answer.names[row]} ({message})."
    if (more := len(answer.cut.never) - MOST_NAMES) > 0:
        yield f"Left out, as they never fit: {more} more."
    if found.stuck:
        yield (
            f"More of this flavor does not help {_jobs(answer.named(found.stuck))}: other resources, other flavors or "
            "work that goes first stand in the way, as far as plans can tell (punctual explain JOB)."
        )
    yield from _best_effort(answer)
    if pool.alone:
        yield f"Only the quota of ClusterQueue {pool.name} is varied; it may borrow what it may today."
    elif pool.kind == "Cohort":
        limits = ", and limits on borrowing and lending stay" if pool.limited else ""
        yield f"The quota of Cohort {pool.name} and all below it is varied, shared out in proportion as today{limits}."


def _nothing_due(answer: Capacity) -> str:
    found = answer.least
    told = "no job that asks for any has a deadline that could be met, so deadlines ask for none"
    if not found.needed:
        return told
    why = f"what runs, or is kept free, takes {_count(answer, answer.held)}"
    if found.sets_peak:
        why = f"{_jobs(answer.named(found.sets_peak))} cannot run with less"
    return f"{told}; {_count(answer, found.needed)} all the same: {why}"


def _at_once(answer: Capacity) -> str:
    if answer.at_once == answer.least.needed:
        return "all can run at once with that"
    return f"{answer.at_once} would be needed to run all at once"


def _peak(answer: Capacity) -> str:
    rows = answer.least.sets_peak
    if not answer.least.needed:
        return ""
    if not rows:
        return "what runs already, or is kept free, sets the peak" if answer.held else ""
    names = answer.named(rows)
    return f"job {names[0]} sets the peak" if len(names) == 1 else f"{_jobs(names)} set the peak"


def _today(answer: Capacity) -> str:
    found, today = answer.least, answer.pool.now
    quota = f"Today's quota is {_count(answer, today)} in {answer.where}"
    if today == found.needed:
        return f"{quota}: just that."
    if today > found.needed:
        return f"{quota}: {today - found.needed} more than that."
    missed = answer.deadlines - len(found.stuck) - answer.now
    with_that = f", and {_deadlines(missed)} would be missed with it" if missed > 0 else ""
    return f"{quota}: {found.needed - today} fewer than that{with_that}."


def _proof(answer: Capacity) -> str:
    found = answer.least
    if found.needed == answer.lowest > answer.held:
        return f"Fewer than {found.needed} cannot do: not every job could run at all."
    if found.proven:
        return f"Fewer than {found.needed} cannot do: proved."
    last = found.needed - 1
    open_ = f"{found.at_least} to {last}" if found.at_least < last else f"{last}"
    return (
        f"Fewer than {found.at_least} cannot do: proved. Whether {open_} could is not known: no plan was found, and no "
        "proof (a larger --effort looks harder)."
    )


def _best_effort(answer: Capacity) -> Iterator[str]:
    work = answer.best_effort
    if not work.jobs:
        return
    told = (
        f"{work.jobs} {'job' if work.jobs == 1 else 'jobs'} without a deadline ({work.hours:g} {_hours(answer)}) "
        f"{'asks' if work.jobs == 1 else 'ask'} for nothing: room that the others leave"
    )
    if not answer.span:
        yield f"{told} (--default-deadline 24h gives them one)."
    elif work.hours > work.room:
        yield (
            f"{told}. With {answer.least.needed} that is {work.room:g} until the last deadline, not enough for all of "
            "them by then (--default-deadline 24h gives them one)."
        )
    else:
        yield f"{told}, {work.room:g} until the last deadline."


def _count(answer: Capacity, count: int) -> str:
    return f"{count} {unit_of(answer.pool.resource_name, count)}"


def _hours(answer: Capacity) -> str:
    return f"{unit_of(answer.pool.resource_name, 1)}-hours"


def _deadlines(count: int) -> str:
    return f"{count} deadline{'' if count == 1 else 's'}"


def _jobs(names: Sequence[str]) -> str:
    """``jobs a, b and c``; with many only some of them."""
    if len(names) == 1:
        return f"job {names[0]}"
    shown = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} more"] if len(names) > MOST_NAMES else [*names]
    return f"jobs {', '.join(shown[:-1])} and {shown[-1]}"
