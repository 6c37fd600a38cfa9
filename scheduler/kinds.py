"""The kinds of objects that Kueue queues: one table.

Watches, snapshot and release follow it; the tests hold RBAC, gates and guards of ``manifests/`` against it. From Kueue
0.17's ``pkg/controller/jobs``.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RootKind:
    """A finite kind that gets our gate.

    Attributes
    ----------
    kind
        As in the objects: ``JobSet``. No two of different groups have the same.
    version
        Group and version that Kueue follows, as in ``apiVersion``.
    plural
        As in paths: ``jobsets``.
    policy
        The part of the object that holds ``suspend`` and ``activeDeadlineSeconds``.
    builtin
        Whether every cluster has it; else it comes with a CRD, or not at all.
    """

    kind: str
    version: str
    plural: str
    policy: tuple[str, ...] = ("spec",)
    builtin: bool = False

    @property
    def group(self) -> str:
        """API group: ``jobset.x-k8s.io``."""
        return self.version.partition("/")[0]


_RUN_POLICY = ("spec", "runPolicy")

ROOTS = (
    RootKind("Job", "batch/v1", "jobs", builtin=True),
    RootKind("JobSet", "jobset.x-k8s.io/v1alpha2", "jobsets"),
    RootKind("TrainJob", "trainer.kubeflow.org/v1alpha1", "trainjobs"),
    RootKind("PyTorchJob", "kubeflow.org/v1", "pytorchjobs", _RUN_POLICY),
    RootKind("TFJob", "kubeflow.org/v1", "tfjobs", _RUN_POLICY),
    RootKind("XGBoostJob", "kubeflow.org/v1", "xgboostjobs", _RUN_POLICY),
    RootKind("PaddleJob", "kubeflow.org/v1", "paddlejobs", _RUN_POLICY),
    RootKind("JAXJob", "kubeflow.org/v1", "jaxjobs", _RUN_POLICY),
    RootKind("MPIJob", "kubeflow.org/v2beta1", "mpijobs", _RUN_POLICY),
    RootKind("RayJob", "ray.io/v1", "rayjobs"),
)
"""Every kind of work that waits for its planned start, but for ownerless Workloads. Another one is one more line."""

ROOT_KINDS = {root.kind: root for root in ROOTS}
"""The same by kind."""

OBSERVED = (
    "apps/Deployment",
    "apps/ReplicaSet",
    "apps/StatefulSet",
    "leaderworkerset.x-k8s.io/LeaderWorkerSet",
    "ray.io/RayCluster",
    "ray.io/RayService",
    "sparkoperator.k8s.io/SparkApplication",
    "workload.codeflare.dev/AppWrapper",
)
"""Group and kind of what Kueue queues and we only observe: services, what may wrap one, and what is alpha in Kueue.
Single pods and groups of pods belong here too, but are no parents.
"""


def root_kind(kind: str, version: str) -> RootKind | None:
    """The row of a kind; None for any other, also one of the same name in another group.

    Parameters
    ----------
    version
        Its ``apiVersion``; only the group counts.
    """
    root = ROOT_KINDS.get(kind)
    return root if root is not None and root.group == version.rpartition("/")[0] else None
