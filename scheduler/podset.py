"""The pod sets of a workload, and on which flavors' nodes their pods may run.

Flavors are ruled out as Kueue 0.17's flavor assigner rules them out (``checkFlavorForPodSets``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.annotations import MAX_DURATION, parse_duration
from scheduler.cluster import PREFIX
from scheduler.pod import Pod, read_pod
from scheduler.quantity import int32

NODES = f"{PREFIX}/nodes"
"""Annotation of a ResourceFlavor: ``fixed`` says that its nodes are all that there will be."""

START_LEAD = f"{PREFIX}/start-lead"
"""Annotation of a ResourceFlavor: how long after its admission work begins, as a duration."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]*")


class Toleration(NamedTuple):
    """A toleration; what is unset is empty."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """Whether it tolerates a taint, by the rules of Kubernetes."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        if self.operator in ("Lt", "Gt") and _INTEGER.fullmatch(self.value) and _INTEGER.fullmatch(taint.value):
            less = int(taint.value) < int(self.value)
            return less if self.operator == "Lt" else int(taint.value) > int(self.value)
        return self.operator == "Exists"


class Taint(NamedTuple):
    """A taint of a flavor's nodes."""

    key: str
    value: str
    effect: str


class Expression(NamedTuple):
    """A requirement on one node label."""

    key: str
    operator: str
    values: tuple[str, ...]

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it, by the rules of node affinity."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                numbers = (value or "", *self.values)
                if len(numbers) != 2 or not all(_INTEGER.fullmatch(number) for number in numbers):
                    return False
                return int(numbers[0]) > int(numbers[1]) if self.operator == "Gt" else int(numbers[0]) < int(numbers[1])
        return False


@dataclass(frozen=True, slots=True)
class PodSet:
    """One pod set of a workload; hashable, so that equal ones are recognized."""

    count: int
    min_count: int
    """0: no partial admission."""
    pod: Pod
    node_selector: tuple[tuple[str, str], ...]
    affinity: tuple[tuple[Expression, ...], ...]
    """Terms of the required node affinity: one of them must hold. Empty: any node."""
    tolerations: tuple[Toleration, ...]


class Flavor(NamedTuple):
    """What a ResourceFlavor says about its nodes."""

    labels: tuple[tuple[str, str], ...]
    taints: tuple[Taint, ...]
    tolerations: tuple[Toleration, ...]
    topology: str = ""
    """Name of the Topology by which Kueue places pods on its nodes; empty without."""
    fixed_nodes: bool = False
    """Whether no other nodes are to be expected than those that are there."""
    lead: int | None = None
    """How long after its admission work begins, in milliseconds; None where nobody says."""
    wrong: str = ""
    """What is wrong with its annotations; they do not count then."""
    uid: str = ""


def read_pod_set(pod_set: Mapping[str, Any], reclaimable: int = 0) -> PodSet:
    """Read a Workload's pod set; ``reclaimable`` of its pods need no quota any more.

    Raises
    ------
    ValueError
        If a request is not a quantity, or a label of the node selector no text.
    """
    spec = (pod_set.get("template") or {}).get("spec") or {}
    count = max(0, int32(pod_set["count"]) - reclaimable)
    min_count = int32(pod_set.get("minCount") or 0)
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return PodSet(
        count=count,
        min_count=min_count if min_count < count else 0,
        pod=read_pod(spec),
        node_selector=_labels(spec.get("nodeSelector"), "nodeSelector"),
        affinity=tuple(
            tuple(
                Expression(str(e["key"]), str(e["operator"]), tuple(str(v) for v in e.get("values") or ()))
                for e in term.get("matchExpressions") or ()
            )
            for term in required.get("nodeSelectorTerms") or ()
        ),
        tolerations=_tolerations(spec.get("tolerations")),
    )


def read_flavor(flavor: Mapping[str, Any]) -> Flavor:
    """Read a ResourceFlavor.

    Raises
    ------
    ValueError
        If a node label is no text.
    """
    spec = flavor.get("spec") or {}
    metadata = flavor.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    lead, wrong = None, ""
    if text := annotations.get(START_LEAD):
        try:
            lead = min(MAX_DURATION, max(0, parse_duration(str(text))))
        except ValueError as error:
            wrong = f"annotation {START_LEAD} does not count: {error}"
    return Flavor(
        labels=_labels(spec.get("nodeLabels"), "nodeLabels"),
        taints=tuple(
            Taint(str(taint["key"]), str(taint.get("value") or ""), str(taint.get("effect") or ""))
            for taint in spec.get("nodeTaints") or ()
        ),
        tolerations=_tolerations(spec.get("tolerations")),
        topology=str(spec.get("topologyName") or ""),
        fixed_nodes=annotations.get(NODES) == "fixed",
        lead=lead,
        wrong=wrong,
        uid=str(metadata.get("uid") or ""),
    )


def excluded(pod_set: PodSet, flavors: Mapping[str, Flavor | None]) -> frozenset[str]:
    """Flavors of one resource group that the pods cannot use. A flavor that does not exist (None) is one of them.

    Only labels that some flavor of the group has can rule a flavor out: any other label is no business of flavors.
    """
    keys = {key for flavor in flavors.values() if flavor for key, _ in flavor.labels}
    selector = [(key, value) for key, value in pod_set.node_selector if key in keys]
    terms = [[expression for expression in term if expression.key in keys] for term in pod_set.affinity]
    return frozenset(
        name
        for name, flavor in flavors.items()
        if flavor is None
        or not _selected(dict(flavor.labels), selector, terms)
        or not _tolerated(flavor.taints, (*pod_set.tolerations, *flavor.tolerations))
    )


def _selected(
    labels: Mapping[str, str], selector: Iterable[tuple[str, str]], terms: Iterable[Iterable[Expression]]
) -> bool:
    if any(labels.get(key) != value for key, value in selector):
        return False
    # A term without a relevant requirement holds everywhere.
    terms = list(terms)
    return not terms or any(all(expression.matches(labels) for expression in term) for term in terms)


def _tolerated(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> bool:
    tolerations = list(tolerations)
    return all(
        any(toleration.tolerates(taint) for toleration in tolerations)
        for taint in taints
        if taint.effect in ("NoSchedule", "NoExecute")
    )


def _labels(labels: Mapping[str, Any] | None, where: str) -> tuple[tuple[str, str], ...]:
    found = tuple(sorted((labels or {}).items()))
    for key, value in found:
        if not isinstance(value, str):
            raise ValueError(f"{where}.{key} is {value!r}, not text")
    return found


def _tolerations(tolerations: Iterable[Mapping[str, Any]] | None) -> tuple[Toleration, ...]:
    return tuple(
        Toleration(*(str(toleration.get(field) or "") for field in ("key", "operator", "value", "effect")))
        for toleration in tolerations or ()
    )
