"""How much of a whole GPU a resource is: MIG slices by their profile, time-sliced replicas only if somebody says it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple

from scheduler.family import is_gpu
from scheduler.ledger_entry import Entry

_PROFILE = re.compile(r"(?:[0-9]+c\.)?([0-9]+)g\.([0-9]+)gb\b")
_OF_FOUR = {(1, 6), (2, 12), (4, 24), (2, 48), (4, 96)}
"""Slices and GB of profiles of GPUs that are cut into four (A30, RTX PRO 6000); all others are cut into seven."""
_EITHER = {(1, 24)}
"""Profiles of both sorts."""


class Share(NamedTuple):
    """What one unit of a resource is."""

    gpus: Fraction
    """Of a whole GPU."""
    known: bool
    """Whether that is so, or only the most that it can be."""
    alone: bool = True
    """Whether a GPU (or slice) serves one pod at a time; else it cannot be told which one kept it busy."""


class Grant(NamedTuple):
    """GPUs that a Workload was granted."""

    flavor: str
    resource: str
    gpus: float
    """Whole GPUs; of slices, what they are together."""
    share: Share


def profile_share(profile: str) -> Share | None:
    """What a MIG profile (``1g.5gb``) is of a GPU; None if it is none."""
    found = _PROFILE.search(profile)
    if found is None:
        return None
    slices, memory = int(found[1]), int(found[2])
    whole = 4 if (slices, memory) in _OF_FOUR else 7
    return Share(Fraction(slices, whole), (slices, memory) not in _EITHER)


def share_of(resource: str, said: Mapping[str, Fraction]) -> Share:
    """What one unit of a resource (``nvidia.com/mig-1g.5gb``) is of a GPU.

    Parameters
    ----------
    said
        What users say about resources, by name: it counts.
    """
    name = resource.partition("/")[2]
    alone = name.startswith("mig-") or name == "gpu"
    if resource in said:
        return Share(said[resource], True, name.startswith("mig-") or (alone and said[resource] == 1))
    if name.startswith("mig-"):
        return profile_share(name) or Share(Fraction(1), False)
    return Share(Fraction(1), name == "gpu", alone)


def grants(entry: Entry, said: Mapping[str, Fraction]) -> Sequence[Grant]:
    """GPUs of a Workload by flavor and resource; what its pods gave back early counts too."""
    found = [
        Grant(flavor, resource, float(count * share.gpus), share)
        for flavor, resource, count in entry.usage
        if is_gpu(resource) and (share := share_of(resource, said)).gpus
    ]
    if found or not entry.gpus or entry.usage:
        return found
    return [Grant(entry.flavor, "", float(entry.gpus), Share(Fraction(1), True))]  # granted, but not seen how


def parse_shares(texts: Sequence[str]) -> dict[str, Fraction]:
    """What users say: ``nvidia.com/gpu.shared=1/4``.

    Raises
    ------
    ValueError
        With what is wrong.
    """
    said: dict[str, Fraction] = {}
    for text in texts:
        resource, equals, number = text.partition("=")
        if not equals or not is_gpu(resource.strip()):
            raise ValueError(f"{text!r}: write RESOURCE=FRACTION, as in nvidia.com/gpu.shared=1/4")
        try:
            share = Fraction(number.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{text!r}: {number!r} is no fraction; write one like 1/4 or 0.25") from None
        if not 0 < share <= 1:
            raise ValueError(f"{text!r}: a share of a GPU is more than 0 and at most 1")
        said[resource.strip()] = share
    return said
