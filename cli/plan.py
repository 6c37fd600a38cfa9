"""``punctual plan``: what would start when, and what will be late; of the live cluster or of files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.source import (
    BAD_INPUT,
    EFFORT,
    Said,
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
    from scheduler.forecast import Forecast
    from scheduler.snapshot import Snapshot

LATE = 3
"""Exit code."""

WARNINGS = frozenset({"DeadlinePassed", "GatedByOthers", "QueueObserved", "WeightCapped"})
"""Complaints that are no mistake of whoever wrote the object."""


class Output(StrEnum):
    """Ways to print a plan."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


def plan(
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--filename",
            "-f",
            metavar="FILE|DIR",
            help="Read Jobs, Workloads, queues, flavors from there, not a cluster.",
        ),
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE|DIR]...", help="More files or folders.")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print it.")] = Output.TABLE,
    now: Annotated[
        str | None, typer.Option(metavar="TIME", help="Plan as if it were this time (RFC 3339: 2026-12-01T06:00:00Z).")
    ] = None,
    effort: Annotated[
        int, typer.Option(min=1, help="Work that goes into the plan; the same on any machine gives the same plan.")
    ] = EFFORT,
    budget: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Time to look for a better plan, in place of --effort.")
    ] = None,
    default_duration: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="Run time of jobs that give no estimate.", show_default="as in the policy: 1h"
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Go by this policy.", show_default="the cluster's; with -f the defaults, as enforced"
        ),
    ] = None,
    gate_all: Annotated[
        bool, typer.Option("--gate-all", help="With -f: plan all waiting work, as if Punctual were in charge of it.")
    ] = False,
    solver: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Ask this solver (host:port, unix:///path). Default: plan in this process."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=(1 << 63) - 1, help="Source of random choices.")] = 0,
    kubeconfig: Annotated[Path | None, typer.Option(help="As kubectl's. Default: $KUBECONFIG, ~/.kube/config.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the kubeconfig.")] = None,
    fail_on_late: Annotated[
        bool, typer.Option("--fail-on-late", help="Exit with 3 if something will be late.")
    ] = False,
) -> None:
    """Show what would start when, when it ends, and what will be late and why.

    Reads the live cluster (as kubectl finds it), or, with -f, files: YAML of
    many documents, JSON, lists of "kubectl get -o yaml", "-" for the standard
    input. Changes nothing. What is wrong with one object is said, and does not
    stop the others.

    \b
    punctual plan
    punctual plan -f examples/01-four-jobs
    punctual plan -f dump.yaml --gate-all
      after kubectl get -A -o yaml ns,jobs,workloads,localqueues,\\
        clusterqueues,cohorts,resourceflavors,workloadpriorityclasses,\\
        limitranges,runtimeclasses > dump.yaml

    Exit codes: 0 planned, even if something will be late; 1 something could not
    be read or planned (or, with files, has a mistake in it); 2 wrong usage, or
    no cluster configured; 3 with --fail-on-late, if something will be late.
    """
    from rich.console import Console

    from cli.planview import Clock, show
    from scheduler.forecast import forecast, to_json
    from scheduler.settings import Settings
    from scheduler.snapshot import snapshot

    told = Console(stderr=True, soft_wrap=True, highlight=False)
    paths = [*(files or ()), *(more or ())]
    if gate_all and not paths:
        raise typer.BadParameter("works with files only: a gate cannot be put on what a cluster has already")
    instant = instant_of(now)
    tune = partial(tuned, effort, budget, default_duration, seed)
    tune(Settings())  # wrong options are told before anything is read
    text = output in (Output.TABLE, Output.WIDE)
    clock = Clock(instant)
    with errors_told(told):
        with busy(told, "reading"):
            read = read_files(paths, instant, gate_all) if paths else look_at_cluster(instant, kubeconfig, context)
            seen = snapshot(read.cluster, tune(policy_of(policy) if policy else read.settings))
        with busy(told, "planning"):
            response = solver_at(solver)(seen.request)
            result = forecast(seen, response, clock) if text else forecast(seen, response)
    remarks = [*read.remarks, *_remarks(seen, result, read.places)]
    for remark in remarks:
        told.print(str(remark), markup=False)
    if text:
        show(result, Console(highlight=False), clock, output is Output.WIDE)
    else:
        _write(to_json(result) | {"remarks": [remark.told() for remark in remarks]}, output)
    if paths and any(remark.mistake for remark in remarks):
        raise typer.Exit(BAD_INPUT)
    if fail_on_late and result.late():
        raise typer.Exit(LATE)


def _remarks(seen: Snapshot, result: Forecast, places: Mapping[tuple[str, str], Any]) -> list[Said]:
    """What is wrong with objects, and what is not planned."""
    lost = {stranded.item.uid for stranded in seen.stranded}  # complained about already
    about = [(c.target, c.message, c.reason not in WARNINGS) for c in seen.complaints]
    about += [
        (row.item.root, row.reason, True) for row in result.rows if row.finish is None and row.item.uid not in lost
    ]
    remarks = []
    for target, message, mistake in about:
        key = f"{target.namespace}/{target.name}" if target.namespace else target.name
        place = places.get((target.kind, key))
        remarks.append(Said(str(place or target), f"{target}: {message}" if place else message, mistake))
    return remarks


def _write(data: dict[str, Any], output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        import yaml

        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)
