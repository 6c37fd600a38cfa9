"""A kube-apiserver small enough to break on purpose: paging, watches, patches with tests, versions, and faults."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from kubernetes import client

from scheduler.apiserver import ApiServer


class Refusal(Exception):
    def __init__(self, status: int, message: str = "") -> None:
        super().__init__(message)
        self.status, self.message = status, message


class FakeApiServer:
    """Keeps any object under its path. ``objects[collection path][namespace/name]``."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.kinds = {
            "/api/v1/namespaces", "/apis/batch/v1/jobs", "/api/v1/events", "/apis/coordination.k8s.io/v1/leases",
            "/api/v1/limitranges", "/api/v1/nodes", "/api/v1/configmaps", "/apis/node.k8s.io/v1/runtimeclasses",
            *(f"/apis/kueue.x-k8s.io/v1beta2/{plural}" for plural in (
                "workloads", "localqueues", "clusterqueues", "cohorts", "resourceflavors", "workloadpriorityclasses")),
        }  # fmt: skip
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.version = 1000
        self.oldest = 0
        """Watches from before this version are answered with 410."""
        self.pages: dict[str, tuple[int, list[dict[str, Any]]]] = {}
        """What remains of lists that were begun, by continue token."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.hooks: list[Callable[[str, str], None]] = []
        """Called with method and path before each request; may raise Refusal, or change objects."""
        self.epoch = 0
        self.sockets: set[socket.socket] = set()
        self.port = 0
        self.start()

    # What tests do to it

    def start(self) -> None:
        fake = self

        class Handler(_Handler):
            server_fake = fake

        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.cut()

    def cut(self) -> None:
        """Close all connections in the middle of whatever they do."""
        with self.lock:
            self.epoch += 1
            sockets, self.sockets = self.sockets, set()
            self.lock.notify_all()
        for connection in sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def end_watches(self) -> None:
        """End all watches as the apiserver does when their time is over."""
        with self.lock:
            self.epoch += 1
            self.lock.notify_all()

    def compact(self) -> None:
        """Forget all history."""
        with self.lock:
            self.oldest = self.version
            self.history.clear()
            self.pages.clear()
            self.epoch += 1
            self.lock.notify_all()

    def api(self, connections: int = 20) -> ApiServer:
        settings = client.Configuration(host=f"http://127.0.0.1:{self.port}")
        settings.retries = False
        settings.connection_pool_maxsize = connections
        return ApiServer(client.ApiClient(settings))

    def put(self, collection: str, item: dict[str, Any], kind: str | None = None) -> dict[str, Any]:
        """Create or replace an object."""
        item = copy.deepcopy(item)
        metadata = item["metadata"]
        metadata.setdefault("uid", str(uuid.uuid4()))
        with self.lock:
            self.version += 1
            metadata["resourceVersion"] = str(self.version)
            known = self.objects.setdefault(collection, {})
            event = kind or ("MODIFIED" if _key(item) in known else "ADDED")
            if event == "DELETED":
                known.pop(_key(item), None)
            else:
                known[_key(item)] = item
            self.history.append((self.version, collection, event, item))
            self.lock.notify_all()
        return copy.deepcopy(item)

    def delete(self, collection: str, key: str) -> None:
        self.put(collection, self.objects[collection][key], "DELETED")

    def bookmark(self, collection: str) -> None:
        with self.lock:
            self.version += 1
            item = {"metadata": {"resourceVersion": str(self.version)}}
            self.history.append((self.version, collection, "BOOKMARK", item))
            self.lock.notify_all()

    def count(self, method: str, path: str, **query: str) -> int:
        return sum(m == method and p == path and query.items() <= q.items() for m, p, q in list(self.requests))

    # What it answers

    def handle(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> dict[str, Any]:
        self.requests.append((method, path, query))
        for hook in list(self.hooks):
            hook(method, path)
        collection, namespace, key = self.locate(path)
        if method == "GET" and not key:
            return self.list(collection, namespace, query)
        with self.lock:
            known = self.objects.setdefault(collection, {})
            if method == "POST":
                if namespace:
                    body["metadata"].setdefault("namespace", namespace)
                if _key(body) in known:
                    raise Refusal(409, "already exists")
                return body if query.get("dryRun") else self.put(collection, body)
            if key not in known:
                raise Refusal(404, f"{key} not found")
            item = copy.deepcopy(known[key])
            if method == "DELETE":
                self.delete(collection, key)
            if method == "PUT":
                if body["metadata"].get("resourceVersion") != item["metadata"]["resourceVersion"]:
                    raise Refusal(409, "the object has been modified")
                body["metadata"]["uid"] = item["metadata"]["uid"]
                return self.put(collection, body)
            if method == "PATCH":
                return self.put(collection, _patched(item, body, content_type))
            return item

    def locate(self, path: str) -> tuple[str, str, str]:
        """Collection, namespace, and the object's key, which is empty for a list."""
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        rest = parts[head:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        collection = "/" + "/".join([*parts[:head], rest[0]])
        if collection not in self.kinds:
            raise Refusal(404, "the server could not find the requested resource")
        if len(rest) == 1:
            return collection, namespace, ""
        return collection, namespace, f"{namespace}/{rest[1]}" if namespace else rest[1]

    def list(self, collection: str, namespace: str, query: dict[str, str]) -> dict[str, Any]:
        with self.lock:
            if token := query.get("continue"):
                if token not in self.pages:
                    raise Refusal(410, "The provided continue parameter is too old")
                version, items = self.pages[token]
            else:
                version = self.version
                items = [
                    copy.deepcopy(item)
                    for item in self.objects.get(collection, {}).values()
                    if _selected(item, query) and (not namespace or item["metadata"]["namespace"] == namespace)
                ]
            page = int(query.get("limit", len(items) or 1))
            metadata = {"resourceVersion": str(version)}
            if items[page:]:  # all pages show the same moment
                metadata["continue"] = f"{version}:{len(self.pages)}"
                self.pages[metadata["continue"]] = version, items[page:]
            return {"metadata": metadata, "items": items[:page]}


class _Handler(BaseHTTPRequestHandler):
    server_fake: FakeApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server_fake.sockets.add(self.connection)

    def finish(self) -> None:
        self.server_fake.sockets.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def serve(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            if query.get("watch"):
                return self.watch(unquote(url.path), query)
            status, answer = (
                200,
                self.server_fake.handle(
                    self.command, unquote(url.path), query, body, self.headers.get("Content-Type", "")
                ),
            )
        except Refusal as refusal:
            status, answer = refusal.status, {"kind": "Status", "code": refusal.status, "message": refusal.message}
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

    def watch(self, path: str, query: dict[str, str]) -> None:
        fake = self.server_fake
        fake.requests.append(("WATCH", path, query))
        for hook in list(fake.hooks):
            hook("WATCH", path)
        collection, _, _ = fake.locate(path)
        with fake.lock:
            position, epoch = int(query["resourceVersion"]), fake.epoch
            if position < fake.oldest:
                raise Refusal(410, "too old resource version")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + float(query["timeoutSeconds"])
        try:
            while True:
                with fake.lock:
                    new = [entry for entry in fake.history if entry[0] > position and entry[1] == collection]
                    if not new:
                        if fake.epoch != epoch or time.monotonic() > end:
                            break
                        fake.lock.wait(0.5)
                        continue
                for version, _, kind, item in new:
                    if kind == "BOOKMARK" or _selected(item, query):
                        self.chunk(json.dumps({"type": kind, "object": item}).encode() + b"\n")
                    position = version
            self.chunk(b"")
        except OSError:
            self.close_connection = True

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


def _key(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    return "/".join(filter(None, (metadata.get("namespace"), metadata["name"])))


def _selected(item: dict[str, Any], query: dict[str, str]) -> bool:
    selector = query.get("labelSelector")
    return not selector or selector in (item["metadata"].get("labels") or {})


def _patched(item: dict[str, Any], patch: Any, content_type: str) -> dict[str, Any]:
    if content_type == "application/merge-patch+json":
        if patch.get("metadata", {}).get("uid", item["metadata"]["uid"]) != item["metadata"]["uid"]:
            raise Refusal(409, "Precondition failed: UID in precondition")
        return _merged(item, patch)
    assert content_type == "application/json-patch+json"
    for step in patch:
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:])
        place = item
        for part in parents:
            place = place.get(part, {})
        if step["op"] == "test" and place.get(last) != step["value"]:
            raise Refusal(422, "the server rejected our request due to an error in our request")
        if step["op"] == "replace":
            place[last] = step["value"]
        if step["op"] == "remove":
            del place[last]
    return item


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict) or not isinstance(old, dict):
        return patch
    merged = dict(old)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merged(merged.get(name, {}), value)
    return merged


_numbers = itertools.count(1)


def a_job(name: str = "", namespace: str = "team-a", gates: str | None = None, **metadata: Any) -> dict[str, Any]:
    """A Job with a queue and, if wanted, gates."""
    annotations = {} if gates is None else {"kueue.x-k8s.io/admission-gated-by": gates}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name or f"job-{next(_numbers)}",
            "namespace": namespace,
            "labels": {"kueue.x-k8s.io/queue-name": "lq"},
            "annotations": annotations,
            **metadata,
        },
        "spec": {},
    }
