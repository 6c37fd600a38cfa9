"""The support bundle: what somebody who helps needs to see, and no more.

Everything in it is picked field by field; nothing is copied whole and then cleaned. So what a Secret, an environment,
an argument, a label, an annotation, a volume or a pod template says cannot get in, wherever it stands. What a message
quotes of what a user wrote is blanked.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scheduler.annotations import parse_instant, read_wishes
from scheduler.apiserver import ApiError
from scheduler.check import Finding, Installation
from scheduler.check_cluster import kueue_configuration, kueue_deployment, kueue_feature_gates, kueue_image_version
from scheduler.check_policies import MANAGED, managed
from scheduler.check_running import metrics_text
from scheduler.cluster import PREFIX, Object
from scheduler.notices import COMPONENT, EVENTS
from scheduler.ungate import gate_names, gates_of

WORKLOADS = 5_000
"""Workloads in it at most: those that have not finished first, then the newest."""

EVENTS_KEPT = 2_000

_README = """\
Support bundle of Punctual {version}, made {time}.

check.json      what `punctual check` found
versions.json   versions; Kueue's feature gates and the parts of its configuration that matter to plans
queues.json     ClusterQueues, Cohorts, flavors, LocalQueues, priority classes, opted-in namespaces
workloads.json  Workloads: queue, priority, requests, conditions, and what their owners said about deadlines
events.json     Events that Punctual has written
policies.json   Punctual's admission policies
metrics.txt     the controller's metrics, if they could be read

Not in it: Secrets, ConfigMaps, logs, pod templates (images, commands, arguments, environments, volumes), labels, other
annotations than the readable ones of Punctual. What a message quotes is blanked.{names}
"""
_PSEUDONYMS = (
    "\nNames of namespaces, queues, flavors, classes and jobs are replaced: the same name, the same replacement."
)

_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_PUBLIC = frozenset(
    {
        "kubernetes",
        "admission policies",
        "clock",
        "controller's clock",
        "kueue",
        "gates",
        "guards",
        "AdmissionGatedBy",
        "gates act",
        "guards act",
        "rights",
        "sweeper",
    }
)
"""Findings whose words name nothing of the users'."""


class Names:
    """Names as they are, or a pseudonym for each."""

    def __init__(self, hide: bool) -> None:
        self.hide = hide
        self._known: dict[str, dict[str, str]] = {}

    def __call__(self, what: str, name: Any) -> str:
        """The name of something; ``what`` it is keeps the pseudonyms readable."""
        text = str(name or "")
        if not self.hide or not text:
            return text
        known = self._known.setdefault(what, {})
        return known.setdefault(text, f"{what}-{len(known) + 1}")

    def words(self, text: str) -> str:
        """A sentence about something of the users': what it quotes is blanked, and without names there is none."""
        return "" if self.hide else blanked(text)


def write_bundle(at: Installation, found: Sequence[Finding], target: Path, *, anonymise: bool = False) -> None:
    """Write a bundle. What cannot be read is named in it, and does not stop the rest.

    Raises
    ------
    OSError
        ``target`` cannot be written.
    """
    names = Names(anonymise)
    parts: dict[str, Callable[[], Any]] = {
        "check.json": lambda: [_finding(each, names) for each in found],
        "versions.json": lambda: _versions(at),
        "queues.json": lambda: _queues(at, names),
        "workloads.json": lambda: _workloads(at, names),
        "events.json": lambda: _events(at, names),
        "policies.json": lambda: _policies(at),
        "metrics.txt": lambda: _metrics(at, names),
    }
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    texts = {
        "README.txt": _README.format(
            version=version("kueue-punctual"), time=made, names=_PSEUDONYMS if anonymise else ""
        )
    }
    for name, make in parts.items():
        try:
            content = make()
        except Exception as error:
            content = {
                "missing": blanked(f"{type(error).__name__}: {error}") if not anonymise else type(error).__name__
            }
        texts[name] = content if isinstance(content, str) else json.dumps(content, indent=1, default=str)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in texts.items():
            encoded = text.encode()
            entry = tarfile.TarInfo(f"punctual-support/{name}")
            entry.size, entry.mtime = len(encoded), int(time.time())
            archive.addfile(entry, io.BytesIO(encoded))
    target.write_bytes(data.getvalue())


