"""Requests of pods as Kueue counts them; flavors ruled out as Kueue rules them out."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.podset import Flavor, Taint, excluded, pod_requests, read_flavor, read_pod_set


def container(restart: str | None = None, **requests: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"resources": {"requests": requests}}
    return made | ({"restartPolicy": restart} if restart else {})


def test_containers_add_up_before_rounding() -> None:
    """Two containers of half a unit ask for one unit, not two."""
    spec = {"containers": [container(gpu="500m"), container(gpu="500m", cpu="1")]}
    assert pod_requests(spec) == {"gpu": 1, "cpu": 1}


def test_init_container_that_needs_more() -> None:
    """An init container counts where it needs more than all containers together."""
    spec = {"containers": [container(cpu=1), container(cpu=1)], "initContainers": [container(cpu=3, memory=5)]}
    assert pod_requests(spec) == {"cpu": 3, "memory": 5}


def test_sidecars() -> None:
    """Sidecars run beside the containers, and beside the init containers that start after them."""
    spec = {
        "containers": [container(cpu=2)],
        "initContainers": [container(cpu=4), container("Always", cpu=1), container(cpu=4), container("Always", cpu=2)],
    }
    assert pod_requests(spec) == {"cpu": 5}  # max(2 + 1 + 2, 4, 1 + 4)


def test_limits_where_requests_are_missing() -> None:
    """A limit without a request is a request, as it is for GPUs that most people only limit."""
    spec = {"containers": [{"resources": {"limits": {"gpu": "2", "cpu": "4"}, "requests": {"cpu": "1"}}}]}
    assert pod_requests(spec) == {"gpu": 2, "cpu": 1}


def test_pod_level_requests_and_overhead() -> None:
    """Requests of the pod as a whole replace those of its containers, overhead comes on top."""
    spec = {
        "containers": [container(cpu=1, gpu=1)],
        "resources": {"requests": {"cpu": "8", "gpu": "9"}},
        "overhead": {"cpu": "250m"},
    }
    assert pod_requests(spec) == {"cpu": 8.25, "gpu": 1}


def test_pod_set() -> None:
    """Counts less what is reclaimable, amounts in Kueue's units, and partial admission only where there is any."""
    raw = {"name": "main", "count": 4, "minCount": 2, "template": {"spec": {"containers": [container(cpu="1500m")]}}}
    pods = read_pod_set(raw, reclaimable=1)
    assert (pods.count, pods.min_count, pods.requests) == (3, 2, (("cpu", 1500),))
    assert read_pod_set(raw, reclaimable=2).min_count == 0
    with pytest.raises(ValueError, match="is not a quantity"):
        read_pod_set({"count": 1, "template": {"spec": {"containers": [container(cpu="much")]}}})


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


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=5),
)
def test_requests_cover_every_phase(containers: list[int], init: list[tuple[bool, int]]) -> None:
    """What is asked for is exactly the most that is ever used at once: each init phase, and the running phase."""
    spec = {
        "containers": [container(cpu=value) for value in containers],
        "initContainers": [container("Always" if sidecar else None, cpu=value) for sidecar, value in init],
    }
    phases, sidecars = [], 0
    for sidecar, value in init:
        phases.append(sidecars + value)
        sidecars += value if sidecar else 0
    assert pod_requests(spec)["cpu"] == max([sum(containers) + sidecars, *phases])
