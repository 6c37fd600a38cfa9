"""The ConfigMap in which the controller writes what it goes by, for whoever is not the controller.

The admission policies read there where new work gets no gate, ``punctual policy show`` which policy is in force, and a
controller that starts beside a policy that cannot be read the last one that could.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.apiserver import FORBIDDEN, MERGE_PATCH, ApiError, ApiServer
from scheduler.cluster import View
from scheduler.policy import BadPolicy, Policy, read_policy
from scheduler.policy_source import CONFIG_MAP, KEY, ConfigMapFollower, read_config_map
from scheduler.settings import Settings

log = logging.getLogger(__name__)

IN_FORCE = "punctual-in-force"
"""Name of the ConfigMap."""

RETRY_SECONDS = 1.0
SLOWEST_RETRY_SECONDS = 60.0


def modes(settings: Settings, cluster: View) -> dict[str, str]:
    """In which mode new work is admitted: ``mode`` for all, ``<namespace>_<LocalQueue>`` where it is another.

    The admission policies cannot follow a LocalQueue to its ClusterQueue, so it is done for them. (No name in
    Kubernetes has an underscore.)
    """
    found = {"mode": _mode(settings.observed)}
    for key, queue in cluster.objects("LocalQueue").items():
        observed = settings.queue(str((queue.get("spec") or {}).get("clusterQueue"))).observed
        if observed != settings.observed:
            found[key.replace("/", "_")] = _mode(observed)
    return found


def _mode(observed: bool) -> str:
    return "observe" if observed else "enforce"


@dataclass(frozen=True)
class Found:
    """The policy of a cluster, as anybody can find it out.

    Attributes
    ----------
    where
        In words.
    remarks
        What is odd about it.
    """

    policy: Policy
    where: str
    remarks: tuple[str, ...] = ()


def find_policy(api: ApiServer, namespace: str) -> Found:
    """What a cluster's controller goes by; without one, what it would go by.

    Raises
    ------
    ApiError
        If the apiserver does not answer. What we may not read is remarked upon, and counts as not there.
    """
    remarks: list[str] = []
    where = {name: f"ConfigMap {namespace}/{name}" for name in (IN_FORCE, CONFIG_MAP)}
    texts: dict[str, str | None] = {}
    for name in (IN_FORCE, CONFIG_MAP):
        try:
            data = read_config_map(api, namespace, name)
            texts[name] = None if data is None else data.get(KEY)
            if name == CONFIG_MAP and data is not None and KEY not in data:
                remarks.append(f"{where[name]} has no key {KEY} (it has: {', '.join(data) or 'none'})")
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            texts[name] = None
            remarks.append(f"{where[name]} cannot be read: {error.message}")
    good: list[tuple[Policy, str]] = []
    for name, text in texts.items():
        try:
            good += [] if text is None else [(read_policy(text), where[name])]
        except BadPolicy as error:
            remarks.append(f"{where[name]} cannot be read as a policy, the last good one goes on: {error}")
    if texts[IN_FORCE] is None and texts[CONFIG_MAP] is not None:
        remarks.append("no controller has taken it up yet")
    policy, place = good[0] if good else (Policy(version=1), "the defaults: no policy is written")
    return Found(policy, place, tuple(remarks))


class InForce:
    """Keeps the ConfigMap as it should be, in a thread of its own: nobody waits for the apiserver.

    Parameters
    ----------
    may_act
        Asked before each write: whether this replica leads.
    """

    def __init__(self, api: ApiServer, namespace: str, may_act: Callable[[], bool]) -> None:
        self._api = api
        self._path = f"/api/v1/namespaces/{namespace}/configmaps/{IN_FORCE}"
        self._may_act = may_act
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._follower = ConfigMapFollower(api, namespace, IN_FORCE, self._wake.set)
        self._wanted: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="policy in force", daemon=True)

    def start(self) -> None:
        """Begin to follow the ConfigMap, and to write it once something is wanted."""
        self._follower.start()
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._wake.set()
        self._follower.stop()
        self._thread.join(timeout=5)

    def wait_synced(self, seconds: float) -> bool:
        """Wait until its content is known."""
        return self._follower.wait_synced(seconds)

    def policy(self) -> str | None:
        """The policy that was in force last; None when there was none."""
        return (self._follower.data() or {}).get(KEY)

    def want(self, policy: str | None, modes: Mapping[str, str]) -> None:
        """What it should say from now on."""
        wanted = {**modes, **({} if policy is None else {KEY: policy})}
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def _run(self) -> None:
        told, pause = "", RETRY_SECONDS
        while not self._stopping.is_set():
            self._wake.wait()
            self._wake.clear()
            try:
                if self._may_act():
                    self._write()
                    told, pause = "", RETRY_SECONDS
                    continue
            except ApiError as error:
                if str(error) != told:
                    told = str(error)
                    log.warning("cannot write ConfigMap %s: %s; new work gets gates as before", IN_FORCE, error.message)
                pause = min(2 * pause, SLOWEST_RETRY_SECONDS)
            self._stopping.wait(pause)
            self._wake.set()

    def _write(self) -> None:
        wanted, there = self._wanted, self._follower.data()
        if self._stopping.is_set() or wanted is None or wanted == there:
            return
        gone = dict.fromkeys((there or {}).keys() - wanted.keys())
        self._api.request("PATCH", self._path, body={"data": {**wanted, **gone}}, content_type=MERGE_PATCH)
