"""Kubernetes, its clock, Kueue: what is there, and which versions of it we know."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import yaml

from scheduler.apiserver import FORBIDDEN, NOT_FOUND, ApiError
from scheduler.check import Finding, Installation, State

KUBERNETES = (1, 36)
"""The version that the tests run."""
KUEUE = (0, 17)
"""The version that the tests run."""
KUEUE_TRIED = (0, 19)
"""The version on which the release protocol was tried by hand."""

SKEW_WARN, SKEW_FAIL = 2.0, 30.0
"""Seconds by which clocks may differ."""

_MANIFESTS = "https://github.com/kubernetes-sigs/kueue/releases/download/v0.17.0/manifests.yaml"
_SECOND = 1.0  # HTTP dates have whole ones


def kubernetes(at: Installation) -> Iterable[Finding]:
    """Its version, and whether it has what puts our gate on."""
    version = str(at.api.request("GET", "/version").get("gitVersion", ""))
    known = _minor(version)
    if known is None or known == KUBERNETES:
        tried = "what Punctual is tested on" if known else "an unknown version"
        yield Finding("kubernetes", State.OK if known else State.WARN, f"{version}: {tried}")
    else:
        yield Finding("kubernetes", State.WARN, f"{version} is untried: Punctual is tested on {_dotted(KUBERNETES)}")
    group = at.api.request("GET", "/apis/admissionregistration.k8s.io/v1")
    if not any(resource["name"] == "mutatingadmissionpolicies" for resource in group["resources"]):
        told = "no MutatingAdmissionPolicy v1 here: nothing puts the gate on new work, submitters must do it themselves"
        yield Finding("admission policies", State.FAIL, told, f"upgrade Kubernetes to {_dotted(KUBERNETES)}")


def clock(at: Installation) -> Iterable[Finding]:
    """By how much the clock of this machine differs from the apiserver's."""
    before = time.time()
    date = at.api.date()
    after = time.time()
    if not date:
        yield Finding("clock", State.WARN, "the apiserver's answers have no Date to compare this clock with")
        return
    yield skew("clock", "the clock of this machine", parsedate_to_datetime(date).timestamp(), before, after)


def skew(what: str, whose: str, date: float, before: float, after: float) -> Finding:
    """Judge a clock that showed ``before`` and ``after`` around an instant at which the apiserver's showed ``date``.

    Parameters
    ----------
    date
        The apiserver's time in whole seconds, rounded down.
    """
    # What is certain: the apiserver's clock was in [date, date + 1) at an instant when this one was in [before, after].
    ahead, behind = before - (date + _SECOND), date - after
    apart = max(ahead, behind, 0.0)
    fix = "timedatectl set-ntp true    # there"
    if apart <= SKEW_WARN:
        return Finding(what, State.OK, f"{whose} and the apiserver's agree to {SKEW_WARN:.0f} s")
    direction = "ahead of" if ahead > behind else "behind"
    told = f"{whose} is {apart:.0f} s {direction} the apiserver's: deadlines and starts are off by as much"
    return Finding(what, State.WARN if apart <= SKEW_FAIL else State.FAIL, told, fix)


def kueue(at: Installation) -> Iterable[Finding]:
    """Whether Kueue's API is there, which version runs, and what its configuration says."""
    try:
        group = at.api.request("GET", "/apis/kueue.x-k8s.io")
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        yield Finding("kueue", State.FAIL, "Kueue is not installed", f"kubectl apply --server-side -f {_MANIFESTS}")
        return
    if not any(version["version"] == "v1beta2" for version in group["versions"]):
        told = "Kueue's API v1beta2 is not served: this Kueue is older than 0.17"
        yield Finding("kueue", State.FAIL, told, f"kubectl apply --server-side -f {_MANIFESTS}")
        return
    deployment = kueue_deployment(at)
    yield _version(at, kueue_image_version(deployment))
    yield from _frameworks(at)


def _version(at: Installation, version: str) -> Finding:
    known = _minor(version)
    if known is None:
        where = f"Deployment {at.kueue_namespace}/{at.kueue_name}"
        told = f"its version cannot be seen ({where}); Punctual is tested on {_dotted(KUEUE)}"
        return Finding("kueue", State.WARN, told, "if it runs elsewhere: --kueue-namespace NAME --kueue-name NAME")
    if known < KUEUE:
        told = f"{version} is too old: it knows no admission gates"
        return Finding("kueue", State.FAIL, told, f"kubectl apply --server-side -f {_MANIFESTS}")
    if known == KUEUE:
        return Finding("kueue", State.OK, f"{version}: what Punctual is tested on")
    if known == KUEUE_TRIED:
        told = f"{version}: the release protocol was tried by hand on 0.19.2; the tests run {_dotted(KUEUE)}"
        return Finding("kueue", State.WARN, told)
    return Finding("kueue", State.WARN, f"{version} is untried: Punctual is tested on {_dotted(KUEUE)}")


