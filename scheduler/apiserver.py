"""A kube-apiserver in raw JSON.

The ``kubernetes`` package finds the configuration, authenticates and holds the connections. Its models are left out:
making one of each of 100,000 objects costs more than everything else we do with them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import HTTPError, ProtocolError

from scheduler.kinds import ROOTS

KUEUE_CONFIG = ("kueue-system", "kueue-manager-config")
"""Namespace and name of the ConfigMap in which Kueue's manifests and its chart put its configuration."""

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0

PAGE = 500
"""Objects in one answer, as kubectl and client-go ask for."""

FORBIDDEN = 403
NOT_FOUND = 404
GONE = 410
"""The version asked for is not known any more."""
BUSY = (0, 429, 500, 502, 503, 504)
"""Statuses after which the same call may work later; 0: no answer. Kueue's webhooks being away is a 500."""

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"


@dataclass(frozen=True)
class Resource:
    """Where the apiserver keeps the objects of a kind.

    Attributes
    ----------
    kind
        As in the objects: ``Job``.
    version
        Group and version, as in ``apiVersion``: ``batch/v1``.
    plural
        As in paths: ``jobs``.
    selector
        Label selector of the objects that matter to us; empty for all.
    optional
        Whether a cluster may well not have it (yet).
    needed
        Whether plans make no sense without it. What else we may not read is said, and counts as not there.
    only
        Namespace and name of the one object that matters to us; None: all.
    """

    kind: str
    version: str
    plural: str
    namespaced: bool = True
    selector: str = ""
    optional: bool = False
    needed: bool = True
    only: tuple[str, str] | None = None

    @property
    def query(self) -> dict[str, str]:
        """What a list or a watch asks for."""
        found = {"labelSelector": self.selector} if self.selector else {}
        return found | ({"fieldSelector": f"metadata.name={self.only[1]}"} if self.only else {})

    def path(self, namespace: str = "", name: str = "") -> str:
        """Path of one object, of a namespace's, or (without arguments) of all."""
        parts = ["/apis" if "/" in self.version else "/api", self.version]
        if self.only:
            namespace = self.only[0]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        return "/".join(parts)


_KUEUE = "kueue.x-k8s.io/v1beta2"

RESOURCES: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (
        Resource("Namespace", "v1", "namespaces", namespaced=False),
        # Kueue's webhook writes the label at creation, also for a LocalQueue that is the namespace's default.
        *(
            Resource(
                root.kind, root.version, root.plural, selector="kueue.x-k8s.io/queue-name", optional=not root.builtin
            )
            for root in ROOTS
        ),
        Resource("Workload", _KUEUE, "workloads"),
        Resource("LocalQueue", _KUEUE, "localqueues"),
        Resource("ClusterQueue", _KUEUE, "clusterqueues", namespaced=False),
        Resource("Cohort", _KUEUE, "cohorts", namespaced=False),
        Resource("ResourceFlavor", _KUEUE, "resourceflavors", namespaced=False),
        Resource("WorkloadPriorityClass", _KUEUE, "workloadpriorityclasses", namespaced=False),
        Resource("LimitRange", "v1", "limitranges", needed=False),
        Resource("RuntimeClass", "node.k8s.io/v1", "runtimeclasses", namespaced=False, needed=False),
        Resource("ConfigMap", "v1", "configmaps", needed=False, only=KUEUE_CONFIG),
        Resource("Node", "v1", "nodes", namespaced=False, needed=False),
    )
}
"""Every kind we read or write."""