def blanked(text: str) -> str:
    """A message without what it quotes."""
    return _QUOTED.sub('"…"', text)


def _finding(finding: Finding, names: Names) -> dict[str, str]:
    told = {"what": finding.what, "state": finding.state.value}
    if finding.what in _PUBLIC:
        return told | {"message": blanked(finding.message)}
    return told | {"message": names.words(finding.message)}


def _versions(at: Installation) -> dict[str, Any]:
    deployment, configuration = kueue_deployment(at), kueue_configuration(at) or {}
    sharing = configuration.get("fairSharing")
    return {
        "punctual": version("kueue-punctual"),
        "python": sys.version.split()[0],
        "kubernetes": at.api.request("GET", "/version").get("gitVersion"),
        "kueue": kueue_image_version(deployment),
        "kueueFeatureGates": kueue_feature_gates(deployment),
        "kueueConfiguration": {
            "seen": bool(configuration),
            "frameworks": (configuration.get("integrations") or {}).get("frameworks"),
            "fairSharing": bool(sharing),
            "admissionFairSharing": bool(configuration.get("admissionFairSharing")),
            "waitForPodsReady": bool(configuration.get("waitForPodsReady")),
            "manageJobsWithoutQueueName": bool(configuration.get("manageJobsWithoutQueueName")),
            "transformations": len((configuration.get("resources") or {}).get("transformations") or ()),
        },
        "kinds": [root.kind for root in at.kinds],
    }


def _queues(at: Installation, names: Names) -> dict[str, Any]:
    cluster = at.cluster
    return {
        "namespaces": [
            {"name": names("namespace", name), MANAGED: "true"}
            for name, item in cluster.objects("Namespace").items()
            if managed(item)
        ],
        "localQueues": [
            {
                "namespace": names("namespace", item["metadata"]["namespace"]),
                "name": names("local-queue", item["metadata"]["name"]),
                "clusterQueue": names("cluster-queue", item["spec"].get("clusterQueue")),
                "stopPolicy": item["spec"].get("stopPolicy"),
            }
            for item in cluster.objects("LocalQueue").values()
        ],
        "clusterQueues": [_cluster_queue(item, names) for item in cluster.objects("ClusterQueue").values()],
        "cohorts": [
            {
                "name": names("cohort", item["metadata"]["name"]),
                "parent": names("cohort", (item.get("spec") or {}).get("parentName")),
                "resourceGroups": _groups(item.get("spec") or {}, names),
                "fairSharing": "fairSharing" in (item.get("spec") or {}),
            }
            for item in cluster.objects("Cohort").values()
        ],
        "flavors": [
            {
                "name": names("flavor", item["metadata"]["name"]),
                "nodeLabels": len((item.get("spec") or {}).get("nodeLabels") or ()),
                "nodeTaints": len((item.get("spec") or {}).get("nodeTaints") or ()),
                "topology": bool((item.get("spec") or {}).get("topologyName")),
            }
            for item in cluster.objects("ResourceFlavor").values()
        ],
        "priorityClasses": [
            {"name": names("class", item["metadata"]["name"]), "value": item.get("value")}
            for item in cluster.objects("WorkloadPriorityClass").values()
        ],
    }


