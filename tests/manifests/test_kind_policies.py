"""Gates, guards and rights cover every kind of the table, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scheduler.annotations import VERDICT, VERDICT_BY, VERDICT_REASON
from scheduler.apiserver import RESOURCES
from scheduler.kinds import OBSERVED, ROOTS, RootKind

MANIFESTS = Path(__file__).parents[2] / "manifests"
ALL = {(root.group, root.version.partition("/")[2], root.plural) for root in ROOTS}
WORKLOADS = ("kueue.x-k8s.io", "v1beta2", "workloads")
JOB_STATUS = ("batch", "v1", "jobs/status")


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / file).read_text()))


def policies(file: str) -> list[dict[str, Any]]:
    return [each["spec"] for each in documents(file) if each["kind"].endswith("AdmissionPolicy")]


def covered(*specs: dict[str, Any]) -> set[tuple[str, str, str]]:
    """Group, version and resource of all that the policies are about."""
    return {
        (group, version, resource)
        for spec in specs
        for rule in spec["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for version in rule["apiVersions"]
        for resource in rule["resources"]
    }


def test_every_kind_is_gated() -> None:
    """The gates are put on all kinds of the table at their creation, and on ownerless Workloads: on nothing else."""
    gates = policies("gates/jobs.yaml") + policies("gates/workloads.yaml")
    assert covered(*gates) == ALL | {WORKLOADS}
    assert {tuple(rule["operations"]) for gate in gates for rule in gate["matchConstraints"]["resourceRules"]} == {
        ("CREATE",)
    }


@pytest.mark.parametrize(
    ("guard", "also"),
    [("ungate", {WORKLOADS, JOB_STATUS}), ("controller", {WORKLOADS}), ("waiting-jobs", set()), ("late-queue", set())],
)
def test_every_kind_is_guarded(guard: str, also: set[tuple[str, str, str]]) -> None:
    """Each guard is about all kinds of the table: a new kind without its guards does not pass."""
    specs = policies(f"guards/{guard}.yaml")
    assert covered(*specs) == ALL | also
    assert all(rule["operations"] == ["UPDATE"] for s in specs for rule in s["matchConstraints"]["resourceRules"])
    assert all(spec["failurePolicy"] == "Fail" for spec in specs)


def test_passing_by_is_guarded_for_every_kind() -> None:
    """Whether somebody may pass by the plan is asked when anything that we gate is created; the record of it stays."""
    (spec,) = policies("guards/bypass.yaml")
    assert covered(spec) == ALL | {WORKLOADS}
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in spec["matchConstraints"]["resourceRules"])
    assert spec["failurePolicy"] == "Fail"


def test_verdicts_are_guarded_for_every_kind() -> None:
    """Who may judge is asked wherever the ledger reads verdicts, in all namespaces, and of who writes a status."""
    (spec,) = policies("guards/verdict.yaml")
    assert covered(spec) == ALL | {WORKLOADS, JOB_STATUS}
    assert all(rule["operations"] == ["CREATE", "UPDATE"] for rule in spec["matchConstraints"]["resourceRules"])
    assert "namespaceSelector" not in spec["matchConstraints"]
    assert spec["failurePolicy"] == "Fail"
    told = str(spec)
    assert all(key in told for key in (VERDICT, VERDICT_BY, VERDICT_REASON))


@pytest.mark.parametrize("root", ROOTS, ids=lambda root: root.kind)
def test_suspend_is_looked_for_where_it_is(root: RootKind) -> None:
    """The guard that keeps waiting work suspended reads the field where this kind has it."""
    (spec,) = (s for s in policies("guards/waiting-jobs.yaml") if root.plural in {r for _, _, r in covered(s)})
    (suspended,) = (v["expression"] for v in spec["variables"] if v["name"] == "suspended")
    assert suspended.endswith(f"object.{'.'.join(root.policy)}.suspend")


def test_only_kueue_ungates_owned_workloads() -> None:
    """The guard of owned Workloads is about Workloads."""
    assert covered(*policies("guards/owned-workloads.yaml")) == {WORKLOADS}


def test_children_of_every_kind_are_left_alone() -> None:
    """A child of anything that Kueue queues gets no gate: the policy names all kinds of the table as parents."""
    for file, name in (("gates/jobs.yaml", "no-child-of-a-kueue-job"), ("guards/children.yaml", "queued-child")):
        (spec,) = policies(file)
        (condition,) = (c["expression"] for c in spec["matchConditions"] if c["name"] == name)
        parents = set(re.findall(r"'([\w.-]+/[A-Z]\w+)'", condition))
        assert parents == {f"{root.group}/{root.kind}" for root in ROOTS} | set(OBSERVED)


def test_children_of_every_kind_are_guarded() -> None:
    """A user makes no child of any kind that would pass by the plan, and no Workload with an owner."""
    (spec,) = policies("guards/children.yaml")
    assert covered(spec) == ALL | {WORKLOADS}
    assert all(rule["operations"] == ["CREATE"] for rule in spec["matchConstraints"]["resourceRules"])
    assert spec["failurePolicy"] == "Fail"


def cluster_role() -> dict[str, Any]:
    (role,) = (each for each in documents("controller/rbac.yaml") if each["kind"] == "ClusterRole")
    return role


def test_the_controller_may_follow_what_it_plans_from() -> None:
    """RBAC: it may list and watch every kind that it reads; of ConfigMaps only the one of Kueue, by its name."""
    readable = {
        (group, resource)
        for rule in cluster_role()["rules"]
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    everywhere = {resource for resource in RESOURCES.values() if not resource.only}
    assert {(resource.version.rpartition("/")[0], resource.plural) for resource in everywhere} == readable
    (single,) = set(RESOURCES.values()) - everywhere
    assert single.only
    roles = [each for each in documents("controller/rbac.yaml") if each["kind"] == "Role"]
    (role,) = (each for each in roles if each["metadata"]["namespace"] == single.only[0])
    (rule,) = role["rules"]
    assert (rule["resources"], rule["resourceNames"]) == ([single.plural], [single.only[1]])
    assert {"list", "watch"} <= set(rule["verbs"])


@pytest.mark.parametrize(
    ("file", "verbs"),
    [
        ("controller/rbac.yaml", {"get", "list", "watch", "patch", "ungate"}),
        ("sweeper/rbac.yaml", {"get", "list", "patch", "ungate"}),
    ],
)
def test_controller_and_sweeper_may_release_every_kind(file: str, verbs: set[str]) -> None:
    """RBAC: each releases all kinds of the table and Workloads, and may ungate nothing else."""
    (role,) = (each for each in documents(file) if each["kind"] == "ClusterRole")
    released = {
        (group, resource)
        for rule in role["rules"]
        if set(rule["verbs"]) == verbs
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    assert released == {(group, resource) for group, _, resource in ALL | {WORKLOADS}}
    assert all("ungate" not in rule["verbs"] or "patch" in rule["verbs"] for rule in role["rules"])
