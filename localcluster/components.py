"""The processes of a local cluster: their ports, configuration files and command lines.

Flags that look odd are explained where they stand; the rest is what the component needs to run alone on 127.0.0.1.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from localcluster import build, pki

ORDER = ("etcd", "kube-apiserver", "kube-scheduler", "kwok", "kube-controller-manager", "kueue")
"""Names of the processes, in the order in which they start."""

PORTS = (
    "etcd",
    "etcd-peer",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kwok",
    "kueue-webhook",
    "kueue-metrics",
    "kueue-health",
)

CONTROLLERS = (
    "job-controller",
    "cronjob-controller",
    "deployment-controller",
    "replicaset-controller",
    "endpointslice-controller",
    "namespace-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "ttl-after-finished-controller",
    "clusterrole-aggregation-controller",
    "node-lifecycle-controller",
    "validatingadmissionpolicy-status-controller",
)
"""Those of kube-controller-manager that a cluster of Jobs, Deployments and Kueue needs; all would cost memory."""

# The defaults (20 to 50 requests a second) would be the bottleneck of a burst of jobs.
_QPS, _BURST = 500, 1000


@dataclass(frozen=True)
class Layout:
    """Where one cluster is and how it is set up.

    Parameters
    ----------
    folder
        Its folder: certificates, kubeconfigs, logs, etcd's data.
    cache
        Where the binaries are.
    ports
        Name of PORTS -> port on 127.0.0.1.
    feature_gates
        Kueue's, by name.
    frameworks
        What Kueue queues besides ``batch/job``: names of versions.FRAMEWORKS.
    configuration
        Added to Kueue's configuration when that is written.
    """

    folder: Path
    cache: Path
    ports: dict[str, int]
    feature_gates: dict[str, bool]
    frameworks: tuple[str, ...] = ()
    configuration: Mapping[str, object] = field(default_factory=dict)

    @property
    def pki(self) -> Path:
        """Folder of the certificates."""
        return self.folder / "pki"

    @property
    def kueue_configuration(self) -> Path:
        """Kueue's configuration file."""
        return self.folder / "kueue.config"

    def kubeconfig(self, user: str) -> Path:
        """Kubeconfig of a client of pki.CLIENTS."""
        return self.folder / f"{user}.kubeconfig"

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self.folder / "logs" / f"{name}.log"

    def environment(self) -> dict[str, str]:
        """Environment of every process: nothing of the caller's, whose proxies and kubeconfigs would only disturb."""
        return {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.folder)}


def free_ports() -> dict[str, int]:
    """A free port for every name of PORTS. Another process could take one before it is used; that start then fails."""
    sockets = [socket.socket() for _ in PORTS]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = dict(zip(PORTS, (each.getsockname()[1] for each in sockets), strict=True))
    for each in sockets:
        each.close()
    return ports


def write_files(layout: Layout) -> None:
    """Certificates, kubeconfigs and configuration files; everything but data and logs."""
    pki.make_pki(layout.pki)
    for user in pki.CLIENTS:
        write_kubeconfig(layout, user, layout.kubeconfig(user))
    for target in ("kueue-webhook", build.METRICS_CERTIFICATES):
        (layout.folder / target).mkdir()
        for end in (".crt", ".key"):
            shutil.copy(layout.pki / f"kueue-server{end}", layout.folder / target / f"tls{end}")
    layout.log("x").parent.mkdir()
    _write_json(layout.kueue_configuration, _kueue_configuration(layout))
    _write_json(layout.folder / "kube-scheduler.config", _scheduler_configuration(layout))
    (layout.folder / "kwok.yaml").write_text(_kwok_configuration(layout))


def write_kubeconfig(layout: Layout, user: str, target: Path, *, token: str = "") -> None:
    """A kubeconfig for a client certificate of pki.CLIENTS, or for a token under any name."""
    if token:
        credentials = {"token": token}
    else:
        credentials = {
            "client-certificate-data": _base64(layout.pki / f"{user}.crt"),
            "client-key-data": _base64(layout.pki / f"{user}.key"),
        }
    server = {
        "server": f"https://127.0.0.1:{layout.ports['kube-apiserver']}",
        "certificate-authority-data": _base64(layout.pki / "ca.crt"),
    }
    name = "localcluster"
    target.touch(mode=0o600)
    _write_json(
        target,
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": name,
            "clusters": [{"name": name, "cluster": server}],
            "users": [{"name": user, "user": credentials}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": user}}],
        },
    )


def command(layout: Layout, name: str) -> list[str]:
    """The command line of a process."""
    flags = {
        "etcd": _etcd,
        "kube-apiserver": _apiserver,
        "kube-controller-manager": _controller_manager,
        "kube-scheduler": _scheduler,
        "kwok": _kwok,
        "kueue": _kueue,
    }[name](layout)
    return [str(build.binary(name, layout.cache)), *(f"--{flag}={value}" for flag, value in flags.items())]


