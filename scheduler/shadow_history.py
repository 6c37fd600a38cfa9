"""The past that a replay needs: from what the cluster still shows, and from the ledger, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from scheduler.cluster import View
from scheduler.items import Work
from scheduler.kinds import ROOT_KINDS
from scheduler.ledger_entry import Entry, Outcome
from scheduler.settings import Settings
from scheduler.shadow import PastWork
from scheduler.snapshot import Snapshotter
from solver.api import planner_pb2 as pb
from solver.problem import State

UNTIMELY = (Outcome.FAILED, Outcome.DELETED, Outcome.UNKNOWN)
"""Ends that say nothing about deadlines."""


@dataclass(frozen=True)
class Past:
    """What was.

    Attributes
    ----------
    now
        Until when (milliseconds since the Unix epoch).
    quota
        The queues as they are now.
    work
        In no order.
    queues
        Names of the ClusterQueues whose work is ours to start in a replay.
    remarks
        What is odd about it.
    """

    now: int
    quota: pb.Quota
    work: tuple[PastWork, ...]
    queues: frozenset[str]
    remarks: tuple[str, ...] = ()


def past_of(
    cluster: View,
    settings: Settings,
    entries: Iterable[Entry] = (),
    *,
    everyone: bool = False,
    hide: Callable[[str], str] = str,
) -> Past:
    """The past of a cluster.

    Parameters
    ----------
    entries
        Of the ledger: they tell of work that the cluster does not show any more.
    everyone
        Whether all namespaces count as opted in. They do, too, while none is.
    hide
        How the entries write names of namespaces and queues.
    """
    taker = Snapshotter(settings)
    seen = taker.take(cluster)
    remarks: list[str] = []
    namespaces = cluster.objects("Namespace")
    managed = {
        name
        for name, item in namespaces.items()
        if everyone or (item["metadata"].get("labels") or {}).get(settings.managed_label) == "true"
    }
    if not managed:
        remarks.append(f"no namespace is opted in ({settings.managed_label}=true): all count as if they were")
        managed = {*namespaces}
    queues = [queue.name for queue in seen.request.quota.cluster_queues if queue.name not in seen.unsupported]
    observed = frozenset(name for name in queues if settings.queue(name).observed)
    if not observed:
        remarks.append("no queue is observed (mode: observe): all count")
        observed = frozenset(queues)
    shapes = {
        item.uid: seen.request.shapes[seen.request.workloads.shape[row]]
        for row, item in enumerate(seen.items)
        if item.state != State.RUNNING
    }
    live = {
        uid: past
        for uid, work in taker.works.items()
        if (past := _seen(work, shapes.get(uid), settings, managed, observed, seen.now)) is not None
    }
    names = {hide(name): name for name in queues}
    hidden = {hide(name) for name in managed}
    told = {
        entry.uid: past
        for entry in entries
        if (past := _told(entry, names, hidden, observed)) is not None and (entry.ended or entry.uid not in live)
    }
    return Past(seen.now, seen.request.quota, tuple({**live, **told}.values()), observed, tuple(remarks))


def remembered(ledger: str, since: int) -> tuple[list[Entry], Callable[[str], str]]:
    """What a ledger knows of work that ended at or after an instant, or has not; and how it writes names.

    Raises
    ------
    scheduler.ledger.LedgerError, ValueError, sqlalchemy.exc.SQLAlchemyError
        If it cannot be read.
    """
    from scheduler.ledger import Ledger  # loads a database's toolkit, which most who replay do not need

    with Ledger(ledger).open_for_reading() as known:
        return [*known.finished_since(since), *known.unfinished()], known.hide if known.anonymous else str


def _seen(
    work: Work,
    shape: pb.RequestShape | None,
    settings: Settings,
    managed: set[str],
    observed: frozenset[str],
    now: int,
) -> PastWork | None:
    """A Workload of the cluster, finished or not; None if it never held nor can want quota."""
    facts, item = work.facts, work.item
    cluster_queue = facts.record.cluster_queue or (item.cluster_queue if item else "")
    if not cluster_queue or (facts.admitted is None and (shape is None or facts.finished is not None)):
        return None
    queue, wishes = settings.queue(cluster_queue), work.wishes
    ours = (
        (facts.owner is None or facts.owner.kind in ROOT_KINDS)
        and facts.reference.namespace in managed
        and cluster_queue in observed
    )
    said = (wishes.duration, facts.max_execution, work.owner.active_deadline if work.owner else None)
    estimate = next((each for each in said if each is not None), queue.default_duration_ms)
    deadline = wishes.deadline
    if deadline is None and ours and queue.default_deadline is not None:
        deadline = queue.default_deadline.of((work.owner or facts).created)
    weight = queue.class_weights.get(facts.priority_class, queue.default_weight)
    return PastWork(
        uid=facts.reference.uid,
        cluster_queue=cluster_queue,
        submitted=facts.created,
        ours=ours,
        estimate=estimate,
        duration=_duration(facts.admitted, facts.finished, estimate, now),
        usage=facts.record.usage,
        shape=shape,
        deadline=deadline,
        not_before=wishes.earliest_start or 0,
        weight=weight if wishes.weight is None else min(wishes.weight, queue.weight_cap),
        hard=bool(wishes.hard),
        priority=facts.priority,
        name=f"{facts.reference.namespace}/{work.name}",
        started=facts.admitted,
        ended=facts.finished,
        counts=facts.record.reason not in ("Failed", "FailedToStart", "OutOfSync", "OwnerNotFound"),
    )


def _told(entry: Entry, names: Mapping[str, str], managed: set[str], observed: frozenset[str]) -> PastWork | None:
    """An entry of the ledger; None if it never held quota."""
    cluster_queue = names.get(entry.family.cluster_queue)
    if cluster_queue is None or entry.started is None or not entry.usage:
        return None
    finite = entry.family.kind == "Workload" or entry.family.kind in ROOT_KINDS
    duration = _duration(entry.started, entry.ended, entry.estimate or 1, entry.updated)
    return PastWork(
        uid=entry.uid,
        cluster_queue=cluster_queue,
        submitted=entry.submitted,
        ours=finite and entry.family.namespace in managed and cluster_queue in observed,
        estimate=entry.estimate or duration,
        duration=duration,
        usage=entry.usage,
        deadline=entry.deadline,
        not_before=entry.earliest_start or 0,
        weight=entry.weight,
        hard=entry.hard,
        name=f"{entry.family.namespace}/{entry.name}",
        started=entry.started,
        ended=entry.ended,
        counts=entry.outcome not in UNTIMELY,
    )


def _duration(started: int | None, ended: int | None, estimate: int, now: int) -> int:
    """How long it ran; of what runs as long as was estimated, or as it has; of what waits the estimate."""
    if started is None:
        return max(1, estimate)
    return max(1, ended - started if ended is not None else max(estimate, now - started))
