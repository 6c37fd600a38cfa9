"""Families of work: what a job shares with others that probably run about as long."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

from scheduler.cluster import PREFIX
from scheduler.quantity import amount

FAMILY_LABEL = f"{PREFIX}/family"
"""Label of a root object: the user's own word for work that takes about as long."""

_GENERATED = re.compile(
    r"""[-._]*(?:
      [-._] (?=[a-z]*[0-9]) [bcdfghjklmnpqrstvwxz2456789]{5}   # what Kubernetes appends to a generateName
    | [-._] [0-9]+                                             # numbers, parts of dates, a CronJob's minutes
    | [-._] [0-9]{8} t [0-9]{4,6} z?                           # 20261201t060000
    | [-._] (?=[a-f]*[0-9]) [0-9a-f]{6,}                       # hashes, parts of UUIDs
    | [-._] [0-9a-f]{8} (?:-[0-9a-f]{4}){3} -[0-9a-f]{12}      # UUIDs
    )$""",
    re.VERBOSE,
)
"""The end of a name that says which of many it is. A random part without a digit is not told from a word."""


@dataclass(frozen=True, slots=True)
class Family:
    """What is known of a Workload's kin; empty where there is nothing to know.

    Attributes
    ----------
    kind
        Of the root object: ``Job``; ``Workload`` for one without an owner.
    image
        Of the first container of the first pod set, without its tag: another version is the same program.
    shape
        Pods and requests of each, as in ``4x(cpu=1000,nvidia.com/gpu=8)``; cpu in millicores. Of a container that
        only has a limit, that.
    stem
        Name of the root object without what is generated at its end.
    label
        The user's own word, in the label ``punctual.kueue/family`` of the root object.
    """

    namespace: str = ""
    local_queue: str = ""
    cluster_queue: str = ""
    kind: str = ""
    image: str = ""
    shape: str = ""
    stem: str = ""
    label: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.label or self.stem}"


class Traits(NamedTuple):
    """What a Workload's spec says about its family."""

    image: str
    shape: str
    gpus: int
    """Of all its pods."""


FAMILY_FIELDS = tuple(field.name for field in fields(Family))


@lru_cache(maxsize=65_536)
def stem(name: str, generate_name: str = "") -> str:
    """A name without what is generated at its end: ``nightly-28929130`` and ``nightly-x7k2p`` are both ``nightly``.

    Parameters
    ----------
    generate_name
        What Kubernetes made the name from; empty if somebody chose it.
    """
    short = generate_name.rstrip("-._") if generate_name and name.startswith(generate_name) else name
    while (shorter := _GENERATED.sub("", short)) != short and shorter:
        short = shorter
    return short or name


@lru_cache(maxsize=65_536)
def repository(image: str) -> str:
    """An image without tag and digest: ``registry:5000/train:1.2`` is ``registry:5000/train``."""
    plain = image.partition("@")[0]
    name, colon, tag = plain.rpartition(":")
    return name if colon and "/" not in tag else plain


def is_gpu(resource: str) -> bool:
    """Whether a resource is GPUs: ``nvidia.com/gpu``, ``amd.com/gpu``, ``nvidia.com/mig-1g.5gb``."""
    _, slash, name = resource.partition("/")
    return bool(slash) and (name == "gpu" or name.startswith(("gpu.", "gpu-", "mig-")))


def read_traits(spec: Mapping[str, Any]) -> Traits:
    """Read a Workload's spec.

    Raises
    ------
    ValueError
        If a request is not a quantity.
    """
    shapes: list[str] = []
    gpus, image = 0, ""
    for pod_set in spec["podSets"]:
        containers = ((pod_set.get("template") or {}).get("spec") or {}).get("containers") or ()
        image = image or next((str(each["image"]) for each in containers if each.get("image")), "")
        count, total = int(pod_set["count"]), _requests(containers)
        gpus += count * sum(held for resource, held in total.items() if is_gpu(resource))
        shapes.append(f"{count}x({','.join(f'{resource}={total[resource]}' for resource in sorted(total))})")
    return Traits(repository(image), "+".join(shapes), gpus)


def _requests(containers: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for container in containers:
        resources = container.get("resources") or {}
        for resource, quantity in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[resource] = total.get(resource, 0) + amount(resource, quantity)
    return total
