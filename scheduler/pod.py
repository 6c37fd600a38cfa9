"""What one pod asks for, as Kueue 0.17 counts it.

The Workload of a job has the pod template as the job has it. What the apiserver would add to a real pod (defaults of
LimitRanges, the overhead of its RuntimeClass), and what Kueue's configuration makes of the sum, is not written there:
Kueue adds it whenever it looks at a Workload that waits (``pkg/workload/resources.go``, ``totalRequestsFromPodSets`` in
``pkg/workload/workload.go``). What it has granted is in the status, all of it counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

from scheduler.quantity import in_units, parse

Amounts = tuple[tuple[str, Fraction], ...]
"""Exact amounts by resource, sorted."""

Requests = dict[str, Fraction]

_POD_LEVEL = re.compile(r"cpu|memory|hugepages-.*")


class Container(NamedTuple):
    """What one container asks for."""

    requests: Amounts
    limits: Amounts
    sidecar: bool
    """Whether it is an init container that goes on running."""


@dataclass(frozen=True, slots=True, eq=False)
class Pod:
    """What a pod template asks for; the same object for the same wishes."""

    containers: tuple[Container, ...]
    init_containers: tuple[Container, ...]
    requests: Amounts
    """Of the pod as a whole, in place of its containers'."""
    overhead: Amounts
    runtime_class: str


class Limits(NamedTuple):
    """What the LimitRanges of a namespace say together."""

    default_limits: Amounts = ()
    """Of a container that has none."""
    default_requests: Amounts = ()
    container_least: Amounts = ()
    container_most: Amounts = ()
    pod_least: Amounts = ()
    pod_most: Amounts = ()


class Transformation(NamedTuple):
    """What Kueue counts in place of a resource, or beside it."""

    resource: str
    replace: bool
    times: str
    """A resource by whose amount that of ``resource`` is multiplied first, if the pod asks for it; empty for none."""
    outputs: Amounts
    """For each unit of ``resource``."""


class Counting(NamedTuple):
    """What Kueue's configuration says about how requests are counted."""

    ignored: tuple[str, ...] = ()
    """Beginnings of the names of resources that do not count."""
    transformations: tuple[Transformation, ...] = ()
    """One for a resource at most."""


def read_pod(spec: Mapping[str, Any]) -> Pod:
    """Read a pod spec.

    Raises
    ------
    ValueError
        If a request or limit is not a quantity.
    """
    return _pod(
        tuple(_container(container) for container in spec.get("containers") or ()),
        tuple(_container(container) for container in spec.get("initContainers") or ()),
        tuple(
            (name, value)
            for name, value in read_amounts((spec.get("resources") or {}).get("requests"))
            if _POD_LEVEL.fullmatch(name)
        ),
        read_amounts(spec.get("overhead")),
        str(spec.get("runtimeClassName") or ""),
    )


def read_limit_range(item: Mapping[str, Any]) -> Limits:
    """Read a LimitRange. What the apiserver fills in when one is created is filled in here too."""
    found = []
    for limit in (item.get("spec") or {}).get("limits") or ():
        least, most = read_amounts(limit.get("min")), read_amounts(limit.get("max"))
        if limit.get("type") == "Container":
            default = _first(read_amounts(limit.get("default")), most)
            requests = _first(read_amounts(limit.get("defaultRequest")), default, least)
            found.append(Limits(default, requests, container_least=least, container_most=most))
        elif limit.get("type") == "Pod":
            found.append(Limits(pod_least=least, pod_most=most))
    return together(found)


def together(limits: Iterable[Limits]) -> Limits:
    """What several say: the narrowest range. Of several defaults for a resource Kueue takes one at random; here the
    largest counts, so that what is said to fit does."""
    found = list(limits)

    def most(field: int) -> Amounts:
        return _each(max, [limit[field] for limit in found])

    def least(field: int) -> Amounts:
        return _each(min, [limit[field] for limit in found])

    return Limits(
        most(0), most(1), container_least=most(2), container_most=least(3), pod_least=most(4), pod_most=least(5)
    )


def read_runtime_class(item: Mapping[str, Any]) -> Amounts:
    """Read a RuntimeClass: what each of its pods needs besides its containers."""
    return read_amounts((item.get("overhead") or {}).get("podFixed"))


def read_amounts(quantities: Mapping[str, Any] | None) -> Amounts:
    """Read quantities by resource.

    Raises
    ------
    ValueError
        If one is none.
    """
    return tuple(sorted((str(name), parse(quantity)) for name, quantity in (quantities or {}).items()))


def completed(pod: Pod, limits: Limits, overhead: Amounts = ()) -> Pod:
    """A pod with the defaults of its namespace and the ``overhead`` of its RuntimeClass, unless it says otherwise."""
    return _pod(
        tuple(_with_defaults(container, limits) for container in pod.containers),
        tuple(_with_defaults(container, limits) for container in pod.init_containers),
        pod.requests,
        pod.overhead or overhead,
        pod.runtime_class,
    )


