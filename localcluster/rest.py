"""A small REST client for the apiserver: what starting a cluster and testing on it needs, and no more."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.errors import LocalClusterError

_PATCH = "application/merge-patch+json"


class ApiError(LocalClusterError):
    """The apiserver said no.

    Attributes
    ----------
    status
        The HTTP status: 403, 404, 409, 422 …
    message
        The apiserver's own message.
    """

    def __init__(self, method: str, path: str, status: int, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Identity:
    """Who calls: a client certificate, or a bearer token."""

    certificate: Path | None = None
    key: Path | None = None
    token: str | None = None


class Rest:
    """Calls one apiserver as one identity. Safe to use from several threads: each has a connection of its own.

    Parameters
    ----------
    port
        Port of the apiserver on 127.0.0.1.
    ca
        Certificate of the authority that signed the apiserver's.
    identity
        Who calls.
    """

    def __init__(self, port: int, ca: Path, identity: Identity) -> None:
        self._port = port
        self._token = identity.token
        self._tls = ssl.create_default_context(cafile=str(ca))
        if identity.certificate:
            self._tls.load_cert_chain(identity.certificate, identity.key)
        self._thread = threading.local()

    def __call__(
        self, method: str, path: str, body: Any = None, *, content_type: str = "", impersonate: str = ""
    ) -> Any:
        """One call; the decoded JSON of the answer (its text if it is none).

        Parameters
        ----------
        method, path
            ``"GET"``, ``"/apis/batch/v1/namespaces/x/jobs?dryRun=All"``.
        body
            Anything JSON can say; text is sent as it is.
        content_type
            JSON by default, a merge patch for PATCH.
        impersonate
            A user name to act as (the caller must be allowed to).

        Raises
        ------
        ApiError
            Any status but 2xx.
        OSError, http.client.HTTPException
            The apiserver cannot be reached.
        """
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = content_type or (_PATCH if method == "PATCH" else "application/json")
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if impersonate:
            headers["Impersonate-User"] = impersonate
        status, text = self._exchange(method, path, body if isinstance(body, str | None) else json.dumps(body), headers)
        try:
            answer = json.loads(text)
        except ValueError:
            answer = text.decode()
        if not 200 <= status < 300:
            message = answer.get("message", "") if isinstance(answer, dict) else answer
            raise ApiError(method, path, status, message)
        return answer

    def watch(self, path: str) -> Watch:
        """The changes of a collection from now on, until closed."""
        return self.list_and_watch(path)[1]

    def list_and_watch(self, path: str) -> tuple[list[dict[str, Any]], Watch]:
        """The objects of a collection now, and its changes from then on, until closed."""
        collection = self("GET", path)
        version = collection["metadata"]["resourceVersion"]
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        connection.request("GET", f"{path}?watch=true&resourceVersion={version}&timeoutSeconds=3600", headers=headers)
        return collection["items"], Watch(connection)

    def _exchange(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> tuple[int, bytes]:
        kept: http.client.HTTPSConnection | None = getattr(self._thread, "connection", None)
        if kept is not None:
            try:
                return _talk(kept, method, path, body, headers)
            except (http.client.HTTPException, OSError):
                kept.close()  # the apiserver closes idle connections: once more on a new one
        fresh = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=60)
        self._thread.connection = fresh
        return _talk(fresh, method, path, body, headers)


class Watch:
    """A stream of watch events: ``{"type": "ADDED" | "MODIFIED" | "DELETED", "object": …}``."""

    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self._closed = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        try:
            while line := self._response.readline():
                yield json.loads(line)
        except (OSError, ValueError, AttributeError):
            if not self._closed:
                raise

    def close(self) -> None:
        """End the stream, from whatever thread."""
        self._closed = True
        if self._connection.sock:
            self._connection.sock.shutdown(socket.SHUT_RDWR)


def _talk(
    connection: http.client.HTTPSConnection, method: str, path: str, body: str | None, headers: dict[str, str]
) -> tuple[int, bytes]:
    connection.request(method, path, body.encode() if body is not None else None, headers)
    response = connection.getresponse()
    return response.status, response.read()
