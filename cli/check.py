"""``punctual check``: what is missing or wrong on a cluster, and the command that mends it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from scheduler.check import Check, Finding, Installation

FAILED, USAGE = 1, 2
"""Exit codes."""


class Output(StrEnum):
    """Ways to print what was found."""

    TABLE = "table"
    JSON = "json"


def check(
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print what was found.")] = Output.TABLE,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Make nothing in the cluster, not even for a moment: some is not tried.")
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a support bundle: a .tar.gz without secrets, env or args."),
    ] = None,
    anonymise: Annotated[
        bool, typer.Option("--anonymise", help="With --bundle: no names of your namespaces, queues and jobs in it.")
    ] = False,
    solver: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The planner, if it can be reached from here: host:port, unix:///path."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The controller's metrics.", show_default="through the apiserver"),
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="Where the controller runs.")
    ] = "punctual-system",
    kueue_namespace: Annotated[str, typer.Option(metavar="NAME", help="Where Kueue runs.")] = "kueue-system",
    kueue_name: Annotated[
        str, typer.Option(metavar="NAME", help="Kueue's Deployment and account.")
    ] = "kueue-controller-manager",
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As kubectl's.", show_default="$KUBECONFIG, ~/.kube/config")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
) -> None:
    """Check whether Punctual works on a cluster, and say how to mend what does not.

    Versions, Kueue's feature gate, gates and guards, rights, queues, kinds,
    clocks, controller, planner, sweeper. That gates are heeded and guards act
    is tried: in a namespace made for it, with one Workload that no queue takes,
    gone after a moment. Jobs are tried by dry runs only.

    Needs the rights of cluster-admin to see all of it; what cannot be seen is
    said.

    \b
    punctual check
    punctual check -o json --read-only
    punctual check --bundle punctual-support.tar.gz --anonymise

    Exit codes: 0 nothing fails (there may be warnings); 1 something fails;
    2 wrong usage, or no cluster configured.
    """
    from scheduler.apiserver import NoCluster, connect
    from scheduler.check import Installation, State, run

    if anonymise and bundle is None:
        raise typer.BadParameter("goes with --bundle", param_hint="--anonymise")
    try:
        api = connect(kubeconfig, context)
    except NoCluster as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(USAGE) from None
    at = Installation(api, namespace, kueue_namespace, kueue_name, solver, metrics, now=int(time.time() * 1000))
    found: list[Finding] = []
    for finding in run(at, _checks(read_only)):
        found.append(finding)
        if output is Output.TABLE:
            _show(finding)
    if bundle is not None:
        _write(at, found, bundle, anonymise)
    failed = sum(finding.state is State.FAIL for finding in found)
    warned = sum(finding.state is State.WARN for finding in found)
    if output is Output.JSON:
        typer.echo(
            json.dumps({"failed": failed, "warned": warned, "findings": [_told(each) for each in found]}, indent=2)
        )
    else:
        typer.echo(f"{failed} failed, {warned} warned, {len(found) - failed - warned} fine")
    if failed:
        raise typer.Exit(FAILED)


def _checks(read_only: bool) -> Sequence[tuple[str, Check]]:
    from scheduler import check_cluster, check_policies, check_queues, check_rights, check_running

    trying = [] if read_only else [("guards act", check_policies.acting)]
    return [
        ("kubernetes", check_cluster.kubernetes),
        ("clock", check_cluster.clock),
        ("kueue", check_cluster.kueue),
        ("gates and guards", check_policies.installed),
        *trying,
        ("rights", check_rights.rights),
        ("namespaces", check_policies.opted_in),
        ("namespaces", check_policies.unguarded),
        ("queues", check_queues.queues),
        ("policy", check_policies.policy),
        ("controller", check_running.controller),
        ("metrics", check_running.metrics),
        ("planner", check_running.planner),
        ("sweeper", check_running.sweeper),
    ]


def _show(finding: Finding) -> None:
    typer.echo(f"{finding.state.value:<5} {finding.what}: {finding.message}")
    if finding.fix:
        typer.echo(f"      > {finding.fix}")


def _told(finding: Finding) -> dict[str, str]:
    return {"what": finding.what, "state": finding.state.value, "message": finding.message, "fix": finding.fix}


def _write(at: Installation, found: Sequence[Finding], target: Path, anonymise: bool) -> None:
    from scheduler.bundle import write_bundle

    try:
        write_bundle(at, found, target, anonymise=anonymise)
    except OSError as error:
        typer.echo(f"error: cannot write {target}: {error.strerror}", err=True)
        raise typer.Exit(USAGE) from None
    typer.echo(f"wrote {target}: look into it before you send it (tar -xOzf {target} | less)", err=True)