def _etcd(layout: Layout) -> dict[str, object]:
    client = f"http://127.0.0.1:{layout.ports['etcd']}"
    peer = f"http://127.0.0.1:{layout.ports['etcd-peer']}"
    return {
        "name": "localcluster",
        "data-dir": layout.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"localcluster={peer}",
        "unsafe-no-fsync": "true",  # a cluster to play with: faster, and kind to the disk
        "log-level": "warn",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "5m",
    }


def _apiserver(layout: Layout) -> dict[str, object]:
    keys = layout.pki
    return {
        "etcd-servers": f"http://127.0.0.1:{layout.ports['etcd']}",
        "bind-address": "127.0.0.1",
        "secure-port": layout.ports["kube-apiserver"],
        # The endpoints of the Service `kubernetes` may not be loopback addresses: let nobody maintain them.
        "advertise-address": "127.0.0.1",
        "endpoint-reconciler-type": "none",
        "tls-cert-file": keys / "apiserver.crt",
        "tls-private-key-file": keys / "apiserver.key",
        "client-ca-file": keys / "ca.crt",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.96.0.0/16",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": keys / "sa.pub",
        "service-account-signing-key-file": keys / "sa.key",
        "max-requests-inflight": 800,
        "max-mutating-requests-inflight": 400,
        "event-ttl": "1h",
    }


def _controller_manager(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig("kube-controller-manager"),
        "bind-address": "127.0.0.1",
        "secure-port": layout.ports["kube-controller-manager"],
        "cert-dir": layout.folder / "kube-controller-manager",
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": layout.pki / "sa.key",
        "root-ca-file": layout.pki / "ca.crt",
        "kube-api-qps": _QPS,
        "kube-api-burst": _BURST,
        "concurrent-job-syncs": 10,
        "controllers": ",".join(CONTROLLERS),
    }


def _scheduler(layout: Layout) -> dict[str, object]:
    return {
        "config": layout.folder / "kube-scheduler.config",
        "bind-address": "127.0.0.1",
        "secure-port": layout.ports["kube-scheduler"],
        "cert-dir": layout.folder / "kube-scheduler",
    }


def _kwok(layout: Layout) -> dict[str, object]:
    return {
        "kubeconfig": layout.kubeconfig("kwok"),
        "config": layout.folder / "kwok.yaml",
        "server-address": f"127.0.0.1:{layout.ports['kwok']}",
    }


def _kueue(layout: Layout) -> dict[str, object]:
    gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in layout.feature_gates.items())
    return {
        "config": layout.kueue_configuration,
        "kubeconfig": layout.kubeconfig("kueue"),
        "feature-gates": gates,
        "zap-log-level": 2,
    }


def _kueue_configuration(layout: Layout) -> dict[str, object]:
    kinds = ("Job.batch", "Workload.kueue.x-k8s.io")
    single = ("LocalQueue.kueue.x-k8s.io", "ClusterQueue.kueue.x-k8s.io", "ResourceFlavor.kueue.x-k8s.io")
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{layout.ports['kueue-health']}"},
        "metrics": {"bindAddress": f"127.0.0.1:{layout.ports['kueue-metrics']}", "enableClusterQueueResources": True},
        "webhook": {
            "host": "127.0.0.1",
            "port": layout.ports["kueue-webhook"],
            "certDir": str(layout.folder / "kueue-webhook"),
        },
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "clientConnection": {"qps": _QPS, "burst": _BURST},
        "manageJobsWithoutQueueName": False,
        # As in the configuration that Kueue ships.
        "controller": {"groupKindConcurrency": {**dict.fromkeys(kinds, 5), **dict.fromkeys(single, 1)}},
        "integrations": {"frameworks": ["batch/job", *layout.frameworks]},
        **layout.configuration,
    }


def _scheduler_configuration(layout: Layout) -> dict[str, object]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {
            "kubeconfig": str(layout.kubeconfig("kube-scheduler")),
            "qps": _QPS,
            "burst": _BURST,
        },
    }


def _kwok_configuration(layout: Layout) -> str:
    """kwok takes its Stages from its configuration file, as further documents."""
    options = {
        "manageAllNodes": True,
        "nodeLeaseDurationSeconds": 40,
        "nodeLeaseParallelism": 4,
        "podPlayStageParallelism": 8,
        "nodePlayStageParallelism": 4,
        "cidr": "10.0.0.0/16",
        "nodePort": layout.ports["kwok"],
    }
    configuration = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    shipped = build.kwok_stages(layout.cache)
    stages = (
        shipped / "fast" / "node-initialize.yaml",
        shipped / "heartbeat-with-lease" / "node-heartbeat-with-lease.yaml",
        Path(__file__).with_name("kwok-pod-stages.yaml"),
    )
    return "\n---\n".join([yaml.safe_dump(configuration), *(stage.read_text() for stage in stages)])


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode()


def _write_json(target: Path, content: object) -> None:
    target.write_text(json.dumps(content, indent=1))
