"""``punctual controller``: releases work when its turn has come."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.logs import LogFormat, configure

if TYPE_CHECKING:
    from scheduler.ledger_recorder import LedgerOptions
    from scheduler.planner_client import TLS

USAGE, LOST = 2, 3
"""Exit codes."""


class LogLevel(StrEnum):
    """The least important log lines to show."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def controller(
    solver: Annotated[str, typer.Option(metavar="ADDRESS", help="The planner: unix:///path/to/socket, or host:port.")],
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Cluster to work on.",
            show_default="$KUBECONFIG, the pod's own cluster, ~/.kube/config",
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics, /healthz and /readyz; port 0: any.")
    ] = "127.0.0.1:8080",
    leader_elect: Annotated[
        bool, typer.Option(help="Compete for a Lease, so that several replicas can run and one acts.")
    ] = True,
    lease_namespace: Annotated[
        str | None,
        typer.Option(
            envvar="POD_NAMESPACE", metavar="NAME", help="Namespace of the Lease.", show_default="punctual-system"
        ),
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option(
            envvar="POD_NAME",
            metavar="NAME",
            help="Name of this replica in the Lease. Whoever restarts under the same name goes on at once.",
            show_default="host name and a random part",
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Go by this policy, followed as it changes.",
            show_default="ConfigMap punctual-policy in the namespace of the Lease",
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            envvar="PUNCTUAL_LEDGER",
            metavar="PATH|postgresql://…",
            help="Write down what becomes of work, and estimate by it: a SQLite file, or PostgreSQL (docs/ledger.md).",
            show_default="none",
        ),
    ] = None,
    ledger_keep: Annotated[
        str,
        typer.Option(
            envvar="PUNCTUAL_LEDGER_KEEP", metavar="DURATION", help="Forget work so long after its end; 0s: never."
        ),
    ] = "365d",
    ledger_anonymous: Annotated[
        bool,
        typer.Option(
            "--ledger-anonymous",
            envvar="PUNCTUAL_LEDGER_ANONYMOUS",
            help="Write names as salted hashes only, for good.",
        ),
    ] = False,
    solver_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CA of the planner's certificate; switches TLS on.")
    ] = None,
    solver_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate to show to the planner (mTLS).")
    ] = None,
    solver_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key.")] = None,
    solver_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name to expect in the planner's certificate.")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How log lines look.", show_default="text on a terminal, else json")
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The least important log lines to show.")] = LogLevel.INFO,
) -> None:
    """Watch a cluster and release work when its turn has come.

    The planner is asked in the background. While it is away the last plan
    goes on, and while the cluster is away the controller waits for it. On
    SIGTERM it ends what is under way, and itself.

    \b
    punctual solver --listen unix:///tmp/solver.sock &
    punctual controller --solver unix:///tmp/solver.sock --no-leader-elect

    Exit codes: 0 told to stop; 1 failed; 2 wrong options, or no cluster
    configured; 3 another replica may lead now.
    """
    from scheduler.apiserver import NoCluster, connect
    from scheduler.kubernetes import CONNECTIONS
    from scheduler.policy_source import NAMESPACE

    try:
        from scheduler.controller import Controller, End, Options
    except RuntimeError as error:  # numba's, of a read-only file system
        raise _usage(f"{error}; set $NUMBA_CACHE_DIR to a folder that can be written") from None
    configure(
        log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON), getattr(logging, log_level.upper())
    )
    if not solver.startswith("unix:") and not solver.rpartition(":")[2].isdigit():
        raise _usage(f"--solver: {solver!r} has no port; write host:port or unix:///path/to/socket")
    options = Options(
        solver=solver,
        http=http,
        identity=identity or f"{socket.gethostname()}_{uuid.uuid4().hex[:8]}",
        lease_namespace=(lease_namespace or NAMESPACE) if leader_elect else None,
        namespace=lease_namespace or NAMESPACE,
        policy=_sound(policy),
        ledger=_ledger(ledger, ledger_keep, ledger_anonymous),
        tls=_tls(solver_ca, solver_cert, solver_key, solver_name),
    )
    try:
        running = Controller(connect(kubeconfig, context, CONNECTIONS), options, version("kueue-punctual"))
    except (NoCluster, ValueError) as error:
        raise _usage(str(error)) from None
    except OSError as error:
        raise _usage(f"cannot listen on {http}: {error.strerror}; choose another with --http") from None
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.stop())
    end = running.run()
    logging.getLogger(__name__).info("ended", extra={"why": end.value})
    if end is End.LOST:
        raise typer.Exit(LOST)


def _sound(file: Path | None) -> Path | None:
    """A file with a policy that can be read; later, a bad one only leaves the last good one in force."""
    from scheduler.policy import BadPolicy, read_policy

    if file is not None:
        try:
            read_policy(file.read_text(encoding="utf-8"))
        except BadPolicy as error:
            raise _usage(f"{file}: {error}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise _usage(f"--policy: cannot read {file}: {error}") from None
    return file


def _ledger(address: str | None, keep: str, anonymous: bool) -> LedgerOptions | None:
    from scheduler.annotations import parse_duration
    from scheduler.ledger_recorder import LedgerOptions

    if not address:
        return None
    from scheduler.ledger import ledger_url

    try:
        ledger_url(address)
    except ValueError as error:
        raise _usage(f"--ledger: {error}") from None
    try:
        keep_ms = parse_duration(keep)
    except ValueError as error:
        raise _usage(f"--ledger-keep: {error}") from None
    if keep_ms < 0:
        raise _usage(f"--ledger-keep: {keep} is negative")
    return LedgerOptions(address, keep_ms, anonymous)


def _tls(ca: Path | None, certificate: Path | None, key: Path | None, name: str | None) -> TLS | None:
    from scheduler.planner_client import TLS

    if (certificate is None) != (key is None):
        raise _usage("--solver-cert and --solver-key belong together")
    for file in (ca, certificate, key):
        if file is not None and not os.access(file, os.R_OK):
            raise _usage(f"cannot read {file}")
    if ca is None and certificate is None and name is None:
        return None
    return TLS(ca, certificate, key, name)


def _usage(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(USAGE)
