"""``punctual advise capacity``: the least quota that meets the deadlines, and what it rests on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.advise_source import bad_file, text_of
from cli.ledger import Address, fail, reading
from cli.source import BAD_INPUT, errors_told, instant_of, look_at_cluster, policy_of, read_files, tuned

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console
    from rich.table import Table

    from advisor.capacity import Capacity
    from advisor.cost_prices import Prices as Listed
    from cli.source import Read, Said
    from scheduler.items import Complaint
    from scheduler.ledger_entry import Entry
    from scheduler.snapshot import Snapshot
    from solver.api import planner_pb2 as pb

SHORT = 3
"""Exit code."""


class Output(StrEnum):
    """Ways to print the answer."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True)
class Question:
    """What is asked, and what was said about it on the way."""

    request: pb.PlanRequest
    names: Sequence[str]
    counted: tuple[str, ...]
    """How things were counted."""
    remarks: tuple[Said, ...] = ()
    """What is wrong with objects."""
    missed: int | None = None
    """Deadlines that were missed in fact, of a past."""


def capacity(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE|DIR", help="Read Jobs, queues, flavors from there, no cluster."),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE|DIR]...", help="More files or folders.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Ask about the past, by a ledger: 7d, 12h until now.")
    ] = None,
    ledger: Address = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A copy of a ledger instead: punctual ledger export -o json."),
    ] = None,
    on_time: Annotated[
        str, typer.Option(metavar="PERCENT", help="How many of the deadlines have to be met, of those that can be.")
    ] = "100",
    queue: Annotated[
        str | None,
        typer.Option("--queue", "-q", metavar="NAME", help="Vary the quota of this ClusterQueue alone."),
    ] = None,
    resource: Annotated[
        str | None, typer.Option(metavar="NAME", help="What is asked about.", show_default="all GPUs")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="[FLAVOR=]PRICE", help="Of one for an hour: 2.50, h100=2.50; several times."),
    ] = None,
    price_list: Annotated[
        Path | None,
        typer.Option("--prices", envvar="PUNCTUAL_PRICES", metavar="FILE", help="A price list (docs/cost.md)."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
    gate_all: Annotated[
        bool, typer.Option("--gate-all", help="As if Punctual were in charge of all waiting work of finite kinds.")
    ] = False,
    default_duration: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Run time of jobs that give none.", show_default="as in the policy: 1h"),
    ] = None,
    default_deadline: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Deadline of jobs that have none, from their creation.",
            show_default="none: such jobs take the room that is left",
        ),
    ] = None,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Go by this policy.")] = None,
    now: Annotated[str | None, typer.Option(metavar="TIME", help="As if it were this time (RFC 3339).")] = None,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each plan; more finds and proves more.")] = 25,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    kube_context: Annotated[str | None, typer.Option("--context", help="Context of the kubeconfig.")] = None,
    fail_on_short: Annotated[
        bool, typer.Option("--fail-on-short", help="Exit with 3 if today's quota is less than is needed.")
    ] = False,
) -> None:
    """Say how many GPUs meet the deadlines when work starts at the right time.

    For each flavor, with the others as they are: the least quota with which a
    plan meets the deadlines, whether a proof says that fewer cannot do, what
    starting everything at once would take, and how many deadlines are met with
    how many GPUs. Of the live cluster, of files (-f), or of the past (--since,
    with a ledger; the queues are the cluster's, or those of -f). Changes
    nothing. docs/capacity.md says what is counted how.

    \b
    punctual advise capacity -f examples/01-four-jobs
    punctual advise capacity --on-time 95 --price 2.50
    punctual advise capacity --since 7d --ledger ledger.db -f queues.yaml

    Exit codes: 0 answered; 1 something could not be read or planned (or, with
    files, has a mistake in it); 2 wrong usage, or no cluster configured; 3 with
    --fail-on-short, if today's quota is less than is needed.
    """
    from rich.console import Console

    from advisor.capacity import Effort
    from advisor.capacity import capacity as ask
    from advisor.capacity_trials import BadPlan

    told = Console(stderr=True, soft_wrap=True, highlight=False)
    paths = [*(files or ()), *(more or ())]
    share, prices = _share(on_time), _prices(price or (), price_list)
    length = None if since is None else _duration("--since", since)
    due = None if default_deadline is None else _duration("--default-deadline", default_deadline)
    source = context.get_parameter_source("ledger")
    if length is None and (export or (source is not None and source.name == "COMMANDLINE")):
        hint = "--export" if export else "--ledger"
        raise typer.BadParameter("tells of the past: say how far to look back with --since 7d", param_hint=hint)
    if length is not None and ledger is None and export is None:
        raise typer.BadParameter("needs to know where the past is: --ledger PATH, or --export", param_hint="--since")
    if length is not None and gate_all:
        raise typer.BadParameter("is about work that waits; the past is always asked as if", param_hint="--gate-all")
    instant = instant_of(now)
    from scheduler.settings import Settings

    tune = partial(tuned, 1, None, default_duration, seed)
    tune(Settings())  # wrong options are told before anything is read
    with errors_told(told), told.status("reading ...") as status:
        read = (
            read_files(paths, instant, gate_all and length is None)
            if paths
            else _cluster(instant, kubeconfig, kube_context, needed=length is None)
        )
        seen = _seen(read, tune(policy_of(policy) if policy else read.settings))
        asked = (
            _waiting(seen, read, gate_all, due)
            if length is None
            else _past(seen, read, _entries(ledger, export, instant - length), instant - length, due)
        )
        for remark in asked.remarks:
            told.print(str(remark), markup=False)
        try:
            answers = ask(
                asked.request, asked.names, share=share, resource=resource, queue=queue, effort=Effort(effort, seed),
                told=status.update,
            )  # fmt: skip
        except ValueError as error:
            told.print(f"error: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
        except BadPlan as error:
            told.print(f"error: a plan did not pass the verifier, please report this: {error}", markup=False)
            raise typer.Exit(BAD_INPUT) from None
    unknown = {*prices.said} - {answer.pool.flavor_name for answer in answers}
    for flavor in sorted(unknown):
        told.print(f"--price: no answer is about a flavor {flavor}", markup=False)
    if output is Output.JSON:
        typer.echo(json.dumps(_to_json(answers, asked, prices), indent=2, ensure_ascii=False))
    else:
        _show(answers, asked, prices, Console(highlight=False, soft_wrap=True))
    if paths and any(remark.mistake for remark in asked.remarks):
        raise typer.Exit(BAD_INPUT)
    if fail_on_short and any(answer.short for answer in answers):
        raise typer.Exit(SHORT)


# --- what is asked -----------------------------------------------------------------------------------------------


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


def _seen(read: Read, settings: object) -> Snapshot:
    from scheduler.snapshot import snapshot

    return snapshot(read.cluster, settings)  # type: ignore[arg-type]


def _waiting(seen: Snapshot, read: Read, gate_all: bool, due: int | None) -> Question:
    """What waits and runs now."""
    from scheduler.kinds import ROOT_KINDS
    from solver.api import planner_pb2 as pb
    from solver.problem import State

    request = pb.PlanRequest()
    request.CopyFrom(seen.request)
    work, given = request.workloads, 0
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
    seen: Snapshot, read: Read, known: tuple[list[Entry], Callable[[str], str]], since: int, due: int | None
) -> Question:
    """What a window of the past would have asked for."""
    from advisor.capacity_past import past_question, quota_in_use

    (entries, hide), quota = known, seen.request.quota
    queues = "queues as they are now"
    if not quota.cluster_queues and not read.places:
        quota, hide = quota_in_use(entries, since, seen.now), str
        queues = (
            "each ClusterQueue by itself with the most that it had in use at once, as its quota is not known (-f FILE)"
        )
    past = past_question(quota, entries, since, seen.now, default_deadline=due, hide=hide)
    counted = (f"asked of the past, with hindsight: run times as they were, {queues}", *past.remarks)
    return Question(past.request, past.names, counted, tuple(read.remarks), past.missed)