def _frameworks(at: Installation) -> Iterable[Finding]:
    """Kinds that the cluster has and Kueue does not queue: it ignores their gates."""
    configuration = kueue_configuration(at)
    if configuration is None:
        where = f"ConfigMap {at.kueue_namespace}/kueue-manager-config"
        told = f"{where} cannot be read: whether Kueue queues all of {_kinds(at)} is unknown"
        yield Finding("kinds", State.WARN, told)
        return
    on = {str(name).lower() for name in (configuration.get("integrations") or {}).get("frameworks") or ["batch/job"]}
    off = [root.kind for root in at.kinds if f"{root.group}/{root.kind}".lower() not in on]
    if off:
        told = f"Kueue does not queue {', '.join(off)} (integrations.frameworks): they start at once, gate or not"
        edit = f"kubectl -n {at.kueue_namespace} edit configmap kueue-manager-config"
        restart = f"kubectl -n {at.kueue_namespace} rollout restart deployment {at.kueue_name}"
        yield Finding("kinds", State.WARN, told, f"{edit} && {restart}")
    else:
        yield Finding("kinds", State.OK, f"gated here, and queued by Kueue: {_kinds(at)}")


def _kinds(at: Installation) -> str:
    return ", ".join(root.kind for root in at.kinds)


def kueue_deployment(at: Installation) -> Mapping[str, Any]:
    """Kueue's Deployment; empty when it is not there, or not for us to see."""
    path = f"/apis/apps/v1/namespaces/{at.kueue_namespace}/deployments/{at.kueue_name}"
    try:
        return at.api.request("GET", path)
    except ApiError as error:
        if error.status in (NOT_FOUND, FORBIDDEN):
            return {}
        raise


def kueue_image_version(deployment: Mapping[str, Any]) -> str:
    """``v0.17.0`` of the image of Kueue's manager; empty if it cannot be told."""
    for container in _containers(deployment):
        if container.get("name") == "manager":
            return str(container.get("image", "")).partition("@")[0].rpartition(":")[2]
    return ""


def kueue_configuration(at: Installation) -> Mapping[str, Any] | None:
    """Kueue's configuration; None when it cannot be seen."""
    path = f"/api/v1/namespaces/{at.kueue_namespace}/configmaps/kueue-manager-config"
    try:
        text = at.api.request("GET", path)["data"]["controller_manager_config.yaml"]
        configuration = yaml.safe_load(text)
    except (ApiError, KeyError, TypeError, yaml.YAMLError):
        return None
    return configuration if isinstance(configuration, dict) else None


def kueue_feature_gates(deployment: Mapping[str, Any]) -> dict[str, bool]:
    """Feature gates of Kueue's command line."""
    _, arguments = _arguments(deployment)
    gates = [gate for argument in arguments for gate in _gates(argument)]
    return {name: value == "true" for name, _, value in (gate.partition("=") for gate in gates)}


def switch_on(at: Installation) -> str:
    """The command that switches Kueue's feature gate AdmissionGatedBy on."""
    found, arguments = _arguments(kueue_deployment(at))
    place, value = "-", "AdmissionGatedBy=true"
    operation = "add"
    for position, argument in enumerate(arguments):
        if gates := _gates(argument):
            others = [gate for gate in gates if not gate.startswith("AdmissionGatedBy=")]
            operation, place, value = "replace", str(position), ",".join([*others, value])
    path = f"/spec/template/spec/containers/{found}/args/{place}"
    patch = json.dumps([{"op": operation, "path": path, "value": f"--feature-gates={value}"}], separators=(",", ":"))
    return f"kubectl -n {at.kueue_namespace} patch deployment {at.kueue_name} --type=json -p '{patch}'"


def _gates(argument: str) -> list[str]:
    flag, _, value = argument.partition("=")
    return [gate for gate in value.split(",") if gate] if flag == "--feature-gates" else []


def _arguments(deployment: Mapping[str, Any]) -> tuple[int, list[str]]:
    """Which container is Kueue's manager, and its arguments."""
    for position, container in enumerate(_containers(deployment)):
        if container.get("name") == "manager":
            return position, [str(argument) for argument in container.get("args") or ()]
    return 0, []


def _containers(deployment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(deployment["spec"]["template"]["spec"]["containers"]) if deployment else []


def _minor(version: str) -> tuple[int, int] | None:
    found = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
