"""``punctual observe``: what our plans would have brought, beside what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from scheduler.ledger_entry import Entry
    from scheduler.settings import Settings
    from scheduler.shadow_report import Report
    from scheduler.still import StillCluster

BAD_INPUT, USAGE = 1, 2
"""Exit codes."""

WIDE = 300
"""Columns of a table whose instants must not be cut, whatever the terminal has."""


class Output(StrEnum):
    """Ways to print a report."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"


def observe(
    window: Annotated[str, typer.Option(metavar="DURATION", help="How far to look back.")] = "7d",
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="PUNCTUAL_LEDGER",
            metavar="PATH|postgresql://…",
            help="The controller's ledger: it knows of work that the cluster has deleted.",
            show_default="none",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Go by this policy.", show_default="the one in force in the cluster"),
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Count all namespaces, as if they were opted in.")
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", envvar="POD_NAMESPACE", help="Namespace of the controller.")
    ] = "punctual-system",
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
) -> None:
    """Say how many deadlines were missed, and how many would have been with plans.

    Replays what the cluster's Workloads (and the ledger, if there is one) say
    about the past: the same work, submitted when it was, running for as long as
    it did, started by plans that knew only what could be known then. Changes
    nothing, needs no controller and no opted-in namespace. docs/observe.md says
    what a replay assumes.

    \b
    punctual observe
    punctual observe --window 30d --ledger ledger.db -o json
    kubectl -n punctual-system exec deployment/punctual -- punctual observe

    Exit codes: 0 told; 1 something could not be read; 2 wrong usage, or no
    cluster configured.
    """
    from rich.console import Console

    from scheduler.annotations import parse_estimate

    try:
        length = parse_estimate(window)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--window") from None
    told = Console(stderr=True, soft_wrap=True, highlight=False)
    with told.status("reading ...") as status:
        cluster, settings, remarks = _cluster(kubeconfig, context, namespace, policy)
        entries, hide = _entries(ledger, cluster.now() - length)
        if ledger is None:
            remarks.append("finished work that was deleted since is not seen: name the ledger with --ledger")
        from scheduler.shadow_history import past_of
        from scheduler.shadow_report import report

        past = past_of(cluster, settings, entries, everyone=all_namespaces, hide=hide)
        steps = 0

        def breath() -> None:
            nonlocal steps
            steps += 1
            if steps % 50 == 0:
                status.update(f"replaying {len(past.work)} workloads, three times: {steps} steps ...")

        found = report(past, settings, length, breath)
    remarks += found.remarks
    for remark in remarks:
        told.print(f"remark: {remark}", markup=False)
    if output is Output.JSON:
        fates = [fate.as_data() for fate in found.fates]
        typer.echo(json.dumps(found.as_data() | {"jobs": fates, "remarks": remarks}, indent=2, ensure_ascii=False))
    else:
        wide = output is Output.WIDE
        _show(found, Console(highlight=False, soft_wrap=True, width=WIDE if wide else None), wide)


def _show(found: Report, console: Console, wide: bool) -> None:
    from rich.table import Table

    from scheduler.annotations import format_instant

    console.print(found.line, markup=False)
    if not found.workloads:
        return
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("")
    for heading in ("WHAT HAPPENED", "WITH PLANS", "KUEUE'S ORDER, REPLAYED"):
        table.add_column(heading, justify="right")
    schedules = (found.real, found.planned, found.kueue)
    table.add_row(f"deadlines missed, of {found.deadlines}", *(str(each.missed) for each in schedules))
    table.add_row("GPUs idle while work waited, worst", *(f"{each.idle_gpus:g}" for each in schedules))
    table.add_row("GPU-hours idle while work waited", *(f"{each.idle_gpu_seconds / 3600:.1f}" for each in schedules))
    for name, (deadlines, missed, planned) in found.queues.items():
        table.add_row(f"  {name}: missed, of {deadlines}", str(missed), str(planned), "")
    console.print(table)
    if not wide:
        return
    jobs = Table(box=None, pad_edge=False, header_style="")
    for heading in ("JOB", "QUEUE", "DEADLINE", "ENDED", "WITH PLANS"):
        jobs.add_column(heading)
    for fate in found.fates:
        if fate.missed or fate.missed_by_plan:
            ends = (_end(fate.ended, fate.missed), _end(fate.planned_end, fate.missed_by_plan))
            jobs.add_row(fate.name, fate.cluster_queue, format_instant(fate.deadline), *ends)
    console.print()
    console.print(jobs)


def _end(instant: int | None, missed: bool) -> str:
    from scheduler.annotations import format_instant

    told = "not yet" if instant is None else format_instant(instant)
    return f"{told} LATE" if missed else told


def _cluster(
    kubeconfig: Path | None, context: str | None, namespace: str, policy: Path | None
) -> tuple[StillCluster, Settings, list[str]]:
    from scheduler.apiserver import ApiError, NoCluster, connect
    from scheduler.in_force import find_policy
    from scheduler.policy import BadPolicy, read_policy
    from scheduler.still import look

    remarks: list[str] = []
    try:
        api = connect(kubeconfig, context)
    except NoCluster as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE) from None
    try:
        cluster = look(api, int(time.time() * 1000), told=remarks.append)
        if policy is not None:
            return cluster, read_policy(policy.read_text(encoding="utf-8")).settings(), remarks
        found = find_policy(api, namespace)
        return cluster, found.policy.settings(), [*remarks, *found.remarks]
    except ApiError as error:
        raise _failed(str(error)) from None
    except BadPolicy as error:
        raise _failed(f"{policy}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _failed(f"{policy}: cannot be read: {error}") from None
    finally:
        api.close()


def _entries(dsn: str | None, since: int) -> tuple[Iterable[Entry], Callable[[str], str]]:
    """What a ledger knows, and how it writes names."""
    if dsn is None:
        return (), str
    from sqlalchemy.exc import SQLAlchemyError

    from scheduler.ledger import LedgerError
    from scheduler.shadow_history import remembered

    try:
        return remembered(dsn, since)
    except (LedgerError, ValueError) as error:
        raise _failed(f"--ledger: {error}") from None
    except SQLAlchemyError as error:
        raise _failed(f"--ledger: it cannot be read: {str(error).splitlines()[0]}") from None


def _failed(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(BAD_INPUT)