def _share(text: str) -> Fraction:
    try:
        share = Fraction(text.removesuffix("%")) / 100
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share <= 1:
        raise typer.BadParameter(f"{text} is no percentage above 0, up to 100", param_hint="--on-time")
    return share


def _duration(option: str, text: str) -> int:
    from scheduler.annotations import parse_estimate

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


def _prices(texts: Sequence[str], file: Path | None) -> Prices:
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
    from advisor.cost_prices import BadPrices, read_prices

    try:
        return Prices(said, others, read_prices(text_of(file)))
    except BadPrices as error:
        raise bad_file(file, error) from None


def _jobs(count: int) -> str:
    return f"{count} job" if count == 1 else f"{count} jobs"


# --- what is told ------------------------------------------------------------------------------------------------


def _to_json(answers: Sequence[Capacity], asked: Question, prices: Prices) -> dict[str, object]:
    from advisor.capacity import to_json
    from advisor.capacity_words import sentence

    told: dict[str, object] = {
        "sentence": " ".join(sentence(answer, len(answers) == 1) for answer in answers) or NOTHING,
        "flavors": [
            {"sentence": sentence(answer), **to_json(answer, prices.of(answer)),
             "pricePerHour": prices.of(answer)}
            for answer in answers
        ],
        "counted": list(asked.counted),
        "remarks": [remark.told() for remark in asked.remarks],
    }  # fmt: skip
    return told if asked.missed is None else told | {"missedInFact": asked.missed}