def _cluster_queue(item: Object, names: Names) -> dict[str, Any]:
    spec = item.get("spec") or {}
    checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or ()
    return {
        "name": names("cluster-queue", item["metadata"]["name"]),
        "cohort": names("cohort", spec.get("cohortName")),
        "queueingStrategy": spec.get("queueingStrategy"),
        "stopPolicy": spec.get("stopPolicy"),
        "resourceGroups": _groups(spec, names),
        "preemption": _words(spec.get("preemption"), "withinClusterQueue", "reclaimWithinCohort")
        | {
            "borrowWithinCohort": _words(
                (spec.get("preemption") or {}).get("borrowWithinCohort"), "policy", "maxPriorityThreshold"
            )
        },
        "flavorFungibility": _words(spec.get("flavorFungibility"), "whenCanBorrow", "whenCanPreempt", "preference"),
        "admissionChecks": len(checks),
        "fairSharing": "fairSharing" in spec,
        "admissionMode": (spec.get("admissionScope") or {}).get("admissionMode"),
        "namespaceSelector": "all" if spec.get("namespaceSelector") == {} else bool(spec.get("namespaceSelector")),
        "conditions": _conditions(item),
    }


def _groups(spec: Mapping[str, Any], names: Names) -> list[Any]:
    return [
        {
            "coveredResources": group.get("coveredResources"),
            "flavors": [
                {
                    "name": names("flavor", flavor.get("name")),
                    "resources": [
                        _words(quota, "name", "nominalQuota", "borrowingLimit", "lendingLimit")
                        for quota in flavor.get("resources") or ()
                    ],
                }
                for flavor in group.get("flavors") or ()
            ],
        }
        for group in spec.get("resourceGroups") or ()
    ]


def _workloads(at: Installation, names: Names) -> dict[str, Any]:
    roots = {item["metadata"]["uid"]: item for root in at.kinds for item in at.cluster.objects(root.kind).values()}
    everything = list(at.cluster.objects("Workload").values())
    everything.sort(
        key=lambda item: (not _finished(item), str(item["metadata"].get("creationTimestamp"))), reverse=True
    )
    kept = [_contained(partial(_workload, item, roots, names)) for item in everything[:WORKLOADS]]
    return {"all": len(everything), "kept": len(kept), "workloads": kept}


def _workload(item: Object, roots: Mapping[str, Object], names: Names) -> dict[str, Any]:
    metadata, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    owner = next((each for each in metadata.get("ownerReferences") or () if each.get("controller")), None)
    root = roots.get(owner["uid"]) if owner else item
    said = (root or item)["metadata"]
    wishes = read_wishes(said.get("annotations"), parse_instant(said["creationTimestamp"]))
    admission = status.get("admission") or {}
    return {
        "namespace": names("namespace", metadata["namespace"]),
        "name": names("workload", metadata["name"]),
        "owner": {"kind": owner["kind"], "name": names("job", owner["name"]), "seen": root is not None}
        if owner
        else None,
        "queue": names("local-queue", spec.get("queueName")),
        "created": metadata["creationTimestamp"],
        "active": spec.get("active"),
        "priority": spec.get("priority"),
        "class": names("class", (spec.get("priorityClassRef") or {}).get("name")),
        "maximumExecutionTimeSeconds": spec.get("maximumExecutionTimeSeconds"),
        "gates": {"workload": _gates(item), "root": _gates(root) if root else None},
        "wishes": {
            "deadline": wishes.deadline,
            "duration": wishes.duration,
            "earliestStart": wishes.earliest_start,
            "weight": wishes.weight,
            "hard": wishes.hard,
            "unreadable": [complaint.annotation for complaint in wishes.complaints],
            "bypass": f"{PREFIX}/bypass" in (said.get("annotations") or {}),
        },
        "podSets": [_pod_set(pods) for pods in spec.get("podSets") or ()],
        "admission": {
            "clusterQueue": names("cluster-queue", admission.get("clusterQueue")),
            "podSets": [
                {
                    "flavors": {key: names("flavor", flavor) for key, flavor in (each.get("flavors") or {}).items()},
                    "usage": each.get("resourceUsage"),
                    "count": each.get("count"),
                }
                for each in admission.get("podSetAssignments") or ()
            ],
        }
        if admission
        else None,
        "conditions": _conditions(item),
        "why": names.words(_why(item)),
        "requeueState": _words(status.get("requeueState"), "count", "requeueAt"),
    }


