"""What the control loop needs of a cluster, real or simulated.

Two things implement it: :class:`scheduler.kubernetes.KubernetesCluster` (watches and patches through the apiserver)
and :class:`simulator.cluster.SimulatedCluster` (in memory, on a virtual clock). Everything above this line — snapshot,
dispatch, loop — is the same code on both.

Objects are plain dictionaries, as the Kubernetes API has them in JSON. Nobody may change one that came from
:meth:`Cluster.objects`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from scheduler.kinds import ROOT_KINDS

Object = Mapping[str, Any]
"""A Kubernetes object in its JSON form."""

PREFIX = "punctual.kueue"
"""Prefix of every annotation, label and gate of ours."""

GATE = f"{PREFIX}/plan"
"""Name of our admission gate: while it is on an object, Kueue keeps the workload out of its queues."""

GATES_ANNOTATION = "kueue.x-k8s.io/admission-gated-by"
"""Kueue's annotation: a comma-separated list of gates (feature gate AdmissionGatedBy)."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Kueue's label on a job: the name of its LocalQueue."""

KINDS = (
    "Namespace",
    *ROOT_KINDS,
    "Workload",
    "LocalQueue",
    "ClusterQueue",
    "Cohort",
    "ResourceFlavor",
    "WorkloadPriorityClass",
    "LimitRange",
    "RuntimeClass",
    "ConfigMap",
    "Node",
)
"""Kinds that a cluster shows. Of the ConfigMaps only Kueue's own configuration."""


@dataclass(frozen=True)
class Reference:
    """One object of a cluster. ``uid`` pins it: an object of the same name made later is another one."""

    kind: str
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


class Release(Enum):
    """What became of an attempt to take our gate off."""

    DONE = "done"
    """The gate is off; Kueue takes over."""
    NOT_GATED = "not gated"
    """Our gate was not there (any more): nothing to do."""
    GONE = "gone"
    """The object does not exist any more, or is another of the same name."""
    REFUSED = "refused"
    """The cluster refused for good (RBAC, a policy, another admission plugin); the message says why."""
    TRY_AGAIN = "try again"
    """A conflict or an outage; safe to repeat."""


@dataclass(frozen=True)
class ReleaseResult:
    """Outcome of a release, with the cluster's own words when it did not work."""

    release: Release
    message: str = ""
    sent: float | None = None
    """When the (last) patch was sent, on :func:`time.monotonic`'s clock; None when none was."""
    seconds: float = 0.0
    """How long all of it took."""


class View(Protocol):
    """A Kueue cluster as something to look at: all that a snapshot needs."""

    def now(self) -> int:
        """The time, in milliseconds since the Unix epoch."""

    def objects(self, kind: str) -> Mapping[str, Object]:
        """All objects of a kind by ``namespace/name`` (``name`` alone for cluster-scoped kinds): a consistent copy.

        An object is never changed: its next version is another one.
        """


class Cluster(View, Protocol):
    """A view of a Kueue cluster that follows its changes, and the few things we may do to it."""

    def wait(self, seconds: float) -> bool:
        """Block until something changed since the last call, or ``seconds`` passed. True when something changed."""

    def release(self, target: Reference) -> ReleaseResult:
        """Take *our* gate out of the object's annotation, if it is still the same object, and nobody else's."""

    def event(self, target: Reference, kind: str, reason: str, message: str) -> None:
        """Tell the object's owner something (a Kubernetes Event; ``kind`` is Normal or Warning). Never raises."""

    def annotate(self, target: Reference, annotations: Mapping[str, str | None]) -> None:
        """Set (None: remove) annotations on an object. Best effort: never raises."""
