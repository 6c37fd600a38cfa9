"""From what each round of the loop sees to entries of the ledger, and to what estimates learn.

Nothing is polled: Kueue's conditions say when work was admitted and when it finished. A controller that starts anew
reads the same from the cluster's Workloads, finished ones too, and only adds what nobody had written down.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from scheduler import canary
from scheduler.annotations import VERDICT, VERDICT_BY, VERDICT_REASON
from scheduler.estimates import REMEMBERED, Estimates
from scheduler.facts import instant
from scheduler.family import Family, is_gpu
from scheduler.items import Item, Work
from scheduler.ledger_entry import DeadlineEdit, Entry, Judgement, Outcome, Run, Verdict
from scheduler.plans import PlanInForce
from scheduler.settings import DAY
from scheduler.snapshot import Snapshot
from solver.problem import State

if TYPE_CHECKING:
    from scheduler.ledger_writer import LedgerWriter, Past

log = logging.getLogger(__name__)

_OUTCOMES = {
    "Succeeded": Outcome.SUCCEEDED,
    "Failed": Outcome.FAILED,
    "FailedToStart": Outcome.FAILED,
    "OutOfSync": Outcome.DELETED,
    "OwnerNotFound": Outcome.DELETED,
}
"""By Kueue's reason."""


KEEP = 365 * DAY
"""How long the ledger keeps what has ended, unless told otherwise (milliseconds)."""


@dataclass(frozen=True)
class LedgerOptions:
    """Where the ledger is, and what it keeps.

    Attributes
    ----------
    dsn
        See :func:`scheduler.ledger.ledger_url`.
    keep_ms
        How long after its end a Workload is kept, in milliseconds; 0: for ever.
    anonymous
        Whether names are written as salted hashes only.
    """

    dsn: str
    keep_ms: int = KEEP
    anonymous: bool = False


def recorder(options: LedgerOptions | None, registry: CollectorRegistry) -> Recorder:
    """A recorder for one controller.

    Raises
    ------
    ValueError
        If the ledger's address makes no sense.
    """
    if options is None:
        return Recorder(None, Estimates())
    from scheduler.ledger import Ledger  # who has no ledger needs no database driver in memory
    from scheduler.ledger_writer import LedgerWriter

    writer = LedgerWriter(Ledger(options.dsn), keep_ms=options.keep_ms, anonymous=options.anonymous, registry=registry)
    return Recorder(writer, Estimates())


