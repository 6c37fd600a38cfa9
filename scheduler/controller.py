"""A controller, put together: follow the cluster, wait to lead, run the loop, and end in an orderly way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path

from scheduler.apiserver import KUEUE_CONFIG, ApiError, ApiServer
from scheduler.canary_watch import HEEDED, IGNORED, CanaryWatch, held_in_spite_of_gates
from scheduler.cluster import GATE, Object, Reference
from scheduler.health import HealthServer
from scheduler.in_force import InForce, modes
from scheduler.kubernetes import KubernetesCluster
from scheduler.leader import LEASE, Elector, Timing
from scheduler.ledger_recorder import LedgerOptions, recorder
from scheduler.loop import Loop, always
from scheduler.metrics import Metrics
from scheduler.planner_client import TLS, BackgroundPlanner, PlannerClient, PlannerRefused, PlannerUnavailable
from scheduler.policy_keeper import PolicyKeeper
from scheduler.policy_source import CONFIG_MAP, NAMESPACE, ConfigMapFollower, FileSource
from scheduler.settings import Settings
from scheduler.shadow_watch import ShadowWatch
from scheduler.ungate import gate_names, gates_of
from scheduler.warmup import warm_up
from solver.api import planner_pb2 as pb

log = logging.getLogger(__name__)

HANGS_SECONDS = 60.0
"""A loop that has not come round for so long does not live any more."""


CANARY_SECONDS = 5.0
"""How long a start may wait for the first canary."""


class End(Enum):
    """Why a controller ended."""

    STOPPED = "stopped"
    """It was told to."""
    LOST = "lost the lease"
    """Another replica may lead by now."""


@dataclass(frozen=True)
class Options:
    """What a controller is told from outside.

    Attributes
    ----------
    http
        ``host:port`` for metrics and health checks.
    identity
        Who holds the Lease: see :class:`scheduler.leader.Elector`.
    lease_namespace
        Where the Lease is; None: no leader election, this is the only replica.
    namespace
        Of the controller: where the ConfigMaps with the policy are, and where it may make a canary.
    policy
        A file with the policy, in place of the ConfigMap.
    ledger
        Where to write what became of work; None: nowhere, and estimates learn only from what the cluster shows.
    settings
        What no policy says.
    """

    solver: str
    http: str
    identity: str
    lease_namespace: str | None
    tls: TLS | None = None
    namespace: str = NAMESPACE
    policy: Path | None = None
    ledger: LedgerOptions | None = None
    timing: Timing = field(default_factory=Timing)
    settings: Settings = field(default_factory=Settings)


class Controller:
    """One replica.

    Raises
    ------
    ValueError, OSError
        ``options.http`` is no address, or is in use; the ledger's address makes no sense.
    """

    def __init__(self, api: ApiServer, options: Options, version: str) -> None:
        self._api = api
        self._options = options
        self._metrics = Metrics()
        self._metrics.build(version=version, identity=options.identity)
        self._elector = None
        if options.lease_namespace is not None:
            self._elector = Elector(api, options.lease_namespace, LEASE, options.identity, options.timing)
        self._may_act = self._elector.may_act if self._elector else always
        self._metrics.leading(self._may_act)
        self._canary = CanaryWatch(
            api,
            options.namespace,
            lambda: self._cluster.objects("Workload"),
            self._heeded,
            needed=lambda: self._gates,
        )
        self._gates = True
        """Whether the policy in force gates any work; where all is only observed, it does not."""
        self._metrics.enforcing(lambda: self._gates and self._acts(), lambda: self._canary.heeded)
        self._cluster = KubernetesCluster(api, may_act=self._may_act, metrics=self._metrics)
        self._in_force = InForce(api, options.namespace, self._may_act)
        self._unknown: list[str] = []
        """ClusterQueues that the policy names and that are not there, as the log was told last."""
        self._config_map = None
        if options.policy is None:
            self._config_map = ConfigMapFollower(api, options.namespace, CONFIG_MAP, self._cluster.wake)
        self._recorder = recorder(options.ledger, self._metrics.registry)
        self._client = PlannerClient(options.solver, options.tls)
        self._stop = threading.Event()
        self._warm = False
        self._health = HealthServer(
            options.http, self._metrics, alive=self._alive, ready=self._ready, remark=self._remark
        )
        self.port = self._health.port
        """Where it serves metrics and health checks."""

    def stop(self) -> None:
        """End soon. Safe in a signal handler."""
        self._stop.set()
        self._cluster.wake()

    def run(self) -> End:
        """Work until stopped, or until the Lease is lost."""
        self._cluster.start()
        self._in_force.start()
        if self._config_map:
            self._config_map.start()
        try:
            warm_up()
            self._warm = True
            if self._wait_synced():
                self._say_what_is_there()
                if self._wait_to_lead():
                    self._lead()
        finally:
            # First the loop and what it has under way, then the lease: nothing may act on a lease that was given back.
            self._cluster.stop()
            self._in_force.stop()
            if self._config_map:
                self._config_map.stop()
            if self._elector:
                self._elector.stop()
            self._client.close()
            self._health.stop()
        return End.LOST if self._elector and self._elector.lost.is_set() else End.STOPPED

    def _wait_synced(self) -> bool:
        while not self._stop.is_set():
            self._metrics.beat()
            # The policy too: by the defaults a controller might do at its start what it must not.
            policy = self._config_map is None or self._config_map.wait_synced(0.5)
            if policy and self._in_force.wait_synced(0.5) and self._cluster.wait_synced(0.5):
                return True
        return False

    def _wait_to_lead(self) -> bool:
        if self._elector is None:
            return True
        self._elector.start()
        told = ""
        while not self._stop.is_set():
            self._metrics.beat()
            if self._elector.acquired.wait(0.5):
                return True
            if self._elector.holder != told:
                told = self._elector.holder
                log.info("standing by", extra={"leader": told})
        return False

    def _lead(self) -> None:
        planner = BackgroundPlanner(self._client.plans, self._cluster.wake, self._client.cut)
        policy = self._keeper()
        loop = Loop(
            self._cluster,
            planner,
            policy.settings,
            self._acts,
            self._metrics,
            partial(self._goes_by, policy),
            self._recorder,
        )
        self._recorder.start()
        self._goes_by(policy)
        ledger = self._options.ledger.dsn if self._options.ledger else None
        observing = ShadowWatch(self._cluster, lambda: policy.settings, self._metrics, ledger)
        observing.start()
        self._canary.start()
        self._canary.looked.wait(CANARY_SECONDS)  # a start cannot be taken back
        if self._elector:
            threading.Thread(target=self._stop_when_lost, args=(self._elector,), daemon=True).start()
        log.info("leading")
        try:
            loop.run(self._stop)
        finally:
            observing.stop()
            self._canary.stop()
            planner.close()
            self._recorder.stop()

    def _acts(self) -> bool:
        """Whether this replica may do anything. With gates ignored Kueue alone decides, and we claim nothing."""
        return self._may_act() and self._canary.heeded

    def _heeded(self, heeded: bool) -> None:
        """Tell it where who runs a queue looks: on every ClusterQueue that opted-in namespaces lead to."""
        label = self._options.settings.managed_label
        queues = self._cluster.objects("ClusterQueue")
        reached = {
            str((queue.get("spec") or {}).get("clusterQueue"))
            for key, queue in self._cluster.objects("LocalQueue").items()
            if _labels(self._cluster.objects("Namespace").get(key.partition("/")[0])).get(label) == "true"
        }
        for name in sorted(name for name in reached if name in queues):
            target = Reference("ClusterQueue", "", name, queues[name]["metadata"]["uid"])
            event = ("Normal", "GatesHeeded", HEEDED) if heeded else ("Warning", "GatesIgnored", IGNORED)
            self._cluster.event(target, *event)
        self._cluster.wake()

    def _keeper(self) -> PolicyKeeper:
        base, file = self._options.settings, self._options.policy
        if file is not None:
            return PolicyKeeper(FileSource(file), base, self._metrics)
        assert self._config_map is not None
        return PolicyKeeper(self._config_map, base, self._metrics, self._cluster.event, self._in_force.policy())

    def _goes_by(self, policy: PolicyKeeper) -> Settings:
        """The settings of the policy in force, told to whom it concerns."""
        settings = policy.look()
        unknown = sorted(settings.queues.keys() - self._cluster.objects("ClusterQueue").keys())
        if unknown != self._unknown:
            self._unknown = unknown
            if unknown:
                log.warning("the policy names ClusterQueues that are not there", extra={"cluster_queues": unknown})
        found = modes(settings, self._cluster)
        self._in_force.want(policy.text, found)
        self._gates = "enforce" in found.values()
        return settings

    def _stop_when_lost(self, elector: Elector) -> None:
        elector.lost.wait()
        self.stop()

    def _say_what_is_there(self) -> None:
        """One line at the start that answers most questions about an installation."""
        workloads = self._cluster.objects("Workload")
        facts = {
            "kubernetes": f"{self._version()} at {self._api.url}",
            "cluster_queues": len(self._cluster.objects("ClusterQueue")),
            "workloads": len(workloads),
            "gated": sum(GATE in gate_names(gates_of(workload)) for workload in workloads.values()),
            "kueue_configuration": "read"
            if self._cluster.objects("ConfigMap")
            else "no ConfigMap {}/{}, so resources count untransformed".format(*KUEUE_CONFIG),
            "planner": f"{self._planner_state()} at {self._options.solver}",
            "http": f"port {self.port}",
        }
        if missing := self._cluster.unsynced():
            facts["missing"] = "; ".join(missing.values())
        log.log(logging.WARNING if missing else logging.INFO, "found", extra=facts)
        if held_in_spite_of_gates(workloads):
            log.error("Kueue admits gated work: its feature gate AdmissionGatedBy must be on")

    def _version(self) -> str:
        try:
            return str(self._api.request("GET", "/version").get("gitVersion"))
        except ApiError as error:
            return f"unknown version ({error.message})"

    def _planner_state(self) -> str:
        """Whether the planner answers: by a plan for nothing."""
        try:
            self._client.plan(pb.PlanRequest(schema=1, now_ms=self._cluster.now()), timeout=2)
        except PlannerUnavailable:
            return "does not answer yet"
        except PlannerRefused as error:
            return f"refuses ({error})"
        return "answers"

    def _alive(self) -> str:
        age = self._metrics.heartbeat_age()
        hangs = self._warm and age > HANGS_SECONDS  # compiling kernels takes its time
        return f"the control loop has not come round for {age:.0f} s" if hangs else ""

    def _ready(self) -> str:
        """A replica that stands by is ready as well: it could take over."""
        if not self._warm:
            return "kernels are being compiled"
        unsynced = self._cluster.unsynced()
        return "; ".join(problem or f"{kind} has not been listed yet" for kind, problem in unsynced.items())

    def _remark(self) -> str:
        return "" if self._canary.heeded else IGNORED


def _labels(item: Object | None) -> Mapping[str, str]:
    return (item["metadata"].get("labels") or {}) if item else {}
