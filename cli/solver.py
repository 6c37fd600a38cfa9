"""``punctual solver``: the planner as a gRPC server."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.logs import LogFormat, configure

if TYPE_CHECKING:
    from solver.server import Options, Server

FAILED, USAGE, NOT_SERVING = 1, 2, 3
"""Exit codes."""


def solver(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="unix:///path/to/socket, or host:port (port 0: any). Can be given several times.",
            show_default="127.0.0.1:50051",
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate (PEM); switches TLS on.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    client_ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Only clients with a certificate of this CA may call (mTLS).")
    ] = None,
    max_message_mib: Annotated[
        int, typer.Option(min=1, max=2047, metavar="MIB", help="Refuse requests of this size and above.")
    ] = 64,
    max_concurrent: Annotated[
        int, typer.Option(min=1, metavar="N", help="Calls worked on at the same time; a few more wait for a moment.")
    ] = 4,
    grace: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="What calls under way get when told to stop.")
    ] = 20.0,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="How log lines look.", show_default="text on a terminal, else json")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Serve nothing; ask the server at this address whether it takes calls (for probes). With the TLS "
            "options over TLS: --client-ca is its CA, --tls-cert and --tls-key identify us.",
        ),
    ] = None,
) -> None:
    """Plan for whoever asks, over gRPC (service punctual.planner.v1.Planner, with health and reflection).

    Prints one line with the addresses when it takes calls: the kernels are
    compiled first, which takes a minute where they are not cached.
    $NUMBA_CACHE_DIR says where they are cached; it must be writable, nothing
    else need be.

    On SIGTERM or ^C it takes no more calls and ends when those under way have
    ended.

    Exit codes: 0 told to stop (or, with --check, serving); 1 failed; 2 wrong
    options or address; 3 (--check) not serving.
    """
    style = log_format or (LogFormat.TEXT if sys.stderr.isatty() else LogFormat.JSON)
    configure(style)
    if (tls_cert is None) != (tls_key is None):
        raise _usage("--tls-cert and --tls-key belong together")
    for file in (tls_cert, tls_key, client_ca):
        if file is not None and not os.access(file, os.R_OK):
            raise _usage(f"cannot read {file}")
    if check is not None:
        _check(check, tls_cert, tls_key, client_ca)
        return
    if client_ca is not None and tls_cert is None:
        raise _usage("--client-ca needs --tls-cert and --tls-key: without TLS no client can show a certificate")
    try:
        from solver.server import Options
    except RuntimeError as error:
        if "cannot cache function" not in str(error):
            raise
        told = "no place to keep compiled kernels: set NUMBA_CACHE_DIR to a directory that can be written to"
        raise _failed(told) from None
    options = Options(
        listen=tuple(listen or ["127.0.0.1:50051"]),
        certificate=tls_cert,
        key=tls_key,
        client_ca=client_ca,
        max_message=max_message_mib << 20,
        max_concurrent=max_concurrent,
        grace=grace,
    )
    _serve(options)


def _serve(options: Options) -> None:
    """Serve until told to stop."""
    from solver.listening import CannotListen
    from solver.server import Server

    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    try:
        server = Server(options)
    except (CannotListen, OSError) as error:
        raise _usage(str(error)) from None
    log = logging.getLogger("solver")
    open_to_all = [a for a in server.addresses if not a.startswith(("unix:", "127.", "localhost:", "[::1]"))]
    if open_to_all and options.client_ca is None:
        log.warning("anybody who reaches this address may call", extra={"addresses": open_to_all})
    server.start()
    failed: list[Exception] = []
    threading.Thread(target=_warm_up, args=(server, told, failed), daemon=True).start()
    told.wait()
    log.info("stopping", extra={"in_flight": server.service.in_flight})
    server.stop()
    log.info("stopped")
    if failed:
        raise _failed(f"the kernels cannot be compiled: {failed[0]}")


def _warm_up(server: Server, told: threading.Event, failed: list[Exception]) -> None:
    from solver.sidecar import READY

    try:
        server.warm_up()
    except Exception as error:
        logging.getLogger("solver").exception("warm-up failed")
        failed.append(error)
        told.set()
        return
    typer.echo(f"punctual solver: {READY}{' '.join(server.addresses)}")
    sys.stdout.flush()


def _check(address: str, certificate: Path | None, key: Path | None, ca: Path | None) -> None:
    """Ask a server for its health."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    if ca is None and certificate is None:
        channel = grpc.insecure_channel(address)
    else:
        files = (file.read_bytes() if file else None for file in (ca, key, certificate))
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(*files))
    with channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=5)
        except grpc.RpcError as error:
            typer.echo(f"{address}: no answer: {error.details()}", err=True)
            raise typer.Exit(NOT_SERVING) from None
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    typer.echo(f"{address}: {status}")
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise typer.Exit(NOT_SERVING)


def _usage(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(USAGE)


def _failed(message: str) -> typer.Exit:
    typer.echo(f"error: {message}", err=True)
    return typer.Exit(FAILED)
