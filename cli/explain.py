"""``punctual explain``: why a job starts when it does, and what would make it on time."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.source import (
    BAD_INPUT,
    EFFORT,
    busy,
    errors_told,
    instant_of,
    look_at_cluster,
    policy_of,
    read_files,
    solver_at,
    tuned,
)

if TYPE_CHECKING:
    from scheduler.forecast import Forecast, Row
    from scheduler.snapshot import Snapshot
    from solver.api import planner_pb2 as pb
    from solver.whatif import Answer, Change

LATE = 3
"""Exit code."""


class Output(StrEnum):
    """Ways to print the answer."""

    TEXT = "text"
    JSON = "json"


def explain(
    job: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="Which job, or Workload without an owner.")],
    files: Annotated[
        list[str] | None,
        typer.Option("--filename", "-f", metavar="FILE|DIR", help="Read the objects from there, not from a cluster."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TEXT,
    now: Annotated[str | None, typer.Option(metavar="TIME", help="As if it were this time (RFC 3339).")] = None,
    effort: Annotated[int, typer.Option(min=1, help="Work that goes into each of the plans.")] = EFFORT,
    policy: Annotated[Path | None, typer.Option(metavar="FILE", help="Go by this policy.")] = None,
    gate_all: Annotated[
        bool, typer.Option("--gate-all", help="With -f: plan all waiting work, as if Punctual were in charge of it.")
    ] = False,
    solver: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Ask this solver. Default: plan in this process.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
) -> None:
    """Say why a job does not start earlier, and what would make it on time.

    Of a job that will be late it tries one change at a time, with a plan of its
    own for each: a later deadline, more quota (how much), another flavor, a
    smaller request, more weight (and who would be late instead). Each that is
    listed works, with the others late by no more weight than now. And it says
    if there is a proof that no plan whatever has it on time.

    \b
    punctual explain research/nightly-eval
    punctual explain speech/too-ambitious -f examples/02-two-teams

    Exit codes: 0 it will be on time, or has no deadline; 1 something could not
    be read or planned; 2 wrong usage, or no cluster configured; 3 it will be late.
    """
    from rich.console import Console

    from cli.planview import Clock
    from scheduler.forecast import forecast
    from scheduler.settings import Settings
    from scheduler.snapshot import snapshot
    from solver.whatif import what_if

    told = Console(stderr=True, soft_wrap=True, highlight=False)
    if gate_all and not files:
        raise typer.BadParameter("works with files only: a gate cannot be put on what a cluster has already")
    instant = instant_of(now)
    tune = partial(tuned, effort, None, None, seed)
    tune(Settings())
    clock = Clock(instant)
    with errors_told(told):
        with busy(told, "reading"):
            read = read_files(files, instant, gate_all) if files else look_at_cluster(instant, kubeconfig, context)
            seen = snapshot(read.cluster, tune(policy_of(policy) if policy else read.settings))
        for remark in read.remarks:
            told.print(str(remark), markup=False)
        solve = solver_at(solver)
        with busy(told, "planning"):
            response = solve(seen.request)
            plan = forecast(seen, response, clock)
        row = _find(plan, job)
        answer = None
        if row.on_time is False and row.finish is not None and not row.running:
            position = [item.uid for item in seen.items].index(row.item.uid)
            with busy(told, "trying what would make it on time"):
                answer = what_if(seen.request, response, position, solve)
    if output is Output.JSON:
        typer.echo(json.dumps(_to_json(row, answer, seen), indent=2, ensure_ascii=False))
    else:
        out = Console(highlight=False, soft_wrap=True)
        for line in _lines(row, answer, seen, clock):
            out.print(line, markup=False)
    if row.finish is None:
        raise typer.Exit(BAD_INPUT)
    if row.on_time is False:
        raise typer.Exit(LATE)


def _find(plan: Forecast, job: str) -> Row:
    """The row of a job; by its name alone, if that is the only one."""
    found = [row for row in plan.rows if job in (row.name, row.item.root.name)]
    if not found:
        raise typer.BadParameter(f"there is no {job} among the {len(plan.rows)} workloads here", param_hint="JOB")
    if len({row.name for row in found}) > 1:
        raise typer.BadParameter(f"which: {', '.join(sorted(row.name for row in found))}?", param_hint="JOB")
    return found[0]


def _lines(row: Row, answer: Answer | None, seen: Snapshot, clock: Any) -> list[str]:
    from cli.planview import length

    if row.finish is None:
        return [f"{row.name}: {row.reason}"]
    state = "runs" if row.running else "starts now" if row.start == seen.now else f"starts {clock(row.start)}"
    deadline = row.item.deadline
    on_time = (
        "has no deadline"
        if deadline is None
        else f"{length(row.slack or 0)} before its deadline {clock(deadline)}"
        if row.on_time
        else f"LATE by {length(-(row.slack or 0))}: its deadline is {clock(deadline)}"
    )
    lines = [
        f"{row.name} {state}, ends {clock(row.finish)}; {on_time}.",
        f"Estimate: {length(row.item.estimate)} ({row.item.estimate_source}).",
        f"Why: {row.reason}.",
    ]
    if answer is None:
        return lines
    if answer.impossible:
        lines.append("No plan has it on time, whoever else is late for it: that is proved.")
    lines.append("It would be on time with any one of:")
    return lines + [f"  - {_in_words(change, row, seen, clock)}" for change in answer.changes]


def _in_words(change: Change, row: Row, seen: Snapshot, clock: Any) -> str:
    from solver.explain import quantity
    from solver.whatif import Kind

    quota = seen.request.quota
    ends = f"ends {clock(change.finish)}"
    match change.kind:
        case Kind.DEADLINE:
            return f"a deadline no earlier than {clock(change.finish)}"
        case Kind.QUOTA:
            more = " and ".join(
                f"{quantity(quota.resources[r], amount)} {quota.resources[r]}" for r, amount in change.amounts.items()
            )
            flavor = quota.flavors[change.flavor].name
            return f"{more} more in flavor {flavor} for ClusterQueue {row.item.cluster_queue} ({ends})"
        case Kind.FLAVOR:
            return f"pods that can run in flavor {quota.flavors[change.flavor].name} too ({ends})"
        case Kind.SIZE:
            return (
                f"{change.part:.0%} of what it asks for, if it then takes {1 / change.part:.2g} times as long ({ends})"
            )
        case Kind.WEIGHT:
            others = ", ".join(f"{seen.items[k].root.namespace}/{seen.items[k].root.name}" for k in change.late)
            if not others:
                return f"more weight ({ends})"
            return f"a weight above {change.weight:g}: then {others} would be late instead ({ends})"


def _to_json(row: Row, answer: Answer | None, seen: Snapshot) -> dict[str, Any]:
    from scheduler.annotations import format_instant
    from solver.explain import quantity

    def instant(value: int | None) -> str | None:
        return None if value is None else format_instant(value)

    def change(one: Change) -> dict[str, Any]:
        quota: pb.Quota = seen.request.quota
        told: dict[str, Any] = {"kind": one.kind.value, "finish": instant(one.finish)}
        if one.flavor >= 0:
            told["flavor"] = quota.flavors[one.flavor].name
        if one.amounts:
            told["quota"] = {quota.resources[r]: quantity(quota.resources[r], n) for r, n in one.amounts.items()}
        if one.part != 1:
            told["part"] = one.part
        if one.kind.value == "weight":
            told["above"] = one.weight
            told["lateInstead"] = [f"{seen.items[k].root.namespace}/{seen.items[k].root.name}" for k in one.late]
        return told

    return {
        "name": row.name,
        "clusterQueue": row.item.cluster_queue,
        "start": instant(row.start),
        "finish": instant(row.finish),
        "deadline": instant(row.item.deadline),
        "onTime": row.on_time,
        "estimateSeconds": row.item.estimate / 1000,
        "estimateSource": row.item.estimate_source,
        "reason": row.reason,
        "impossible": None if answer is None else answer.impossible,
        "changes": None if answer is None else [change(one) for one in answer.changes],
    }
