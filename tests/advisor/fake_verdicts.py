"""A cluster that knows who asks by their token, and who of them may verify."""

from __future__ import annotations

import threading
from typing import Any

from scheduler.settings import HOUR
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal, _Handler
from tests.scheduler.memory_cluster import MemoryCluster

JOBS, WORKLOADS = "/apis/batch/v1/jobs", "/apis/kueue.x-k8s.io/v1beta2/workloads"


class Verdicts(FakeApiServer):
    """A finished Job ``done`` and a running one ``runs`` in namespace ``team``. ``users``: name and right by token."""

    def __init__(self) -> None:
        self.caller = threading.local()
        self.users = {"secret": ("carol", True), "mine": ("alice", False)}
        self.reviews: list[dict[str, Any]] = []
        super().__init__()
        memory = MemoryCluster()
        memory.queue()
        for name in ("done", "runs"):
            memory.job(name, 2, deadline="8h")
            memory.admit(name)
        memory.time += HOUR
        memory.condition("done", "Finished", "True", "Succeeded")
        for kind, path in (("Job", JOBS), ("Workload", WORKLOADS)):
            for item in memory.objects(kind).values():
                self.put(path, dict(item))

    def start(self) -> None:
        """As any, but tokens are looked at."""
        super().start()
        caller = self.caller

        class Handler(_Handler):
            server_fake = self

            def serve(self) -> None:
                caller.token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                super().serve()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve

        self.http.RequestHandlerClass = Handler

    def handle(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> dict[str, Any]:
        """As any, and labels are selected by their value."""
        token = getattr(self.caller, "token", "")
        if token not in self.users:
            raise Refusal(401, "Unauthorized")
        name, may = self.users[token]
        if path.endswith("/selfsubjectreviews"):
            return {"status": {"userInfo": {"username": name}}}
        if path.endswith("/selfsubjectaccessreviews"):
            self.reviews.append(body["spec"]["resourceAttributes"])
            return {"status": {"allowed": may}}
        key, _, value = query.get("labelSelector", "").partition("=")
        if value:
            answer = super().handle(method, path, {**query, "labelSelector": key}, body, content_type)
            chosen = [each for each in answer["items"] if each["metadata"]["labels"][key] == value]
            return {**answer, "items": chosen}
        return super().handle(method, path, query, body, content_type)

    def said(self, name: str = "done") -> dict[str, str]:
        """What is on a Job: verdict, verdict-by, verdict-reason."""
        found: dict[str, str] = self.objects[JOBS][f"team/{name}"]["metadata"]["annotations"]
        prefix = "punctual.kueue/"
        return {key.removeprefix(prefix): text for key, text in found.items() if key.startswith(f"{prefix}verdict")}

    def uid(self, name: str = "done") -> str:
        """Of a Job."""
        return str(self.objects[JOBS][f"team/{name}"]["metadata"]["uid"])