class ApiError(Exception):
    """The apiserver said no, or nothing.

    Attributes
    ----------
    status
        HTTP status; 0 when there was no answer.
    message
        The apiserver's own words, or what broke the connection.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} (HTTP {status})" if status else message)
        self.status = status
        self.message = message


class _Dropped(ApiError):
    """The connection closed under our request, as one that stood idle may. Worth one more attempt: everything we send
    may be sent twice, since patches test what they replace and what we create has a name.
    """


class NoCluster(Exception):
    """No usable cluster configuration; the message says what was tried and what to do."""


_CONNECTION = (
    "ssl_ca_cert", "verify_ssl", "assert_hostname", "tls_server_name", "proxy", "no_proxy", "proxy_headers",
    "socket_options", "connection_pool_maxsize", "retries",
)  # fmt: skip
"""What of a configuration says how to reach an apiserver, and not who we are."""


class ApiServer:
    """One apiserver and the connections to it. Safe to use from several threads.

    Parameters
    ----------
    client
        A ``kubernetes.client.ApiClient``, configured by the ``kubernetes`` package; see :func:`connect`.
    namespace
        Namespace of the kubeconfig's context.
    user
        Name of a user to act as (who calls must have the right to); empty: as who we are.
    """

    def __init__(self, client: Any, namespace: str = "default", user: str = "") -> None:
        self._client = client
        self.namespace = namespace
        self._user = user

    @property
    def url(self) -> str:
        """Where it is."""
        return str(self._client.configuration.host)

    def as_user(self, user: str) -> ApiServer:
        """The same apiserver, called as somebody else (impersonation)."""
        return ApiServer(self._client, self.namespace, user)

    def with_token(self, token: str) -> ApiServer:
        """The same apiserver, called by whoever a bearer token belongs to. Nothing of our own identity goes along."""
        from kubernetes import client

        ours = self._client.configuration
        theirs = client.Configuration(host=ours.host)
        for name in _CONNECTION:
            setattr(theirs, name, getattr(ours, name))
        theirs.username = theirs.password = theirs.cert_file = theirs.key_file = theirs.refresh_api_key_hook = None
        theirs.api_key_prefix = {}
        theirs.api_key = {"authorization": f"Bearer {token}"}
        return ApiServer(client.ApiClient(theirs), self.namespace)

    def date(self) -> str:
        """The time that the apiserver puts on its answers, as HTTP writes it; empty if there is none on them.

        Raises
        ------
        ApiError
            No answer.
        """
        response = self._send("GET", "/version", None, None, "", READ_SECONDS)
        _body(response)
        return str(response.headers.get("Date", ""))

    def text(self, path: str) -> str:
        """What is at a path, as text: for what is no JSON.

        Raises
        ------
        ApiError
            As :meth:`request`.
        """
        response = self._send("GET", path, None, None, "", READ_SECONDS)
        data = _body(response)
        if response.status != 200:
            raise _refusal(response.status, data)
        return data.decode(errors="replace")

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        seconds: float = READ_SECONDS,
    ) -> dict[str, Any]:
        """One call, answered as a JSON object within ``seconds``.

        Raises
        ------
        ApiError
            Any status but 2xx, or no answer in time.
        """
        call = (method, path, query, body, content_type, seconds)
        try:
            response = self._send(*call)
        except _Dropped:
            response = self._send(*call)
        data = _body(response)
        if not 200 <= response.status < 300:
            raise _refusal(response.status, data)
        return _json_object(data)

    def list_all(self, resource: Resource, namespace: str = "", page: int = PAGE) -> tuple[list[dict[str, Any]], str]:
        """All objects of a kind (that its selector selects), page by page, and the version at which they are so.

        Raises
        ------
        ApiError
            As :meth:`request`.
        """
        query: dict[str, str | int] = {"limit": page, **resource.query}
        items: list[dict[str, Any]] = []
        while True:
            try:
                answer = self.request("GET", resource.path(namespace), query=query)
            except ApiError as error:
                if error.status != GONE or "continue" not in query:
                    raise
                # The pages have become too old while we read them: all in one piece, then.
                del query["limit"], query["continue"]
                items = []
                continue
            items += answer.get("items") or ()
            if not (token := answer["metadata"].get("continue")):
                return items, str(answer["metadata"]["resourceVersion"])
            query["continue"] = token

    def watch(self, path: str, query: Mapping[str, str | int], seconds: float) -> Watch:
        """A stream of watch events that the apiserver ends after about ``seconds``.

        Raises
        ------
        ApiError
            When it does not start; :class:`Watch` raises it when it breaks off.
        """
        query = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": int(seconds)}
        response = self._send("GET", path, query, None, "", seconds + READ_SECONDS)
        if response.status != 200:
            raise _refusal(response.status, _body(response))
        return Watch(response)

    def close(self) -> None:
        """Close all idle connections."""
        self._client.close()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        body: Any,
        content_type: str,
        read_seconds: float,
    ) -> urllib3.BaseHTTPResponse:
        """The answer, whatever its status, its body unread."""
        from kubernetes.client.exceptions import ApiException

        headers = {"Accept": "application/json", "User-Agent": "punctual"}
        if self._user:
            headers["Impersonate-User"] = self._user
        if body is not None:
            headers["Content-Type"] = content_type
        url = self.url + path + (f"?{urlencode(query)}" if query else "")
        try:
            self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
            answer = self._client.call_api(method, url, headers, body, _request_timeout=(CONNECT_SECONDS, read_seconds))
        except ProtocolError as error:
            raise _Dropped(0, f"no answer from {self.url}: {error}") from error
        except (HTTPError, ApiException, _config().ConfigException, OSError) as error:
            raise ApiError(0, f"no answer from {self.url}: {error}") from error
        response: urllib3.BaseHTTPResponse = answer.response
        return response


class Watch:
    """Watch events as they come, decoded. Iterate in one thread; :meth:`close` from any."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Events until the apiserver ends the stream.

        Raises
        ------
        ApiError
            The connection broke, or something that is no JSON came.
        """
        try:
            for line in self._response:
                if line.strip():
                    yield _json_object(line)
        except (HTTPError, OSError) as error:
            raise ApiError(0, f"the watch broke off: {error}") from error
        finally:
            self._response.close()

    def close(self) -> None:
        """End the iteration, wherever it waits."""
        with suppress(ValueError, RuntimeError, OSError):  # it has ended by itself
            self._response.shutdown()


def connect(kubeconfig: Path | None = None, context: str | None = None, connections: int = 32) -> ApiServer:
    """The cluster that ``kubectl`` would talk to, or, in a pod, the pod's own.

    A kubeconfig or context that is named wins; then ``$KUBECONFIG``; then the pod's service account; then
    ``~/.kube/config``.

    Parameters
    ----------
    connections
        How many connections are kept for reuse: one for each watch and each parallel call.

    Raises
    ------
    NoCluster
        Nothing is configured, or it cannot be read.
    """
    import yaml
    from kubernetes import client
    from kubernetes.utils.keepalive import tcp_keepalive_socket_options

    config = _config()
    settings = client.Configuration()
    # A watch only listens, so it would not notice that the other side is gone: probe after 10 quiet seconds.
    settings.socket_options = tcp_keepalive_socket_options(idle=10, interval=5, count=3)
    settings.connection_pool_maxsize = connections
    settings.retries = False  # each caller knows better when to try again
    in_pod = kubeconfig is None and context is None and "KUBECONFIG" not in os.environ
    namespace = "default"
    try:
        if in_pod and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
            namespace = _pod_namespace() or namespace
        else:
            file = None if kubeconfig is None else str(kubeconfig)
            config.load_kube_config(config_file=file, context=context, client_configuration=settings)
            namespace = _context_namespace(file, context) or namespace
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        tried = str(kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config")
        raise NoCluster(f"no cluster to talk to: {error} (read {tried}); name one with --kubeconfig FILE") from error
    return ApiServer(client.ApiClient(settings), namespace)


def _config() -> Any:
    """``kubernetes.config``, which has no types."""
    from kubernetes import config

    return config


def _pod_namespace() -> str:
    try:
        return Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace").read_text().strip()
    except OSError:
        return ""


def _context_namespace(file: str | None, context: str | None) -> str:
    contexts, active = _config().list_kube_config_contexts(config_file=file)
    chosen = next((entry for entry in contexts if entry["name"] == context), active)
    return str(chosen["context"].get("namespace", ""))


def _body(response: urllib3.BaseHTTPResponse) -> bytes:
    try:
        return response.data
    except (HTTPError, OSError) as error:
        raise ApiError(0, f"the answer broke off: {error}") from error


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise ApiError(0, f"not JSON: {data[:200]!r}") from error
    if not isinstance(value, dict):
        raise ApiError(0, f"not a JSON object: {data[:200]!r}")
    return value


def _refusal(status: int, data: bytes) -> ApiError:
    """What the apiserver (or a proxy before it) said, as short as it can be told."""
    try:
        message = json.loads(data)["message"]
    except (ValueError, KeyError, TypeError):
        message = data[:200].decode(errors="replace").strip() or "no message"
    return ApiError(status, str(message))
