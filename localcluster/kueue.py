"""Kueue's own objects in the apiserver (CRDs, RBAC, webhooks), and a proof that its controllers work.

``manifests`` is the folder that :func:`localcluster.build.kueue_manifests` names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from localcluster.components import Layout
from localcluster.rest import ApiError, Rest

NAMESPACE = "kueue-system"
CONFIG_MAP = "kueue-manager-config"
API = "/apis/kueue.x-k8s.io/v1beta2"
PROBE = "localcluster-probe"

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1"
_ACCOUNT = {"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "kueue-controller-manager"}

_KINDS_WITH_WEBHOOKS = ("workload", "clusterqueue", "cohort", "resourceflavor")
"""With those that its configuration names. All others would only cost: a Deployment's, say, is called for each one."""


def apply_rbac(api: Rest, manifests: Path) -> None:
    """Namespace and the roles that Kueue ships for its controller, bound to its ServiceAccount's name."""
    api("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    rbac = manifests / "rbac"
    for file in ("role", "metrics_auth_role"):
        role = _documents(rbac / f"{file}.yaml")[0]
        api("POST", f"{_RBAC}/clusterroles", role)
        api("POST", f"{_RBAC}/clusterrolebindings", _binding("ClusterRole", role["metadata"]["name"]))
    # MultiKueue (on by default) watches Secrets. Without this role Kueue seems healthy for two minutes, then exits.
    role = _documents(rbac / "manager_secrets_role.yaml")[0]
    role["metadata"]["namespace"] = NAMESPACE
    api("POST", f"{_RBAC}/namespaces/{NAMESPACE}/roles", role)
    api("POST", f"{_RBAC}/namespaces/{NAMESPACE}/rolebindings", _binding("Role", role["metadata"]["name"]))


def publish_configuration(api: Rest, layout: Layout) -> None:
    """Kueue's configuration in the ConfigMap from which an installation mounts it. (Here it reads the file.)"""
    data = {"controller_manager_config.yaml": layout.kueue_configuration.read_text()}
    api("POST", f"/api/v1/namespaces/{NAMESPACE}/configmaps", {"metadata": {"name": CONFIG_MAP}, "data": data})


def apply_crds(api: Rest, manifests: Path) -> set[str]:
    """Kueue's CRDs; the paths of their resources. They are served some seconds later: see :func:`served`."""
    return _apply_crds(api, sorted((manifests / "crd" / "bases").glob("*.yaml")))


def apply_framework_crds(api: Rest, folders: Sequence[Path]) -> set[str]:
    """The CRDs of other kinds of jobs (see :func:`localcluster.build.framework_crds`); the paths of their resources."""
    return _apply_crds(api, [file for folder in folders for file in sorted(folder.glob("*.yaml"))])


def _apply_crds(api: Rest, files: Sequence[Path]) -> set[str]:
    def apply(file: Path) -> Iterator[str]:
        # As text: parsing Workload's 19,000 lines of YAML here would take longer than all the rest.
        crd = api("POST", _CRDS, file.read_text().removeprefix("---\n"), content_type="application/yaml")
        spec = crd["spec"]
        for version in spec["versions"]:
            yield f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"

    with ThreadPoolExecutor(4) as pool:
        return {path for paths in pool.map(lambda file: list(apply(file)), files) for path in paths}


def served(api: Rest, resources: set[str]) -> bool:
    """Whether all of these resources (paths of their collections) are served."""
    groups = {path.rpartition("/")[0] for path in resources}
    return resources <= {f"{group}/{each['name']}" for group in groups for each in api("GET", group)["resources"]}


def apply_webhooks(api: Rest, manifests: Path, layout: Layout) -> None:
    """Kueue's webhook configurations, calling 127.0.0.1 instead of a Service."""
    configured = json.loads(layout.kueue_configuration.read_text())["integrations"]["frameworks"]
    kinds = (*_KINDS_WITH_WEBHOOKS, *(name.rpartition("/")[2] for name in configured))
    authority = base64.b64encode((layout.pki / "ca.crt").read_bytes()).decode()
    for configuration in _documents(manifests / "webhook" / "manifests.yaml"):
        configuration["metadata"]["name"] = f"kueue-{configuration['metadata']['name']}"
        configuration["webhooks"] = [
            _on_this_machine(webhook, layout.ports["kueue-webhook"], authority)
            for webhook in configuration["webhooks"]
            if webhook["name"].removesuffix(".kb.io")[1:] in kinds
        ]
        api("POST", f"{_WEBHOOKS}/{configuration['kind'].lower()}s", configuration)


def webhook_answers(api: Rest) -> bool:
    """Whether a request goes through Kueue's webhook (a dry run; nothing is created)."""
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": PROBE}}
    try:
        api("POST", f"{API}/resourceflavors?dryRun=All", flavor)
    except ApiError as error:
        return error.status == 409
    return True


@contextmanager
def probe(api: Rest) -> Iterator[None]:
    """A queue and a gated Job in a namespace of their own; on leaving they go. See :func:`functional`."""
    named = {"metadata": {"name": PROBE}}
    quota = {"name": "cpu", "nominalQuota": 1}
    group = {"coveredResources": ["cpu"], "flavors": [{"name": PROBE, "resources": [quota]}]}
    job = {
        "metadata": {
            "name": PROBE,
            "labels": {"kueue.x-k8s.io/queue-name": PROBE},
            "annotations": {"kueue.x-k8s.io/admission-gated-by": "localcluster/probe"},
        },
        "spec": {"suspend": True, "template": {"spec": {"restartPolicy": "Never", "containers": [_CONTAINER]}}},
    }
    objects: dict[str, dict[str, Any]] = {
        "/api/v1/namespaces": named,
        f"{API}/resourceflavors": _kueue("ResourceFlavor", named),
        f"{API}/clusterqueues": _kueue("ClusterQueue", named, namespaceSelector={}, resourceGroups=[group]),
        f"{API}/namespaces/{PROBE}/localqueues": _kueue("LocalQueue", named, clusterQueue=PROBE),
        f"/apis/batch/v1/namespaces/{PROBE}/jobs": job,
    }
    for path, body in objects.items():
        api("POST", path, body)
    yield
    for path in reversed(objects):
        api("DELETE", f"{path}/{PROBE}?propagationPolicy=Background")


def functional(api: Rest, reason: str) -> bool:
    """Whether Kueue's controllers work: its readiness only says that its webhook listens, a second or two earlier.

    Parameters
    ----------
    reason
        Reason of the condition QuotaReserved that the probe's Workload is to have: AdmissionGated with the feature
        gate AdmissionGatedBy; without it Kueue admits the probe (QuotaReserved).
    """
    workloads = api("GET", f"{API}/namespaces/{PROBE}/workloads")["items"]
    conditions = [c for workload in workloads for c in workload.get("status", {}).get("conditions", [])]
    return any(c["type"] == "QuotaReserved" and c["reason"] == reason for c in conditions)


_CONTAINER = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}


def _documents(file: Path) -> list[dict[str, Any]]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where PyYAML has it
    return [document for document in yaml.load_all(file.read_text(), Loader=loader) if document]


def _kueue(kind: str, named: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, **named, "spec": spec}


def _binding(kind: str, role: str) -> dict[str, Any]:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    return {"metadata": {"name": f"kueue-{role}"}, "roleRef": reference, "subjects": [_ACCOUNT]}


def _on_this_machine(webhook: dict[str, Any], port: int, authority: str) -> dict[str, Any]:
    path = webhook["clientConfig"]["service"]["path"]
    return {**webhook, "clientConfig": {"url": f"https://127.0.0.1:{port}{path}", "caBundle": authority}}
