"""``punctual sweep``: release what waits when no controller has run for long."""

from __future__ import annotations

import logging
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.logs import LogFormat, configure

if TYPE_CHECKING:
    from scheduler.sweep import Orders

FAILED, USAGE = 1, 2
"""Exit codes."""


class Loss(StrEnum):
    """What becomes of waiting work while no controller runs."""

    RELEASE = "release"
    HOLD = "hold"


def sweep(
    on_loss: Annotated[Loss, typer.Option(help="Release what waits, or only say that nobody does.")] = Loss.RELEASE,
    after: Annotated[
        str, typer.Option(metavar="DURATION", help="How long the controller must have been gone.")
    ] = "10m",
    rate: Annotated[float, typer.Option(metavar="N", help="Releases a second at most.", min=0.01)] = 5.0,
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
    from scheduler.notices import Notices
    from scheduler.sweep import Sweeper

    configure(log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON))
    orders = _orders(on_loss, after, rate, lease_namespace, lease)
    try:
        api = connect(kubeconfig, context, connections=4)
    except NoCluster as error:
        raise _usage(str(error)) from None
    notices = Notices(api)
    sweeper = Sweeper(api, orders, notices)
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


def _orders(on_loss: Loss, after: str, rate: float, namespace: str, lease: str) -> Orders:
    from scheduler.annotations import parse_estimate
    from scheduler.settings import SECOND
    from scheduler.sweep import Orders

    try:
        return Orders(namespace, lease, on_loss is Loss.HOLD, parse_estimate(after) / SECOND, rate)
    except ValueError as error:
        raise _usage(f"--after: {error}") from None


def _usage(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(USAGE)
