"""``punctual outcome-server``: take verdicts over gRPC."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from cli.ledger import USAGE, fail
from scheduler.logs import LogFormat, configure


def outcome_server(
    listen: Annotated[
        str, typer.Option(metavar="ADDRESS", help="unix:///path/to/socket, or host:port (port 0: any).")
    ] = "127.0.0.1:50052",
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate (PEM); switches TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only clients with a certificate of this CA may call (mTLS).")
    ] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How log lines look.", show_default="text on a terminal, else json")
    ] = None,
    kubeconfig: Annotated[
        Path | None, typer.Option(metavar="FILE", help="As kubectl's.", show_default="$KUBECONFIG, ~/.kube/config")
    ] = None,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Context of the kubeconfig.")] = None,
) -> None:
    """Take verdicts over gRPC: what `punctual outcome` does, for CI and judges.

    Service punctual.outcomes.v1.Outcomes (proto/outcomes.proto), with health and
    reflection. Callers send a token of the cluster ("authorization: Bearer …") and
    need the RBAC verb `verify`; all is done as they, with no rights of our own. Of
    the kubeconfig only the address is used. Addresses that others can reach take
    TLS. Prints its address when it takes calls.

    \b
    punctual outcome-server --listen 0.0.0.0:50052 --tls-cert tls.crt --tls-key tls.key

    Exit codes: 0 told to stop; 2 wrong options or address, or no cluster configured.
    """
    if (tls_cert is None) != (tls_key is None):
        raise fail("--tls-cert and --tls-key belong together", USAGE)
    if client_ca is not None and tls_cert is None:
        raise fail("--client-ca needs --tls-cert and --tls-key: without TLS no client can show a certificate", USAGE)
    from advisor.outcomes_server import Options, Server
    from advisor.outcomes_service import Service
    from scheduler.apiserver import NoCluster, connect
    from solver.listening import CannotListen

    configure(log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON))
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    try:
        cluster = connect(kubeconfig, context)
        server = Server(Options(listen, tls_cert, tls_key, client_ca), Service(cluster))
    except (NoCluster, CannotListen) as error:
        raise fail(str(error), USAGE) from None
    server.start()
    typer.echo(f"taking verdicts at {server.address}, for {cluster.url}")
    sys.stdout.flush()
    told.wait()
    logging.getLogger(__name__).info("told to stop")
    server.stop()
    cluster.close()
