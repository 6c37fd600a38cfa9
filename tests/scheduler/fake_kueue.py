"""A Kueue that says of a new Workload what 0.17 says, and no more: whether it heeds gates."""

from __future__ import annotations

from typing import Any

from scheduler.cluster import GATES_ANNOTATION
from tests.scheduler.fake_apiserver import FakeApiServer, Refusal

WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/workloads"
DENIED = (
    f'admission webhook "vworkload.kb.io" denied the request: metadata.annotations[{GATES_ANNOTATION}]: Invalid value'
)


class FakeKueue(FakeApiServer):
    """An apiserver whose Kueue answers for Workloads as 0.17 does.

    Attributes
    ----------
    heeds
        Whether its feature gate is on.
    webhook
        Whether its webhook is called.
    awake
        Whether its controllers say anything.
    """

    heeds, webhook, awake = True, True, True

    def handle(self, method: str, path: str, query: dict[str, str], body: Any, content_type: str) -> dict[str, Any]:
        if method == "POST" and path.endswith("/workloads"):
            gates = body["metadata"]["annotations"][GATES_ANNOTATION]
            if self.webhook and self.heeds and "/" not in gates:
                for hook in self.hooks:
                    hook(method, path)
                raise Refusal(403, DENIED)
            made = super().handle(method, path, query, body, content_type)
            if self.awake and not query:
                self.say(made, "Inadmissible" if not self.heeds else "AdmissionGated")
                self.say(made, "Inadmissible")
            return made
        return super().handle(method, path, query, body, content_type)

    def say(self, workload: dict[str, Any], reason: str) -> None:
        condition = {"type": "QuotaReserved", "status": "False", "reason": reason}
        self.put(WORKLOADS, {**workload, "status": {"conditions": [condition]}})
