"""What ``advise capacity`` asks: of what waits now, or of the past; and what one costs for an hour."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.advise_bill import price_list_of
from cli.ledger import USAGE, fail, reading
from cli.source import BAD_INPUT, look_at_cluster, policy_of, read_files

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from advisor.capacity import Capacity
    from advisor.cost_prices import Prices as Listed
    from cli.source import Read, Said
    from scheduler.items import Complaint
    from scheduler.ledger_entry import Entry
    from scheduler.settings import Settings
    from scheduler.snapshot import Snapshot
    from solver.api import planner_pb2 as pb


@dataclass(frozen=True)
class Question:
    """What is asked, and what was said about it on the way."""

    request: pb.PlanRequest
    names: Sequence[str]
    counted: tuple[str, ...]
    """How things were counted."""
    remarks: tuple[Said, ...] = ()
    """What is wrong with objects."""
    missed: frozenset[int] | None = None
    """Rows whose deadlines were missed in fact, of a past."""
    settings: Settings | None = None
    """That it was asked by."""
    known: bool = True
    """Whether the quota is known; else it is what was in use."""


@dataclass(frozen=True)
class Source:
    """Where a question comes from.

    Attributes
    ----------
    paths
        Files and folders; none: the live cluster.
    length
        How far to look back, in milliseconds; None: what waits now.
    due
        Deadline of work that has none, in milliseconds from its creation.
    tune
        Puts what options say on top of a policy.
    """

    paths: Sequence[str]
    instant: int
    tune: Callable[[Settings], Settings]
    length: int | None = None
    ledger: str | None = None
    export: Path | None = None
    gate_all: bool = False
    due: int | None = None
    policy: Path | None = None
    kubeconfig: Path | None = None
    context: str | None = None

    def question(self, known: tuple[list[Entry], Callable[[str], str]] | None = None) -> Question:
        """Read it.

        Parameters
        ----------
        known
            What a ledger knows of that time, and how it writes names, if somebody has read it already.

        Raises
        ------
        scheduler.apiserver.NoCluster, scheduler.apiserver.ApiError, scheduler.policy.BadPolicy
            See :func:`cli.source.errors_told`.
        typer.Exit
            If the ledger cannot be read, which has been told then.
        """
        from scheduler.snapshot import snapshot

        past = self.length is not None
        if self.paths:
            _no_copies(self.paths)
            read = read_files(self.paths, self.instant, self.gate_all and not past)
        else:
            read = _cluster(self.instant, self.kubeconfig, self.context, needed=not past)
        settings = self.tune(policy_of(self.policy) if self.policy else read.settings)
        seen = snapshot(read.cluster, settings)
        if self.length is None:
            return replace(_waiting(seen, read, self.gate_all, self.due), settings=settings)
        since = self.instant - self.length
        entries, hide = known or _entries(self.ledger, self.export, since)
        return replace(_past(seen, read, entries, hide, since, self.due), settings=settings)


def _no_copies(paths: Sequence[str]) -> None:
    """Copies of ledgers are named by another option here."""
    for path in map(Path, paths):
        if path.suffix == ".jsonl" and path.is_file():
            raise fail(f"-f {path}: reads Jobs and queues; a copy of a ledger is named by --export {path}", USAGE)


def _cluster(instant: int, kubeconfig: Path | None, context: str | None, needed: bool) -> Read:
    """The live cluster; where it is not needed and none is configured, nothing."""
    from cli.source import Read
    from scheduler.apiserver import NoCluster
    from scheduler.settings import Settings
    from scheduler.still import StillCluster

    try:
        return look_at_cluster(instant, kubeconfig, context)
    except NoCluster:
        if needed or kubeconfig or context:
            raise
        return Read(StillCluster(instant), Settings())


def _waiting(seen: Snapshot, read: Read, gate_all: bool, due: int | None) -> Question:
    """What waits and runs now."""
    from scheduler.kinds import ROOT_KINDS
    from solver.api import planner_pb2 as pb
    from solver.problem import State

    request = pb.PlanRequest()
    request.CopyFrom(seen.request)
    work, given = request.workloads, 0
    # What is in files only was made at one instant: its order is that of the files, as if they were submitted so.
    order = {place: rank for rank, place in enumerate(read.places)}
    for row, item in enumerate(seen.items):
        if work.created_ms[row] == seen.now // 1000 * 1000:
            work.created_ms[row] += order.get(("Workload", f"{item.workload.namespace}/{item.workload.name}"), 0)
    for row, item in enumerate(seen.items):
        if gate_all and item.state == State.FOREIGN and item.root.kind in {*ROOT_KINDS, "Workload"}:
            work.state[row] = pb.PENDING
        if due is not None and item.state != State.RUNNING and not work.due_ms[row]:
            work.due_ms[row] = item.created + due
            given += 1
    counted = []
    guessed = sum(item.estimate_source == "default" and item.state != State.RUNNING for item in seen.items)
    if guessed:
        counted.append(f"{_jobs(guessed)} without a duration: counted with the default (--default-duration)")
    if given:
        counted.append(f"{_jobs(given)} without a deadline: due as --default-deadline says")
    foreign = sum(state == pb.FOREIGN for state in work.state)
    if foreign:
        counted.append(
            f"{_jobs(foreign)} waiting that Punctual is not in charge of: started in Kueue's own order (--gate-all: "
            "as if it were)"
        )
    lost = {stranded.item.uid for stranded in seen.stranded}
    remarks = [*read.remarks, *(_said(complaint, read) for complaint in seen.complaints)]
    if lost:
        counted.append(f"{_jobs(len(lost))} in queues that cannot be planned: not counted")
    names = [f"{item.root.namespace}/{item.root.name}" for item in seen.items]
    return Question(request, names, tuple(counted), tuple(remarks))


def _said(complaint: Complaint, read: Read) -> Said:
    """A complaint about an object, with the place that it was read at."""
    from cli.plan import WARNINGS
    from cli.source import Said

    target, mistake = complaint.target, complaint.reason not in WARNINGS
    key = f"{target.namespace}/{target.name}" if target.namespace else target.name
    place = read.places.get((target.kind, key))
    told = f"{target}: {complaint.message}" if place else complaint.message
    return Said(str(place or target), told, mistake)


def _entries(ledger: str | None, export: Path | None, since: int) -> tuple[list[Entry], Callable[[str], str]]:
    """What a ledger, or a copy of one, knows of a time, and how it writes names."""
    if export is None:
        with reading(ledger) as book:
            return list(book.recent(since=since)), book.hide if book.anonymous else str
    from advisor.usage_export import BadExport, read_export

    try:
        return read_export(export), str
    except BadExport as error:
        raise fail(str(error), BAD_INPUT) from None
    except OSError as error:
        raise fail(f"{export}: {error.strerror}", BAD_INPUT) from None


def _past(
    seen: Snapshot, read: Read, entries: list[Entry], hide: Callable[[str], str], since: int, due: int | None
) -> Question:
    """What a window of the past would have asked for."""
    from advisor.capacity_past import past_question, quota_in_use

    quota, queues = seen.request.quota, "queues as they are now"
    known = bool(quota.cluster_queues or read.places)
    if not known:
        quota, hide = quota_in_use(entries, since, seen.now), str
        queues = (
            "each ClusterQueue by itself with the most that it had in use at once, as its quota is not known (-f FILE)"
        )
    past = past_question(quota, entries, since, seen.now, default_deadline=due, hide=hide)
    counted = (f"asked of the past, with hindsight: run times as they were, {queues}", *past.remarks)
    return Question(past.request, past.names, counted, tuple(read.remarks), past.missed, known=known)


def share_of(text: str) -> Fraction:
    """What ``--on-time`` says."""
    try:
        share = Fraction(text.removesuffix("%")) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise typer.BadParameter(f"{text} is no percentage above 0, up to 100", param_hint="--on-time")
    return share


def length_of(option: str, text: str | None) -> int | None:
    """What an option says that is a length of time, in milliseconds."""
    from scheduler.annotations import parse_estimate

    if text is None:
        return None
    try:
        return parse_estimate(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


@dataclass(frozen=True)
class Prices:
    """What one costs for an hour: what options say, and after that a price list."""

    said: dict[str, float]
    """By flavor."""
    others: float | None
    listed: Listed | None

    @property
    def currency(self) -> str:
        """Empty if nobody says."""
        return f" {self.listed.currency}" if self.listed else ""

    def of(self, answer: Capacity) -> float | None:
        """Of an answer's flavor; None if nobody says."""
        from advisor.usage_gpus import share_of

        flavor = answer.pool.flavor_name
        said, listed = self.said.get(flavor, self.others), self.listed.of(flavor) if self.listed else None
        if said is not None or listed is None:
            return said
        return listed * float(share_of(answer.pool.resource_name, {}).gpus)  # a slice, as much as it is of a GPU


def prices_of(texts: Sequence[str], file: Path | None) -> Prices:
    """What ``--price`` and ``--prices`` say."""
    said: dict[str, float] = {}
    others = None
    for text in texts:
        flavor, equals, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf") or (equals and not flavor):
            raise typer.BadParameter(f"{text} is no price; write 2.50 or h100=2.50", param_hint="--price")
        if flavor:
            said[flavor] = value
        else:
            others = value
    if file is None:
        return Prices(said, others, None)
    return Prices(said, others, price_list_of(file))


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"
