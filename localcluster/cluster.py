"""A local cluster: up in seconds, down without a trace.

Its folder holds everything (certificates, data, logs, ``cluster.json`` with ports and pids), so that any later process
can find, stop and start its parts.
"""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from localcluster import build, components, kueue, pki
from localcluster.components import ORDER, Layout
from localcluster.errors import LocalClusterError
from localcluster.nodes import fake_nodes
from localcluster.processes import Process, Usage, start, stop
from localcluster.rest import ApiError, Identity, Rest
from localcluster.versions import FRAMEWORKS

DEFAULT_FEATURE_GATES = {
    "AdmissionGatedBy": True,
    "VisibilityOnDemand": False,  # an aggregated API server of its own, which nothing here asks
}
"""Kueue's feature gates. AdmissionGatedBy is what Punctual stands on: alpha and off by default in Kueue 0.17."""

NODES, GPUS_PER_NODE = 8, 8

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Status:
    """One process of a cluster."""

    name: str
    process: Process
    running: bool
    usage: Usage


class LocalCluster:
    """A Kubernetes and Kueue in one folder.

    Parameters
    ----------
    folder
        Its folder. Made by :meth:`up`, removed by :meth:`down`.
    feature_gates
        Kueue's, added to DEFAULT_FEATURE_GATES; counts when it is started by :meth:`up`.
    frameworks
        What Kueue is to queue besides Jobs (names of versions.FRAMEWORKS, and what those need); counts as above.
    configuration
        Added to Kueue's configuration (``{"resources": {"transformations": […]}}``); counts as above.
    progress
        Called with a line of text at each step.
    cache
        Where the binaries are (see :mod:`localcluster.build`).
    """

    def __init__(
        self,
        folder: Path,
        *,
        feature_gates: dict[str, bool] | None = None,
        frameworks: Sequence[str] = (),
        configuration: Mapping[str, object] | None = None,
        progress: Progress = lambda line: None,
        cache: Path | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self._gates = {**DEFAULT_FEATURE_GATES, **(feature_gates or {})}
        self._frameworks = tuple(frameworks)
        self._configuration = dict(configuration or {})
        self._progress = progress
        self._cache = cache or build.default_cache()
        self._api: Rest | None = None

    # What is there

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.folder / "admin.kubeconfig"

    @property
    def exists(self) -> bool:
        """Whether there is a cluster in the folder, running or not."""
        return self._state_file.exists()

    def status(self) -> list[Status]:
        """All processes that were started, in start order."""
        processes = self._processes()
        return [
            Status(name, processes[name], processes[name].running(), processes[name].usage())
            for name in ORDER
            if name in processes
        ]

    def ports(self) -> dict[str, int]:
        """Port of each endpoint on 127.0.0.1 (names of components.PORTS)."""
        return self._layout().ports

    def log(self, name: str) -> Path:
        """Log file of a process."""
        return self._layout().log(name)

    # Calling it

    @property
    def api(self) -> Rest:
        """``api(method, path, body)``: a REST call as administrator."""
        if self._api is None:
            layout = self._layout()
            admin = Identity(certificate=layout.pki / "admin.crt", key=layout.pki / "admin.key")
            self._api = Rest(layout.ports["kube-apiserver"], layout.pki / "ca.crt", admin)
        return self._api

    def api_as(self, token: str) -> Rest:
        """The same for the holder of a token."""
        layout = self._layout()
        return Rest(layout.ports["kube-apiserver"], layout.pki / "ca.crt", Identity(token=token))

    def token(self, namespace: str, service_account: str, seconds: int = 3600) -> str:
        """A real token of a ServiceAccount."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.api("POST", path, {**request, "spec": {"expirationSeconds": seconds}})
        return str(answer["status"]["token"])

    def kubeconfig_as(self, token: str, target: Path) -> Path:
        """Write a kubeconfig for the holder of a token."""
        components.write_kubeconfig(self._layout(), "token", target, token=token)
        return target

    def kubectl(self, *words: str | Path, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """Run kubectl as administrator (or with another kubeconfig); what it printed.

        Raises
        ------
        LocalClusterError
            It failed: with its error output.
        """
        layout = self._layout()
        environment = {**layout.environment(), "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        command = [build.binary("kubectl", self._cache), *words]
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr or done.stdout).strip()
            raise LocalClusterError(f"kubectl {' '.join(str(word) for word in words)}: {said}")
        return done.stdout

    # Up and down

    def up(self) -> None:
        """Start a new cluster, ready to use when this returns.

        Raises
        ------
        LocalClusterError
            One runs here already, something is missing on this machine, or a part did not start. Nothing is left
            running; the logs stay in the folder.
        """
        if any(process.running() for process in self._processes().values()):
            raise LocalClusterError(f"a cluster is running in {self.folder} already; `punctual cluster down` stops it")
        if absent := [c.name for c in build.missing(self._cache)]:
            raise LocalClusterError(f"not built yet: {', '.join(absent)}; `punctual cluster build` does it")
        self._check_frameworks()
        pki.check_openssl()
        self._clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        ports = components.free_ports()
        layout = Layout(self.folder, self._cache, ports, self._gates, self._frameworks, self._configuration)
        self._save(layout, {})
        try:
            self._bring_up(layout)
        except BaseException:
            self._stop_all()
            raise

    def down(self) -> None:
        """Stop everything and remove the folder. Nothing happens when there is no cluster."""
        self._stop_all()
        self._clear()

    def start(self, name: str, *, feature_gates: Mapping[str, bool] | None = None) -> None:
        """Start a process that was stopped or killed; returns when it is ready.

        Parameters
        ----------
        feature_gates
            Kueue's, from now on; those that are not named stay as they were.
        """
        layout, process = self._layout(), self._processes().get(self._known(name))
        if process is not None and process.running():
            raise LocalClusterError(f"{name} is running already (pid {process.pid})")
        layout = replace(layout, feature_gates={**layout.feature_gates, **(feature_gates or {})})
        self._launch(layout, name)
        self._wait_ready(layout, name)

    def stop(self, name: str) -> None:
        """Stop a process in the orderly way (SIGTERM); returns when it is gone. Nothing happens if it does not run."""
        self._end(name, signal.SIGTERM)

    def kill(self, name: str) -> None:
        """End a process without warning (SIGKILL)."""
        self._end(name, signal.SIGKILL)

    def stop_with_me(self) -> None:
        """Take the cluster down when this process ends, however it ends; for tests.

        A small process waits for the other end of a pipe to close. (A parent-death signal would follow the *thread*
        that started a process.)
        """
        command = [sys.executable, "-m", "localcluster.watchdog", str(self.folder)]
        root = Path(__file__).resolve().parent.parent
        self._watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, cwd=root, start_new_session=True, stdout=subprocess.DEVNULL
        )

    # How

    def _bring_up(self, layout: Layout) -> None:
        components.write_files(layout)
        self._progress("certificates made")
        for name in ("etcd", "kube-apiserver"):
            self._launch(layout, name)
        self._wait_ready(layout, "kube-apiserver")
        self._progress("kube-apiserver is ready")
        api, manifests = self.api, build.kueue_manifests(self._cache)
        self._launch(layout, "kube-scheduler")
        api("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", _KWOK_IS_ADMIN)
        self._launch(layout, "kwok")
        kueue.apply_rbac(api, manifests)
        kueue.publish_configuration(api, layout)
        resources = kueue.apply_crds(api, manifests)
        resources |= kueue.apply_framework_crds(api, build.framework_crds(layout.frameworks, self._cache))
        for node in fake_nodes(NODES, GPUS_PER_NODE):
            api("POST", "/api/v1/nodes", node)
        self._wait("the CRDs", lambda: kueue.served(api, resources), timeout=240)
        # Not before: its garbage collector looks for new kinds every 30 s only, and Workloads have owners.
        self._launch(layout, "kube-controller-manager")
        kueue.apply_webhooks(api, manifests, layout)
        self._launch(layout, "kueue")
        self._wait_ready(layout, "kueue")
        self._progress("Kueue is ready; trying it")
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self._wait("the default ServiceAccount", lambda: bool(api("GET", account)))
        reason = "AdmissionGated" if layout.feature_gates.get("AdmissionGatedBy") else "QuotaReserved"
        with kueue.probe(api):
            self._wait("Kueue's controllers", lambda: kueue.functional(api, reason))

    def _check_frameworks(self) -> None:
        known = [each.name for each in FRAMEWORKS]
        for name in self._frameworks:
            if name not in known:
                raise LocalClusterError(f"no framework is called {name}: there are {', '.join(known)}")
        if absent := [f for f in self._frameworks if f not in build.frameworks(self._cache)]:
            raise LocalClusterError(f"no CRDs of {', '.join(absent)} here; `punctual cluster build` fetches them")

    def _launch(self, layout: Layout, name: str) -> None:
        command, environment = components.command(layout, name), layout.environment()
        process = start(command, cwd=layout.folder, log=layout.log(name), environment=environment)
        self._save(layout, {**self._processes(), name: process})

    def _wait_ready(self, layout: Layout, name: str) -> None:
        needed = {"etcd", "kube-apiserver", name}
        if name == "kube-apiserver":
            self._wait(name, lambda: self.api("GET", "/readyz") == "ok", needed)
        elif name == "kueue":
            port = layout.ports["kueue-health"]
            self._wait(name, lambda: _healthy(port) and kueue.webhook_answers(self.api), needed)

    def _wait(self, what: str, ready: Callable[[], bool], needed: Iterable[str] = ORDER, timeout: float = 60) -> None:
        """Wait until ``ready`` is true and does not raise; fail at once when a process has died that it needs."""
        end, last = time.monotonic() + timeout, ""
        while True:
            try:
                if ready():
                    return
            except (ApiError, OSError, http.client.HTTPException) as error:
                last = f": {error}"
            for status in self.status():
                if status.name in needed and not status.running:
                    raise LocalClusterError(f"{status.name} has ended while it was needed:\n{self._tail(status.name)}")
            if time.monotonic() > end:
                raise LocalClusterError(f"{what}: not ready after {timeout:.0f} s{last}; logs: {self.folder / 'logs'}")
            time.sleep(0.05)

    def _tail(self, name: str, lines: int = 6) -> str:
        log = self._layout().log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) + f"\n(all of it: {log})"

    def _end(self, name: str, sort: signal.Signals) -> None:
        process = self._processes().get(self._known(name))
        if process is not None:
            stop([process], sort=sort)

    def _stop_all(self) -> None:
        # The data are thrown away: nobody needs an orderly end, which would take seconds.
        stop(self._processes().values(), sort=signal.SIGKILL)

    def _clear(self) -> None:
        """Remove the folder if it is ours; never one with something else in it."""
        self._api = None
        if not self.folder.exists() or not any(self.folder.iterdir()):
            return
        if not self.exists:
            raise LocalClusterError(f"{self.folder} holds something that is no local cluster: choose another folder")
        shutil.rmtree(self.folder)

    def _known(self, name: str) -> str:
        if name not in ORDER:
            raise LocalClusterError(f"no process is called {name}: there are {', '.join(ORDER)}")
        return name

    # What is written down

    @property
    def _state_file(self) -> Path:
        return self.folder / "cluster.json"

    def _state(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._state_file.read_text()))
        except FileNotFoundError:
            return {}

    def _layout(self) -> Layout:
        state = self._state()
        if not state:
            raise LocalClusterError(f"there is no local cluster in {self.folder}; `punctual cluster up` starts one")
        return Layout(
            self.folder, self._cache, state["ports"], state["feature_gates"], tuple(state.get("frameworks", ()))
        )

    def _processes(self) -> dict[str, Process]:
        return {name: Process(**fields) for name, fields in self._state().get("processes", {}).items()}

    def _save(self, layout: Layout, processes: dict[str, Process]) -> None:
        state = {
            "ports": layout.ports,
            "feature_gates": layout.feature_gates,
            "frameworks": layout.frameworks,
            "processes": {name: asdict(process) for name, process in processes.items()},
        }
        written = self._state_file.with_suffix(".new")
        written.write_text(json.dumps(state, indent=1))
        written.replace(self._state_file)


_KWOK_IS_ADMIN = {
    "metadata": {"name": "localcluster-kwok"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "localcluster:kwok"}],
}


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    finally:
        connection.close()
