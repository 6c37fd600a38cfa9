"""``punctual sweep``: release what waits when no controller has run for long."""

from __future__ import annotations

import logging
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from scheduler.logs import LogFormat, configure

FAILED, USAGE = 1, 2
"""Exit codes."""


class Loss(StrEnum):
    """What becomes of waiting work while no controller runs."""

    RELEASE = "release"
    HOLD = "hold"


def sweep(
    on_loss: Annotated[
        Loss | None,
        typer.Option(help="Release what waits, or only say that nobody does.", show_default="the policy's; release"),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long the controller must have been gone.", show_default="the policy's; 10m"
        ),
    ] = None,
    rate: Annotated[float, typer.Option(metavar="N", help="Releases a second at most.", min=0.1)] = 5.0,
    lease_namespace: Annotated[
        str, typer.Option(envvar="POD_NAMESPACE", metavar="NAME", help="Namespace of the controller's Lease.")
    ] = "punctual-system",
    lease: Annotated[str, typer.Option(metavar="NAME", help="Name of the controller's Lease.")] = "punctual-controller",
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster to work on.",
            show_default="$KUBECONFIG, the pod's own cluster, ~/.kube/config",
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How log lines look.", show_default="text on a terminal, else json")
    ] = None,
) -> None:
    """Let waiting work go if the controller is gone.

    Watches the controller's Lease. As soon as it is renewed, this ends: all
    is well. If it is not renewed for --after, measured on a clock that cannot
    jump, our gates are taken off in the order of deadlines, and off what
    comes, until the Lease is renewed again.

    Run by a CronJob of its own (manifests/sweeper). Never beside a controller
    with --no-leader-elect: that has no Lease to renew.

    \b
    punctual sweep --after 10m
    punctual sweep --on-loss hold

    Exit codes: 0 a controller runs, or the work was let go or held as told;
    1 something could not be released; 2 wrong usage, or no cluster configured.
    """
    from scheduler.apiserver import NoCluster, connect
    from scheduler.in_force import find_policy
    from scheduler.notices import Notices
    from scheduler.settings import SECOND
    from scheduler.sweep import Orders, Sweeper

    configure(log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON))
    given = None if after is None else _duration(after)
    try:
        api = connect(kubeconfig, context, connections=4)
    except NoCluster as error:
        raise _usage(str(error)) from None

    def orders() -> Orders:
        policy = find_policy(api, lease_namespace).policy.on_controller_loss
        hold = (on_loss or Loss(policy.action)) is Loss.HOLD
        return Orders(hold, (policy.after if given is None else given) / SECOND, rate)

    notices = Notices(api)
    sweeper = Sweeper(api, lease_namespace, lease, orders, notices)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sweeper.stop())
    notices.start()
    try:
        end = sweeper.run()
    finally:
        notices.stop(seconds=10)
    log = logging.getLogger(__name__)
    log.info("ended", extra={"why": end.value, "released": sweeper.released, "failed": sweeper.failed})
    if sweeper.failed:
        raise typer.Exit(FAILED)


def _duration(text: str) -> int:
    from scheduler.annotations import parse_estimate

    try:
        return parse_estimate(text)
    except ValueError as error:
        raise _usage(f"--after: {error}") from None


def _usage(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(USAGE)
