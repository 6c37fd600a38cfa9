"""Pod sets as they are read; flavors ruled out as Kueue rules them out."""

from typing import Any

import pytest

from scheduler.pod import total
from scheduler.podset import Flavor, Taint, excluded, read_flavor, read_pod_set


def test_pod_set() -> None:
    """Counts less what is reclaimable, and partial admission only where there is any."""

    def raw(cpu: str) -> dict[str, Any]:
        containers = [{"resources": {"requests": {"cpu": cpu}}}]
        return {"name": "main", "count": 4, "minCount": 2, "template": {"spec": {"containers": containers}}}

    pods = read_pod_set(raw("1500m"), reclaimable=1)
    assert (pods.count, pods.min_count, total(pods.pod)) == (3, 2, {"cpu": 1.5})
    assert read_pod_set(raw("1500m"), reclaimable=2).min_count == 0
    with pytest.raises(ValueError, match="is not a quantity"):
        read_pod_set(raw("much"))


def test_equal_pod_sets_are_one() -> None:
    """Two pod sets that ask for the same are equal, and hash alike: each shape is told to the planner once."""
    raw = {"count": 1, "template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}}
    again = {"count": 1, "template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "1000m"}}}]}}}
    assert len({read_pod_set(raw), read_pod_set(again)}) == 1


A = Flavor((("kind", "a"),), (), ())
B = Flavor((("kind", "b"), ("zone", "1")), (), ())
PLAIN = Flavor((), (), ())


def pods(**spec: Any) -> Any:
    return read_pod_set({"count": 1, "template": {"spec": spec}})


def affinity(*terms: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": [{"matchExpressions": list(term)} for term in terms]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def wants(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("spec", "out"),
    [
        ({}, ""),
        ({"nodeSelector": {"kind": "a"}}, "bp"),
        ({"nodeSelector": {"rack": "7"}}, ""),
        ({"nodeSelector": {"kind": "c"}}, "abp"),
        ({"nodeSelector": {"zone": "1"}}, "ap"),
        ({"affinity": affinity([wants("kind", "In", "a", "b")])}, "p"),
        ({"affinity": affinity([wants("kind", "NotIn", "a")])}, "a"),
        ({"affinity": affinity([wants("zone", "Exists")])}, "ap"),
        ({"affinity": affinity([wants("zone", "DoesNotExist")])}, "b"),
        ({"affinity": affinity([wants("zone", "Gt", "0")])}, "ap"),
        ({"affinity": affinity([wants("zone", "Lt", "0")])}, "abp"),
        ({"affinity": affinity([wants("kind", "In", "a")], [wants("zone", "In", "1")])}, "p"),
        ({"affinity": affinity([wants("kind", "In", "c")], [wants("rack", "In", "7")])}, ""),
    ],
)
def test_node_labels(spec: dict[str, Any], out: str) -> None:
    """Selector and affinity rule a flavor out by its node labels; labels that no flavor has do not count."""
    flavors = {"a": A, "b": B, "p": PLAIN}
    assert excluded(pods(**spec), flavors) == set(out)


@pytest.mark.parametrize(
    ("tolerations", "tolerated"),
    [
        ([], False),
        ([{"key": "spot", "operator": "Exists"}], True),
        ([{"operator": "Exists"}], True),
        ([{"key": "spot", "value": "yes"}], True),
        ([{"key": "spot", "operator": "Equal", "value": "no"}], False),
        ([{"key": "spot", "operator": "Exists", "effect": "NoExecute"}], False),
        ([{"key": "other", "operator": "Exists"}], False),
    ],
)
def test_taints(tolerations: list[dict[str, str]], tolerated: bool) -> None:
    """A flavor whose taint is not tolerated is ruled out; PreferNoSchedule never does."""
    raw = {"spec": {"nodeTaints": [{"key": "spot", "value": "yes", "effect": "NoSchedule"}]}}
    soft = Flavor((), (Taint("soft", "", "PreferNoSchedule"),), ())
    out = excluded(pods(tolerations=tolerations), {"spot": read_flavor(raw), "soft": soft})
    assert out == (set() if tolerated else {"spot"})
    raw["spec"]["tolerations"] = [{"key": "spot", "operator": "Exists"}]  # type: ignore[list-item]
    assert excluded(pods(), {"spot": read_flavor(raw)}) == set()


def test_numeric_tolerations() -> None:
    """Gt and Lt compare a taint's value with the toleration's."""
    flavor = Flavor((), (Taint("sla", "95", "NoExecute"),), ())
    for operator, value, out in (("Gt", "90", False), ("Gt", "95", True), ("Lt", "99", False), ("Lt", "x", True)):
        toleration = {"key": "sla", "operator": operator, "value": value}
        assert excluded(pods(tolerations=[toleration]), {"f": flavor}) == ({"f"} if out else set())


def test_missing_flavor() -> None:
    """A flavor that does not exist is ruled out."""
    assert excluded(pods(), {"a": A, "gone": None}) == {"gone"}