def _pod_set(pods: Mapping[str, Any]) -> dict[str, Any]:
    template = (pods.get("template") or {}).get("spec") or {}

    def requests(containers: Iterable[Mapping[str, Any]]) -> list[Any]:
        return [(each.get("resources") or {}).get("requests") for each in containers]

    return {
        "count": pods.get("count"),
        "minCount": pods.get("minCount"),
        "requests": requests(template.get("containers") or ()),
        "initRequests": requests(template.get("initContainers") or ()),
        "overhead": template.get("overhead"),
        "nodeSelector": len(template.get("nodeSelector") or ()),
        "affinity": bool(template.get("affinity")),
        "tolerations": len(template.get("tolerations") or ()),
    }


def _gates(item: Object) -> list[str]:
    """Our gates by name; of others' only that there are some."""
    return [gate if gate.startswith(f"{PREFIX}/") else "another's" for gate in gate_names(gates_of(item))]


def _conditions(item: Object) -> list[dict[str, Any]]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return [_words(condition, "type", "status", "reason", "lastTransitionTime") for condition in conditions]


def _why(item: Object) -> str:
    """Kueue's words on why it has no quota; gates of others stand in them, so not those about gates."""
    for condition in (item.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "QuotaReserved" and condition.get("reason") != "AdmissionGated":
            return str(condition.get("message") or "")
    return ""


def _finished(item: Object) -> bool:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Finished" and each.get("status") == "True" for each in conditions)


def _events(at: Installation, names: Names) -> list[dict[str, Any]]:
    query: dict[str, str | int] = {"fieldSelector": f"source={COMPONENT}", "limit": EVENTS_KEPT}
    kinds = {"Namespace": "namespace", "ClusterQueue": "cluster-queue", "Workload": "workload"}
    return [
        {
            "namespace": names("namespace", item["involvedObject"].get("namespace")),
            "kind": item["involvedObject"].get("kind"),
            "name": names(
                kinds.get(str(item["involvedObject"].get("kind")), "job"), item["involvedObject"].get("name")
            ),
            "type": item.get("type"),
            "reason": item.get("reason"),
            "message": names.words(str(item.get("message") or "")) if item.get("reason") != "Bypassed" else "",
            "count": item.get("count"),
            "first": item.get("firstTimestamp"),
            "last": item.get("lastTimestamp"),
        }
        for item in at.api.request("GET", EVENTS.path(), query=query)["items"]
    ]


def _policies(at: Installation) -> dict[str, Any]:
    found = {}
    for plural in (
        "mutatingadmissionpolicies",
        "mutatingadmissionpolicybindings",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
    ):
        items = at.api.request("GET", f"/apis/admissionregistration.k8s.io/v1/{plural}")["items"]
        found[plural] = {
            item["metadata"]["name"]: item["spec"] for item in items if item["metadata"]["name"].startswith("punctual-")
        }
    return found


def _metrics(at: Installation, names: Names) -> str:
    text = metrics_text(at)
    if text is None:
        raise ApiError(0, "the controller's metrics cannot be read from here")
    lines = [line for line in text.splitlines() if line.startswith(("punctual_", "process_"))]
    return "\n".join(
        _LABEL.sub(lambda found: f'{found[1]}="{_label(found[1], found[2], names)}"', line) for line in lines
    )


_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_WHAT = {"cluster_queue": "cluster-queue", "flavor": "flavor", "class": "class", "priority_class": "class"}
_PLAIN = {"le", "quantile", "engine", "reason", "outcome", "kind", "cause", "where", "version", "state", "resource"}


def _label(label: str, value: str, names: Names) -> str:
    if label in _PLAIN or not names.hide:
        return value
    return names(_WHAT.get(label, label), value)


def _words(item: Any, *keys: str) -> dict[str, Any]:
    """Some fields of a mapping, those that it has and that hold no further structure."""
    if not isinstance(item, Mapping):
        return {}
    return {key: item[key] for key in keys if isinstance(item.get(key), str | int | float | bool)}


def _contained(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """One object that cannot be read does not stop the others."""
    try:
        return make()
    except Exception as error:
        return {"missing": type(error).__name__}