class Recorder:
    """Follows the cluster from snapshot to snapshot.

    Parameters
    ----------
    writer
        Where entries go; None: estimates alone are kept, in memory.
    estimates
        What learns from work that has run to its end.
    """

    def __init__(self, writer: LedgerWriter | None, estimates: Estimates) -> None:
        self.estimates = estimates
        self._writer = writer
        self._open: dict[str, Entry] = {}
        """What has not ended, as it was written last, by uid."""
        self._looked: dict[str, tuple[Work, Item | None] | None] = {}
        """What was seen last of each Workload, by uid; None where it is to be written anew."""
        self._plan: PlanInForce | None = None
        self._planned: dict[str, int] = {}
        """Start that the last plan gave to what waits, by uid."""
        self._learnt: set[str] = set()
        """Uids of the cluster's Workloads that estimates have learnt from."""
        self._since: deque[tuple[str, Family, int]] | None = deque(maxlen=REMEMBERED) if writer else None
        """What was learnt before the ledger's past was known; None: it is."""

    def start(self) -> None:
        """Begin to write."""
        if self._writer is not None:
            self._writer.start()

    def stop(self) -> None:
        """Write what waits, if that works within a few seconds."""
        if self._writer is not None:
            self._writer.stop()

    def look(self, snapshot: Snapshot, works: Mapping[str, Work], plan: PlanInForce | None) -> None:
        """Write down what is new in a snapshot.

        Parameters
        ----------
        works
            All Workloads that the snapshot was made of, by uid.
        """
        self._plan_ahead(snapshot, plan)
        changed: list[Entry] = []
        if self._writer is not None:
            if (past := self._writer.past()) is not None:
                changed += self._go_on(past, works, snapshot.now)
            for uid in self._writer.wanted() & self._looked.keys():
                self._looked[uid] = None
                if uid in self._open:
                    self._open[uid] = replace(self._open[uid], updated=0)
        for uid, work in works.items():
            item, before = work.item, self._looked.get(uid)
            if before is not None and before[0] is work and (before[1] is item or _same(before[1], item)):
                continue
            self._looked[uid] = work, item
            if work.facts.owner is None and work.name == canary.NAME:
                continue
            known = self._open.get(uid)
            try:
                entry = entry_of(known, work, item, self._planned.get(uid), snapshot.now)
            except Exception:  # one that makes no sense must not keep the others out
                log.exception("a workload does not get into the ledger", extra={"workload": str(work.facts.reference)})
                continue
            if work.facts.admitted is not None:
                self._planned.pop(uid, None)  # it was for this run
            if entry.outcome is None:
                self._open[uid] = entry
            else:
                self._open.pop(uid, None)
            if known is None or known.updated == 0 or replace(entry, updated=known.updated) != known:
                changed.append(entry)
        changed += self._gone(snapshot, works)
        for entry in sorted(changed, key=lambda entry: entry.ended or 0):
            self._learn(entry)
        if self._writer is not None and changed:
            oldest = snapshot.now - self._writer.keep_ms if self._writer.keep_ms else 0
            self._writer.put(entry for entry in changed if entry.ended is None or entry.ended >= oldest)

    def _plan_ahead(self, snapshot: Snapshot, plan: PlanInForce | None) -> None:
        """Remember the planned starts of what waits: once it runs, no plan says any more when it was to start."""
        if plan is self._plan or plan is None:
            return
        self._plan = plan
        waiting = (item.uid for item in snapshot.items if item.state in (State.PENDING, State.FOREIGN))
        self._planned.update((uid, plan.placements[uid].start) for uid in waiting if uid in plan.placements)

    def _gone(self, snapshot: Snapshot, works: Mapping[str, Work]) -> list[Entry]:
        """What is not there any more."""
        if len(self._looked) <= len(works):
            return []
        gone = []
        there = works.keys() | {each.target.uid for each in snapshot.complaints if each.reason == "Unreadable"}
        for uid in self._looked.keys() - there:
            del self._looked[uid]
            self._planned.pop(uid, None)
            self._learnt.discard(uid)
            if (entry := self._open.pop(uid, None)) is not None:
                runs = _ended(entry.runs, snapshot.now, Outcome.DELETED)
                outcome = replace(entry, outcome=Outcome.DELETED, ended=snapshot.now, updated=snapshot.now, runs=runs)
                gone.append(outcome)
        return gone

    def _learn(self, entry: Entry) -> None:
        if entry.completed and entry.duration is not None and entry.uid not in self._learnt:
            self._learnt.add(entry.uid)
            self.estimates.learn(entry.family, entry.duration)
            if self._since is not None:
                self._since.append((entry.uid, entry.family, entry.duration))

    def _go_on(self, past: Past, works: Mapping[str, Work], now: int) -> list[Entry]:
        """Go on from what the ledger knew; what is gone since, nobody saw going."""
        since = [(family, duration) for uid, family, duration in self._since or () if uid not in past.ended]
        self._since = None
        self.estimates.adopt(past.history, past.hide, since)
        self._learnt |= past.ended & works.keys()
        lost = []
        for entry in past.unfinished:
            if entry.uid in works:
                self._open[entry.uid] = _joined(entry, self._open.get(entry.uid))
                self._looked.pop(entry.uid, None)
            elif self._writer is not None and not self._writer.waits(entry.uid):  # else it ended while we looked
                runs = _ended(entry.runs, now, Outcome.UNKNOWN)
                lost.append(replace(_nameless(entry), outcome=Outcome.UNKNOWN, ended=now, updated=now, runs=runs))
        return lost


def _same(before: Item | None, item: Item | None) -> bool:
    """Whether nothing that the ledger keeps has changed between two looks at the same work."""
    if before is None or item is None:
        return before is item
    return (
        before.state == item.state
        and before.deadline == item.deadline
        and before.weight == item.weight
        and before.cluster_queue == item.cluster_queue
        and before.gated == item.gated
    )


def _joined(past: Entry, ours: Entry | None) -> Entry:
    """What the ledger knew of work that is still there, and what has been seen since."""
    past = replace(_nameless(past), updated=0)
    if ours is None:
        return past
    runs = {run.started: run for run in (*past.runs, *ours.runs)}
    edits = ours.deadlines[1:] if past.deadlines else ours.deadlines
    return replace(
        past,
        runs=tuple(runs[started] for started in sorted(runs)),
        deadlines=(*past.deadlines, *edits),
        judgements=past.judgements + tuple(each for each in ours.judgements if each not in past.judgements),
        deadline=ours.deadline if edits else past.deadline,
        managed=past.managed or ours.managed,
    )


