"""``punctual release``: take our gate off by hand. Needs neither the controller nor the planner."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.kinds import ROOT_KINDS

if TYPE_CHECKING:
    from scheduler.apiserver import ApiServer
    from scheduler.cluster import Reference, ReleaseResult
    from scheduler.gated import Gated

FAILED, USAGE = 1, 2
"""Exit codes."""

PARALLEL = 8
ATTEMPTS = 5
"""How often each is tried while the cluster is busy."""


class Output(StrEnum):
    """Ways to print what was done."""

    TABLE = "table"
    JSON = "json"


def _kind(text: str) -> str:
    """A kind of root object, written in whatever case."""
    kinds = {kind.lower(): kind for kind in (*ROOT_KINDS, "Workload")}
    if text.lower() not in kinds:
        raise typer.BadParameter(f"{text} is not gated: there are {', '.join(kinds.values())}")
    return kinds[text.lower()]


def release(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="What to release.")] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Their namespace; with --all: only there.", show_default="the context's; all"
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help=f"What NAME is: {', '.join(ROOT_KINDS)}, or a Workload that belongs to nothing else.",
            parser=_kind,
            metavar="KIND",
        ),
    ] = "Job",
    everything: Annotated[
        bool, typer.Option("--all", help="Release all that waits behind our gate, what is due first first.")
    ] = False,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="With --all: in all namespaces, as without -n.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Ask the cluster whether it would let us, and change nothing.")
    ] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print what was done.")] = Output.TABLE,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As kubectl's.", show_default="$KUBECONFIG, ~/.kube/config")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
) -> None:
    """Let work go: take our gate off, so that Kueue admits it as any other.

    Gates of others stay. It cannot be taken back. Needs no controller and no
    planner: for something that must start now, whatever the plan says, or to
    leave no job behind before an uninstall.

    \b
    punctual release nightly-eval -n team-a
    punctual release pretrain --kind JobSet
    punctual release --all --dry-run
    punctual release --all

    Exit codes: 0 all is released, or nothing was gated; 1 something could not
    be released; 2 wrong usage, or no cluster configured.
    """
    from scheduler.apiserver import ApiError, NoCluster, connect

    if everything == bool(names):
        raise typer.BadParameter("name what to release, or use --all (not both)")
    if all_namespaces and (namespace or not everything):
        raise typer.BadParameter("--all-namespaces goes with --all, and not with --namespace")
    try:
        api = connect(kubeconfig, context, connections=PARALLEL)
        targets = _all(api, namespace or "") if everything else _named(api, kind, names or [], namespace)
    except NoCluster as error:
        raise _error(str(error), USAGE) from None
    except ApiError as error:
        raise _error(str(error), FAILED) from None
    done = []
    for target, result in _release(api, targets, dry_run):
        done.append((target, result))
        if output is Output.TABLE:
            typer.echo(_line(target, result, dry_run))
    failed = sum(_is_failure(result) for _, result in done)
    if output is Output.JSON:
        objects = [
            {
                "kind": target.kind,
                "namespace": target.namespace,
                "name": target.name,
                "outcome": result.release.value,
                "message": result.message,
            }
            for target, result in done
        ]
        typer.echo(json.dumps({"dryRun": dry_run, "failed": failed, "objects": objects}, indent=2))
    elif not done:
        typer.echo("nothing waits behind our gate")
    if failed:
        raise typer.Exit(FAILED)


def _all(api: ApiServer, namespace: str) -> list[Gated]:
    from scheduler.gated import find_gated

    return find_gated(api, namespace)


def _named(api: ApiServer, kind: str, names: Sequence[str], namespace: str | None) -> list[Gated]:
    from scheduler.apiserver import NOT_FOUND, RESOURCES, ApiError
    from scheduler.gated import gated

    resource = RESOURCES[kind]
    found = []
    for name in names:
        try:
            item = api.request("GET", resource.path(namespace or api.namespace, name))
        except ApiError as error:
            if error.status == NOT_FOUND:
                message = f"there is no {resource.kind} {name} in namespace {namespace or api.namespace}"
                raise ApiError(0, f"{message}; nothing was released") from None
            raise
        found.append(gated(resource.kind, item))
    return found


def _release(api: ApiServer, targets: Sequence[Gated], dry_run: bool) -> Iterator[tuple[Reference, ReleaseResult]]:
    """Several at once; results in order."""
    from rich.console import Console
    from rich.progress import track

    from scheduler.cluster import Release
    from scheduler.ungate import ungate

    def one(gated: Gated) -> ReleaseResult:
        result = ungate(api, gated.target, gated.item, dry_run=dry_run)
        for attempt in range(1, ATTEMPTS):
            if result.release is not Release.TRY_AGAIN:
                break
            time.sleep(0.25 * 2**attempt)
            result = ungate(api, gated.target, dry_run=dry_run)
        return result

    console = Console(stderr=True)
    with ThreadPoolExecutor(PARALLEL) as pool:
        results = zip(targets, pool.map(one, targets), strict=True)
        shown = track(
            results, "releasing", len(targets), console=console, transient=True, disable=len(targets) < 2 * PARALLEL
        )
        for gated, result in shown:
            yield gated.target, result


def _is_failure(result: ReleaseResult) -> bool:
    from scheduler.cluster import Release

    return result.release in (Release.REFUSED, Release.TRY_AGAIN)


def _line(target: Reference, result: ReleaseResult, dry_run: bool) -> str:
    from scheduler.cluster import Release

    words = {
        Release.DONE: "would be released" if dry_run else "released",
        Release.NOT_GATED: "not gated",
        Release.GONE: "gone",
        Release.REFUSED: "refused",
        Release.TRY_AGAIN: "failed",
    }
    return f"{words[result.release]}: {target}" + (f": {result.message}" if result.message else "")


def _error(message: str, code: int) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(code)