NOTHING = "No work asks for any: none is needed."


def _show(answers: Sequence[Capacity], asked: Question, prices: Prices, console: Console) -> None:
    from advisor.capacity_words import details, sentence

    if not answers:
        console.print(NOTHING)
    for answer in answers:
        console.print(sentence(answer, len(answers) == 1), markup=False, style="bold")
    for answer in answers:
        console.print()
        for line in details(answer):
            console.print(line, markup=False)
        if answer.deadlines:
            console.print()
            console.print(_curve(answer, prices))
    if answers:
        console.print()
    for line in asked.counted:
        console.print(f"Counted: {line}.", markup=False)
    if asked.missed is not None:
        console.print(f"In fact {asked.missed} of these deadlines were missed.")
    if any(answer.deadlines and prices.of(answer) is None for answer in answers):
        console.print(
            "No price is known, so none per extra deadline (--price 2.50, of one for an hour; --prices FILE)."
        )
    if len(answers) > 1:
        console.print("Each answer leaves the other flavors and queues as they are.")


def _curve(answer: Capacity, prices: Prices) -> Table:
    """How many deadlines are met with how much."""
    from rich.table import Table

    from advisor.capacity import prices_per_extra

    found, pool, price = answer.least, answer.pool, prices.of(answer)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(answer.unit.upper() if answer.unit != "GPUs" else "GPUs", justify="right", no_wrap=True)
    table.add_column("DEADLINES MET", justify="right")
    table.add_column("AT MOST", justify="right")
    if price is not None:
        table.add_column("EACH EXTRA COSTS", justify="right")
    table.add_column("")
    last = None
    for point, cost in zip(found.curve, prices_per_extra(answer, price), strict=True):
        if point.met == last and point.amount not in (found.needed, pool.now):
            continue
        last = point.met
        marks = []
        if point.amount == found.needed:
            marks.append("enough")
        if point.amount == pool.now:
            marks.append("today")
        cells = [str(point.amount), f"{point.met} of {answer.deadlines}", str(point.at_most)]
        if price is not None:
            cells.append("" if cost is None else f"{cost:.2f}{prices.currency}")
        table.add_row(*cells, ", ".join(marks))
    return table
