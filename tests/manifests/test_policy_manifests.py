"""The policy's ConfigMaps have the same names wherever they are named, and nothing that is applied overwrites them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.in_force import IN_FORCE
from scheduler.policy_source import CONFIG_MAP, KEY, NAMESPACE

MANIFESTS = Path(__file__).parents[2] / "manifests"


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / file).read_text()))


@pytest.mark.parametrize("file", ["gates/jobs.yaml", "gates/workloads.yaml", "guards/late-queue.yaml"])
def test_the_mode_is_read_where_the_controller_writes_it(file: str) -> None:
    """Each policy that depends on the mode has that ConfigMap as its parameter; without it, it does nothing."""
    policy, binding = documents(file)
    assert policy["spec"]["paramKind"] == {"apiVersion": "v1", "kind": "ConfigMap"}
    assert binding["spec"]["paramRef"] == {
        "name": IN_FORCE,
        "namespace": NAMESPACE,
        "parameterNotFoundAction": "Allow",
    }
    assert "params.?data[?'mode']" in str(policy)
    assert "+ '_' +" in str(policy)  # as scheduler.in_force.modes writes it


def test_applying_anew_changes_no_mode() -> None:
    """The ConfigMap that is applied has no content: what the controller has written there stays."""
    (item,) = documents("controller/in-force.yaml")
    assert item["metadata"] == {"name": IN_FORCE, "namespace": NAMESPACE}
    assert item.keys() == {"apiVersion", "kind", "metadata"}


def test_the_controller_may_follow_and_write_them() -> None:
    """RBAC: it follows both by name, and may patch the one that is its own."""
    roles = [each for each in documents("controller/rbac.yaml") if each["kind"] == "Role"]
    (role,) = (each for each in roles if each["metadata"]["namespace"] == NAMESPACE)
    may: dict[str, set[str]] = {}
    for rule in role["rules"]:
        if rule["resources"] == ["configmaps"]:
            for name in rule["resourceNames"]:
                may.setdefault(name, set()).update(rule["verbs"])
    assert may == {CONFIG_MAP: {"get", "list", "watch"}, IN_FORCE: {"get", "list", "watch", "patch"}}


def test_your_policy_is_not_part_of_the_whole() -> None:
    """``manifests/policy`` makes the ConfigMap that the controller follows; an upgrade of the rest leaves it alone."""
    (kustomization,) = documents("policy/kustomization.yaml")
    (generator,) = kustomization["configMapGenerator"]
    assert (kustomization["namespace"], generator["name"], generator["files"]) == (NAMESPACE, CONFIG_MAP, [KEY])
    assert kustomization["generatorOptions"]["disableNameSuffixHash"] is True
    (whole,) = documents("kustomization.yaml")
    assert "policy" not in whole["resources"]