def _nameless(past: Entry) -> Entry:
    """Without names, which may be hidden ones: what is written without them keeps them."""
    return replace(past, name="", family=Family(), bypassed_by="")


def _ended(runs: tuple[Run, ...], at: int, ending: str) -> tuple[Run, ...]:
    """Runs of which the last one is over."""
    if not runs or runs[-1].ended is not None:
        return runs
    return (*runs[:-1], replace(runs[-1], ended=max(at, runs[-1].started), ending=ending))


def entry_of(known: Entry | None, work: Work, item: Item | None, planned: int | None, now: int) -> Entry:
    """A Workload as the ledger has it, from what was known and what is seen."""
    facts, record = work.facts, work.facts.record
    created = (work.owner or facts).created
    cluster_queue = (item.cluster_queue if item else "") or record.cluster_queue
    if not cluster_queue and known is not None:
        cluster_queue = known.family.cluster_queue
    runs = _runs(known.runs if known else (), work, planned)
    started = runs[-1].started if runs else None
    usage = record.usage or (known.usage if known else ())
    seen = item or known
    deadline = seen.deadline if seen else work.wishes.deadline
    used = known if known is not None and known.runs else seen
    said = 1.0 if work.wishes.weight is None else work.wishes.weight
    entry = Entry(
        uid=facts.reference.uid,
        name=work.name,
        family=work.family(cluster_queue),
        submitted=created,
        updated=now,
        managed=bool((known and known.managed) or (item and (item.gated or item.state == State.IN_FLIGHT))),
        deadline=deadline,
        earliest_start=work.wishes.earliest_start,
        weight=seen.weight if seen else said,
        hard=bool(work.wishes.hard),
        priority_class=facts.priority_class,
        bypassed_by=seen.bypassed_by if seen else "",
        planned_start=runs[-1].planned_start if runs else None,
        started=started,
        interruptions=max(record.evictions, known.interruptions if known else 0, sum(_broken(run) for run in runs)),
        flavor=_flavor(usage),
        gpus=sum(held for _, resource, held in usage if is_gpu(resource)) or record.traits.gpus,
        usage=usage,
        estimate=used.estimate if used else None,
        estimate_source=used.estimate_source if used else "",
        user_estimate=work.wishes.duration,
        runs=runs,
        deadlines=_edits(known, deadline, created, now),
        judgements=_judgements(known, work.annotations, now),
    )
    if facts.finished is None:
        return entry
    outcome = _OUTCOMES.get(record.reason, Outcome.FINISHED)
    return replace(entry, outcome=outcome, ended=facts.finished, reason=record.reason)


def _runs(runs: tuple[Run, ...], work: Work, planned: int | None) -> tuple[Run, ...]:
    facts, record = work.facts, work.facts.record
    if facts.admitted is not None:
        if not runs or runs[-1].started != facts.admitted:
            runs = (*_ended(runs, facts.admitted, record.eviction or "Evicted"), Run(facts.admitted, planned))
        return runs if facts.finished is None else _ended(runs, facts.finished, "Finished")
    if record.interrupted is not None:
        return _ended(runs, instant(record.interrupted), record.eviction or "Evicted")
    return runs


def _broken(run: Run) -> bool:
    return run.ended is not None and run.ending not in ("Finished", Outcome.DELETED, Outcome.UNKNOWN)


def _edits(known: Entry | None, deadline: int | None, created: int, now: int) -> tuple[DeadlineEdit, ...]:
    if known is None:
        return () if deadline is None else (DeadlineEdit(created, deadline),)
    return known.deadlines if deadline == known.deadline else (*known.deadlines, DeadlineEdit(now, deadline))


def _judgements(known: Entry | None, annotations: Mapping[str, str], now: int) -> tuple[Judgement, ...]:
    """What was said of its result, and what is said now; who may say it, the admission policy has seen to."""
    before = known.judgements if known else ()
    try:
        verdict = Verdict(annotations.get(VERDICT, ""))
    except ValueError:
        return before
    said = Judgement(now, verdict, annotations.get(VERDICT_BY, ""), annotations.get(VERDICT_REASON, ""))
    return before if before and replace(before[-1], noticed=now) == said else (*before, said)


def _flavor(usage: tuple[tuple[str, str, int], ...]) -> str:
    gpus = [flavor for flavor, resource, _ in usage if is_gpu(resource)]
    return (gpus or [flavor for flavor, _, _ in usage] or [""])[0]
