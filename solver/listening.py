"""Where a gRPC server listens, and by which certificate: what is wrong with either, in words.

gRPC itself says no more than that an address cannot be listened on, and takes a socket away from who still listens.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from pathlib import Path

import grpc


class CannotListen(ValueError):
    """An address or certificate that cannot be listened with: what is wrong with it, and what to do."""


def credentials(certificate: Path | None, key: Path | None, client_ca: Path | None) -> grpc.ServerCredentials | None:
    """Credentials of a server, of files in PEM format; None without certificate and key.

    ``client_ca``: CA of the certificates that clients must show (mTLS).

    Raises
    ------
    CannotListen
        If they cannot be used.
    """
    if certificate is None or key is None:
        return None
    _check_tls(certificate, key, client_ca)
    pair = key.read_bytes(), certificate.read_bytes()
    ca = client_ca.read_bytes() if client_ca else None
    return grpc.ssl_server_credentials([pair], ca, require_client_auth=ca is not None)


def listen(server: grpc.Server, address: str, credentials: grpc.ServerCredentials | None) -> str:
    """Listen on ``unix:///path/to/socket`` or ``host:port``; returns the same with its port filled in.

    Raises
    ------
    CannotListen
        If the address is none, or taken.
    """
    if address.startswith("unix:"):
        _check_socket(Path(address.removeprefix("unix:").removeprefix("//")))
        host = ""
    else:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise CannotListen(f"{address!r} is no address: write unix:///path/to/socket or host:port")
    try:
        if credentials is None:
            port_taken = server.add_insecure_port(address)
        else:
            port_taken = server.add_secure_port(address, credentials)
    except RuntimeError:
        raise CannotListen(
            f"cannot listen on {address}: it is taken, not an address of this machine, or forbidden"
        ) from None
    return f"{host}:{port_taken}" if host else address


def _check_tls(certificate: Path, key: Path, client_ca: Path | None) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # nobody is there to be asked for one
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise CannotListen(f"certificate {certificate} and key {key} cannot be used: {error}") from None
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except OSError as error:
        raise CannotListen(f"client CA {client_ca} cannot be used: {error}") from None


def _check_socket(path: Path) -> None:
    """What gRPC says less clearly, or not at all: it would take the socket away from a server that still listens."""
    if len(os.fsencode(path)) > 107:
        raise CannotListen(f"{path} is longer than the 107 bytes that the path of a socket may have")
    if not path.parent.is_dir():
        raise CannotListen(f"{path.parent} is no directory: create it, or choose another path")
    if not os.access(path.parent, os.W_OK):
        raise CannotListen(f"{path.parent} cannot be written to")
    if not path.exists():
        return
    if not stat.S_ISSOCK(path.stat().st_mode):
        raise CannotListen(f"{path} exists and is no socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return  # left behind by a server that is gone
    raise CannotListen(f"another server listens on {path}")
