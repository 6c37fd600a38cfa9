"""Requests of pods as Kueue counts them."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.pod import (
    Counting,
    Requests,
    Transformation,
    completed,
    counted,
    read_amounts,
    read_limit_range,
    read_pod,
    read_runtime_class,
    refusal,
    together,
    total,
)


def asks(spec: dict[str, Any]) -> Requests:
    """What a pod of a pod spec asks for."""
    return total(read_pod(spec))


def container(restart: str | None = None, **requests: Any) -> dict[str, Any]:
    made: dict[str, Any] = {"resources": {"requests": requests}}
    return made | ({"restartPolicy": restart} if restart else {})


def test_containers_add_up_before_rounding() -> None:
    """Two containers of half a unit ask for one unit, not two."""
    spec = {"containers": [container(gpu="500m"), container(gpu="500m", cpu="1")]}
    assert asks(spec) == {"gpu": 1, "cpu": 1}


def test_init_container_that_needs_more() -> None:
    """An init container counts where it needs more than all containers together."""
    spec = {"containers": [container(cpu=1), container(cpu=1)], "initContainers": [container(cpu=3, memory=5)]}
    assert asks(spec) == {"cpu": 3, "memory": 5}


def test_sidecars() -> None:
    """Sidecars run beside the containers, and beside the init containers that start after them."""
    spec = {
        "containers": [container(cpu=2)],
        "initContainers": [container(cpu=4), container("Always", cpu=1), container(cpu=4), container("Always", cpu=2)],
    }
    assert asks(spec) == {"cpu": 5}  # max(2 + 1 + 2, 4, 1 + 4)


def test_limits_where_requests_are_missing() -> None:
    """A limit without a request is a request, as it is for GPUs that most people only limit."""
    spec = {"containers": [{"resources": {"limits": {"gpu": "2", "cpu": "4"}, "requests": {"cpu": "1"}}}]}
    assert asks(spec) == {"gpu": 2, "cpu": 1}


def test_pod_level_requests_and_overhead() -> None:
    """Requests of the pod as a whole replace those of its containers, overhead comes on top."""
    spec = {
        "containers": [container(cpu=1, gpu=1)],
        "resources": {"requests": {"cpu": "8", "gpu": "9"}},
        "overhead": {"cpu": "250m"},
    }
    assert asks(spec) == {"cpu": 8.25, "gpu": 1}


def limit_range(kind: str = "Container", **limits: Any) -> dict[str, Any]:
    return {"spec": {"limits": [{"type": kind, **limits}]}}


def test_defaults_of_the_namespace() -> None:
    """A container gets the default request of each resource that it requests none of, and a default limit as a request
    where there is no other; its own limit does not keep the default request away, as in Kueue."""
    limits = read_limit_range(limit_range(default={"cpu": 4, "gpu": 2}, defaultRequest={"cpu": 1}))
    spec = {
        "containers": [container(gpu=1), {"resources": {"limits": {"cpu": 8}}}],
        "initContainers": [container(gpu=9)],
    }
    assert total(completed(read_pod(spec), limits)) == {"cpu": 2, "gpu": 9}


def test_what_the_apiserver_fills_in() -> None:
    """A LimitRange from a file means what it would mean in a cluster: its maximum is a default limit, that a default
    request, and its minimum a default request where there is no other."""
    limits = read_limit_range(limit_range(max={"cpu": 8}, default={"gpu": 2}, min={"cpu": 1, "memory": 5}))
    assert dict(limits.default_limits) == {"cpu": 8, "gpu": 2}
    assert dict(limits.default_requests) == {"cpu": 8, "gpu": 2, "memory": 5}


def test_limit_ranges_together() -> None:
    """Of several LimitRanges the narrowest range counts, and the largest default, as Kueue takes any of them."""
    one = read_limit_range(limit_range(max={"cpu": 8}, min={"cpu": 2}, default={"cpu": 4}))
    two = read_limit_range(limit_range(max={"cpu": 6}, min={"cpu": 1}, default={"cpu": 3, "gpu": 1}))
    both = together([one, two])
    assert both == together([two, one])
    assert dict(both.container_most) == {"cpu": 6}
    assert dict(both.container_least) == {"cpu": 2}
    assert dict(both.default_requests) == {"cpu": 4, "gpu": 1}


def test_limits_of_pods_are_no_defaults() -> None:
    """What a LimitRange says about whole pods, or claims, gives no container anything."""
    for kind in ("Pod", "PersistentVolumeClaim"):
        limits = read_limit_range(limit_range(kind, max={"cpu": 8}, min={"cpu": 1}))
        assert total(completed(read_pod({"containers": [container(gpu=1)]}), limits)) == {"gpu": 1}


def test_overhead_of_the_runtime_class() -> None:
    """A pod needs what its RuntimeClass adds, unless it says itself what is added."""
    overhead = read_runtime_class({"handler": "kata", "overhead": {"podFixed": {"cpu": "250m"}}})
    spec = {"runtimeClassName": "kata", "containers": [container(cpu=1)]}
    assert read_pod(spec).runtime_class == "kata"
    assert total(completed(read_pod(spec), together([]), overhead)) == {"cpu": 1.25}
    assert total(completed(read_pod(spec | {"overhead": {"cpu": 1}}), together([]), overhead)) == {"cpu": 2}
    assert read_runtime_class({"handler": "plain"}) == ()


def pod(*containers: Any, init: Any = ()) -> dict[str, Any]:
    return {"containers": list(containers), "initContainers": list(init)}


def limited(**limits: Any) -> dict[str, Any]:
    return {"resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("limits", "spec", "why"),
    [
        ({}, pod(container(cpu=1)), ""),
        ({"max": {"cpu": 2}}, pod(container(cpu=3)), "a container requests more cpu than its limit"),
        ({"max": {"cpu": 2}}, pod(container(cpu=2), container(cpu=2)), ""),
        ({"max": {"gpu": 2}}, pod(limited(gpu=3)), "a container asks for more gpu than a LimitRange"),
        ({"min": {"cpu": 2}}, pod(container(cpu=1)), "a container asks for less cpu than a LimitRange"),
        ({"min": {"cpu": 2}}, pod(container(cpu=2), init=[container(cpu=1)]), "less cpu"),
        ({"kind": "Pod", "max": {"cpu": 3}}, pod(container(cpu=2), container(cpu=2)), "a pod asks for more cpu"),
        ({"kind": "Pod", "min": {"cpu": 3}}, pod(container(cpu=2)), "a pod asks for less cpu"),
        ({"kind": "Pod", "min": {"cpu": 3}}, pod(container(gpu=2)), ""),
        ({"default": {"cpu": 1}}, pod(container(cpu=3)), "requests more cpu than its limit"),
        ({"defaultRequest": {"cpu": 9}}, pod(limited(cpu=3)), "requests more cpu than its limit"),
    ],
)
def test_what_kueue_refuses(limits: dict[str, Any], spec: dict[str, Any], why: str) -> None:
    """A pod outside the ranges of its namespace, or with a request above its limit, is refused, and said why."""
    known = read_limit_range(limit_range(**limits))
    said = refusal(completed(read_pod(spec), known), known)
    assert why in said if why else not said


def rule(resource: str, replace: bool = False, times: str = "", **outputs: Any) -> Transformation:
    return Transformation(resource, replace, times, read_amounts(outputs))


@pytest.mark.parametrize(
    ("rules", "requests", "found"),
    [
        ((), {"gpu": 1, "cpu": "500m"}, {"gpu": 1, "cpu": 0.5}),
        ((rule("slice", True, units="1500m", memory=5),), {"slice": 2, "cpu": 1}, {"units": 3, "memory": 10, "cpu": 1}),
        ((rule("slice", units=2),), {"slice": 2}, {"slice": 2, "units": 4}),
        ((rule("slice", True),), {"slice": 2, "cpu": 1}, {"cpu": 1}),
        ((rule("cpu", True, credits=10),), {"cpu": "1500m"}, {"credits": 20}),
        ((rule("slice", times="cpu", units=1),), {"slice": 2, "cpu": "2500m"}, {"slice": 6, "units": 6, "cpu": 2.5}),
        ((rule("slice", times="cpu", units=1),), {"slice": 2}, {"slice": 2, "units": 2}),
        ((rule("slice", units=1), rule("part", units=2)), {"slice": 1, "part": 1, "units": 4},
         {"slice": 1, "part": 1, "units": 7}),
        ((rule("slice", True, part=1), rule("part", True, units=1)), {"slice": 1}, {"part": 1}),
        ((rule("gpu", True, gpu=2),), {"gpu": 3}, {"gpu": 6}),
        ((rule("gpu", gpu=2),), {"gpu": 3}, {"gpu": 3}),
    ],
)  # fmt: skip
def test_transformations(rules: tuple[Transformation, ...], requests: dict[str, Any], found: dict[str, Any]) -> None:
    """Each whole unit counts as what its rule says, besides or in place of itself; what comes out is not transformed
    again, and a multiplied amount stays multiplied."""
    assert counted(dict(read_amounts(requests)), Counting((), rules)) == found


def test_ignored_resources() -> None:
    """What is ignored is not transformed either, and multiplies nothing."""
    counting = Counting(("net.", "cpu"), (rule("net.io", credits=1), rule("gpu", times="cpu", credits=1)))
    requests = {"net.io": Fraction(1), "cpu": Fraction(5), "gpu": Fraction(2), "a.net.io": Fraction(1)}
    assert counted(requests, counting) == {"gpu": 2, "credits": 2, "a.net.io": 1}


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
    assert asks(spec)["cpu"] == max([sum(containers) + sidecars, *phases])