def total(pod: Pod) -> Requests:
    """What a pod asks for: exact amounts by resource.

    The sum of its containers and sidecars (restartable init containers), or what one init container needs beside the
    sidecars started before it if that is more; pod-level requests in place of both; plus its overhead. Where a
    container has a limit but no request, the limit counts. Follows Kubernetes' ``PodRequests``.
    """
    found: Requests = {}
    for container in pod.containers:
        _add(found, _needs(container))
    sidecars: Requests = {}
    largest: Requests = {}
    for container in pod.init_containers:
        needs = dict(_needs(container))
        if container.sidecar:
            _add(found, needs.items())
            _add(sidecars, needs.items())
            needs = sidecars
        else:
            _add(needs, sidecars.items())
        _raise_to(largest, needs)
    _raise_to(found, largest)
    found.update(pod.requests)
    _add(found, pod.overhead)
    return found


def counted(requests: Requests, counting: Counting) -> Requests:
    """What Kueue's configuration makes of what a pod asks for.

    Whole units are transformed, fractions rounded up (half a cpu is one). Where an output is also asked for by itself,
    Kueue adds the two or keeps one of them, at random; here they add up.
    """
    kept = {name: value for name, value in requests.items() if not name.startswith(counting.ignored)}
    rules = {rule.resource: rule for rule in counting.transformations}
    found: Requests = {}
    for name, value in kept.items():
        rule = rules.get(name)
        if rule is None:
            _add(found, [(name, value)])
            continue
        if rule.times in kept:
            value *= -(-kept[rule.times] // 1)
        units = -(-value // 1)
        retained = set() if rule.replace else {name}
        _add(found, ((output, factor * units) for output, factor in rule.outputs if output not in retained))
        _add(found, ((name, value) for name in retained))
    return found


def refusal(pod: Pod, limits: Limits) -> str:
    """Why Kueue admits no such (completed) pod however much is free; empty if it may."""
    for container in (*pod.init_containers, *pod.containers):
        if names := _above(container.requests, container.limits):
            # Kueue, unlike the apiserver, puts a default request also on a container that has a limit.
            return f"a container requests more {names} than its limit"
        asked = [container.requests, container.limits]
        if names := _above(_each(max, asked), limits.container_most):
            return f"a container asks for more {names} than a LimitRange of the namespace allows"
        if names := _above(limits.container_least, _each(min, asked)):
            return f"a container asks for less {names} than a LimitRange of the namespace allows"
    asks = tuple(total(pod).items())
    if names := _above(asks, limits.pod_most):
        return f"a pod asks for more {names} than a LimitRange of the namespace allows"
    if names := _above(limits.pod_least, asks):
        return f"a pod asks for less {names} than a LimitRange of the namespace allows"
    return ""


@lru_cache(maxsize=65_536)
def _pod(
    containers: tuple[Container, ...],
    init_containers: tuple[Container, ...],
    requests: Amounts,
    overhead: Amounts,
    runtime_class: str,
) -> Pod:
    return Pod(containers, init_containers, requests, overhead, runtime_class)


def _container(container: Mapping[str, Any]) -> Container:
    resources = container.get("resources") or {}
    sidecar = container.get("restartPolicy") == "Always"
    return Container(read_amounts(resources.get("requests")), read_amounts(resources.get("limits")), sidecar)


def _with_defaults(container: Container, limits: Limits) -> Container:
    return Container(
        _first(container.requests, limits.default_requests),
        _first(container.limits, limits.default_limits),
        container.sidecar,
    )


def _needs(container: Container) -> Amounts:
    return _first(container.requests, container.limits)


def _first(*amounts: Amounts) -> Amounts:
    """The first amount there is of each resource."""
    if not any(amounts[1:]):
        return amounts[0]
    return tuple(sorted({name: value for each in reversed(amounts) for name, value in each}.items()))


def _each(choose: Any, amounts: Iterable[Amounts]) -> Amounts:
    """The largest or smallest amount of each resource."""
    found: Requests = {}
    for each in amounts:
        for name, value in each:
            found[name] = choose(found.get(name, value), value)
    return tuple(sorted(found.items()))


def _above(amounts: Amounts, others: Amounts) -> str:
    """Names of the resources in both of which there is more, in Kueue's units."""
    other = dict(others)
    return ", ".join(
        name for name, value in amounts if name in other and in_units(name, value) > in_units(name, other[name])
    )


def _add(total: Requests, more: Iterable[tuple[str, Fraction]]) -> None:
    for name, value in more:
        total[name] = total.get(name, Fraction(0)) + value


def _raise_to(total: Requests, least: Requests) -> None:
    for name, value in least.items():
        total[name] = max(total.get(name, Fraction(0)), value)
