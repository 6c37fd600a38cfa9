"""How many CPUs this process may use; in a container that is not how many the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path


def cpus(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """CPUs that this process is bound to, and no more than the quota of its cgroups pays for; at least one.

    Parameters
    ----------
    root, own
        Where cgroups are mounted, and the list of those that this process is in.
    """
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for place in _places(root, own) if (quota := _quota(place)) is not None]
    return max(1, min([bound, *(math.floor(quota) for quota in quotas)]))


def _places(root: Path, own: Path) -> list[Path]:
    """Folders of the cgroups above this process. Within a container its own one is usually mounted as the root."""
    places = [root, root / "cpu"]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return places
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "" or "cpu" in controllers.split(","):
            base = root if controllers == "" else root / "cpu"
            inside = base / path.lstrip("/")
            places += [place for place in (inside, *inside.parents) if place.is_relative_to(base)]
    return places


def _quota(place: Path) -> float | None:
    """CPUs that one cgroup allows: ``cpu.max`` of version 2, the CFS quota of version 1; nothing where unlimited."""
    try:
        limit, period = (place / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            limit = (place / "cpu.cfs_quota_us").read_text().strip()
            period = (place / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if limit in ("max", "-1"):
        return None
    return int(limit) / int(period)
