"""On a real Kueue, all at once: a cohort of three levels, two flavors, a service, work of others, estimates that are
wrong both ways, and an owner who wants back what was lent. What must hold is asserted over the whole run, from outside.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from localcluster.cluster import LocalCluster
from localcluster.nodes import GPU
from tests.kueue.conftest import with_punctual
from tests.kueue.observer import Entry, Observer
from tests.kueue.punctual import Punctual
from tests.kueue.team import GATE, KUEUE, QUEUE, Team, condition_of, gates_of, new_team, wait_for

pytestmark = [pytest.mark.kueue, pytest.mark.long, pytest.mark.timeout(400)]

PATIENCE = 5.0
"""Seconds that released work may wait for its quota without a reason on record."""

DEADLINE, DURATION = "punctual.kueue/deadline", "punctual.kueue/duration"

QUOTA = {"prod": (4, 0), "nlp": (2, 2), "speech": (2, 0), "vision": (0, 2)}
"""GPUs of flavors a and b, by ClusterQueue."""

PARENTS = {"company": "", "research": "company", "language": "research"}
COHORT = {"prod": "company", "nlp": "language", "speech": "language", "vision": "research"}

BORROWS = {"vision": (1, None)}
"""The most of flavors a and b that a ClusterQueue may borrow, where that is limited."""

Steps = tuple[tuple[str, int, int, int, str], ...]
"""Whose, GPUs, estimate and real run time in seconds, deadline ("" for none)."""

WORK: Steps = (
    ("nlp", 2, 4, 2, "20s"),
    ("nlp", 2, 4, 7, ""),
    ("nlp", 1, 3, 3, "15s"),
    ("visitors", 1, 4, 4, ""),
    ("vision", 1, 5, 2, "30s"),
    ("nlp", 4, 4, 3, "40s"),
    ("vision", 2, 3, 5, ""),
    ("nlp", 2, 6, 9, "60s"),
    ("visitors", 1, 2, 6, ""),
    ("nlp", 2, 5, 1, ""),
    ("vision", 1, 4, 4, "25s"),
    ("visitors", 2, 3, 3, ""),
    ("nlp", 3, 4, 5, ""),
)
"""Mixed work of everybody but the owner. Half of it runs longer or shorter than it says."""

BORROWERS: Steps = (("nlp", 2, 4, 18, ""),) * 3
"""What will hold the owner's quota for far longer than it says."""

OWNERS: Steps = (("prod", 4, 3, 3, "3s"),)
"""What the owner brings then: waiting for room would make it late."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster of its own, whose Kueue queues Deployments too."""
    configuration = {"integrations": {"frameworks": ["batch/job", "pod", "deployment"]}}
    yield from with_punctual(LocalCluster(tmp_path_factory.mktemp("mixed"), configuration=configuration))


@pytest.fixture(scope="module")
def punctual(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Punctual]:
    """Planner and controller, running with the rights that the manifests give."""
    folder = tmp_path_factory.mktemp("punctual")
    token = cluster.token("punctual-system", "punctual-controller")
    running = Punctual(cluster.kubeconfig_as(token, folder / "kubeconfig"), folder)
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def company(cluster: LocalCluster) -> dict[str, Team]:
    """A namespace for each ClusterQueue, and ``visitors``, who do not take part, at that of ``vision``."""
    api, named = cluster.api, {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    for flavor in "ab":
        spec = {"nodeLabels": {"gpu-kind": flavor}}
        api(
            "POST",
            f"{KUEUE}/resourceflavors",
            {**named, "kind": "ResourceFlavor", "metadata": {"name": flavor}, "spec": spec},
        )
    for name, parent in PARENTS.items():
        spec = {"parentName": parent} if parent else {}
        api("POST", f"{KUEUE}/cohorts", {**named, "kind": "Cohort", "metadata": {"name": name}, "spec": spec})
    teams = {}
    for name, quotas in QUOTA.items():
        reclaims = {"preemption": {"reclaimWithinCohort": "Any"}} if name == "prod" else {}
        groups = [resource_group(quotas, BORROWS.get(name, (None, None)))]
        spec = {"resourceGroups": groups, **reclaims}
        teams[name] = new_team(cluster, name, 0, True, "lq", COHORT[name], spec)
    api("POST", "/api/v1/namespaces", {"metadata": {"name": "visitors"}})
    queue = {**named, "kind": "LocalQueue", "metadata": {"name": "lq"}, "spec": {"clusterQueue": "vision"}}
    api("POST", f"{KUEUE}/namespaces/visitors/localqueues", queue)
    teams["visitors"] = Team(cluster, "visitors", "lq")
    return teams


def resource_group(gpus: tuple[int, int], borrowing: tuple[int | None, int | None]) -> dict[str, Any]:
    """Plenty of CPU and memory, and so many GPUs, of flavors a and b."""
    flavors = []
    for flavor, count, limit in zip("ab", gpus, borrowing, strict=True):
        gpu = {"name": GPU, "nominalQuota": count, **({} if limit is None else {"borrowingLimit": limit})}
        plenty = [{"name": "cpu", "nominalQuota": "1000"}, {"name": "memory", "nominalQuota": "8Ti"}]
        flavors.append({"name": flavor, "resources": [*plenty, gpu]})
    return {"coveredResources": ["cpu", "memory", GPU], "flavors": flavors}


def submit(teams: dict[str, Team], work: Steps, names: Iterator[int]) -> list[tuple[str, str]]:
    """A Job for each step; namespaces and names."""
    made = []
    for whose, gpus, estimate, real, deadline in work:
        name = f"job-{next(names)}"
        wishes = {DURATION: f"{estimate}s", **({DEADLINE: deadline} if deadline else {})}
        teams[whose].job(name, gpus=gpus, run_for=real, annotations={} if whose == "visitors" else wishes)
        made.append((whose, name))
    return made


def serve(team: Team, replicas: int) -> None:
    """A service: a Deployment of pods with a GPU each."""
    template = team.job_body("serve", gpus=1)["spec"]["template"]
    labels = {"app": "serve"}
    template["metadata"]["labels"] = labels
    template["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    body = {"metadata": {"name": "serve", "labels": {QUEUE: team.queue}}, "spec": spec}
    path = f"/apis/apps/v1/namespaces/{team.name}/deployments"
    team.cluster.api("POST", path, body)

    def ready() -> bool:
        return bool(team.cluster.api("GET", f"{path}/serve")["status"].get("readyReplicas") == replicas)

    wait_for(ready, "the service to run")


@dataclass(frozen=True)
class Wait:
    """Released work without quota after :data:`PATIENCE`."""

    whose: str
    reason: str
    """On record at that time; empty for none."""


def histories(journal: list[Entry]) -> dict[str, list[Entry]]:
    """What was seen of each Workload, by uid."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in journal:
        if entry.kind == "Workload":
            found[entry.item["metadata"]["uid"]].append(entry)
    return found


def whose(workload: dict[str, Any]) -> str:
    """Namespace and name of the object that a Workload belongs to, or of itself."""
    metadata = workload["metadata"]
    (owner,) = metadata.get("ownerReferences", [metadata])
    return f"{metadata['namespace']}/{owner['name']}"


def holds(entry: Entry) -> bool:
    """Whether the Workload holds quota."""
    over = entry.change == "DELETED" or condition_of(entry.item, "Finished").get("status") == "True"
    return not over and condition_of(entry.item, "QuotaReserved").get("status") == "True"


def waits(journal: list[Entry], until: float) -> list[Wait]:
    """Work that Punctual released and that had no quota :data:`PATIENCE` later."""
    told = {
        f"{e.item['involvedObject']['namespace']}/{e.item['involvedObject']['name']}": e.item["message"]
        for e in journal
        if e.kind == "Event" and e.item.get("source", {}).get("component") == "punctual"
    }
    found = []
    for seen in histories(journal).values():
        pairs = itertools.pairwise(seen)
        released = next((b.at for a, b in pairs if GATE in gates_of(a.item) and GATE not in gates_of(b.item)), None)
        if released is None or released + PATIENCE > until:
            continue
        early = [entry for entry in seen if entry.at <= released + PATIENCE]
        if any(entry.at >= released and (holds(entry) or entry.change == "DELETED") for entry in early):
            continue
        waiting = condition_of(early[-1].item, "QuotaReserved")
        own = waiting.get("message", "") if waiting.get("reason") != "AdmissionGated" else ""
        name = whose(seen[0].item)
        found.append(Wait(name, own or told.get(name, "")))
    return found


def evictions(journal: list[Entry]) -> dict[str, tuple[str, str]]:
    """Who was evicted: why, and in what words."""
    found = {}
    for seen in histories(journal).values():
        for entry in seen:
            evicted, preempted = condition_of(entry.item, "Evicted"), condition_of(entry.item, "Preempted")
            if evicted.get("status") == "True":
                found[whose(entry.item)] = preempted.get("reason", evicted["reason"]), evicted["message"]
    return found


def overdrawn(journal: list[Entry]) -> list[str]:
    """Instants at which more was in use than there is: of a flavor, or by a queue that may borrow only so much."""
    capacity = {flavor: sum(quotas[k] for quotas in QUOTA.values()) for k, flavor in enumerate("ab")}
    used: dict[str, tuple[str, dict[str, int]]] = {}
    found = []
    for entry in (entry for entry in journal if entry.kind == "Workload"):
        uid = entry.item["metadata"]["uid"]
        used.pop(uid, None)
        if holds(entry):
            admission = entry.item["status"]["admission"]
            gpus: Counter[str] = Counter()
            for pod_set in admission["podSetAssignments"]:
                if GPU in pod_set["resourceUsage"]:
                    gpus[pod_set["flavors"][GPU]] += int(pod_set["resourceUsage"][GPU])
            used[uid] = admission["clusterQueue"], gpus
        for k, flavor in enumerate("ab"):
            total = sum(gpus[flavor] for _, gpus in used.values())
            if total > capacity[flavor]:
                found.append(f"{total} of flavor {flavor}")
            for queue, limits in BORROWS.items():
                taken, limit = sum(gpus[flavor] for name, gpus in used.values() if name == queue), limits[k]
                if limit is not None and taken > QUOTA[queue][k] + limit:
                    found.append(f"{taken} of flavor {flavor} by {queue}")
    return found


def ends(journal: list[Entry]) -> Counter[str]:
    """How many pods of each Job ran to their end."""
    succeeded = {
        entry.item["metadata"]["uid"]: entry.item["metadata"]
        for entry in journal
        if entry.kind == "Pod" and entry.item["status"].get("phase") == "Succeeded"
    }
    job = "batch.kubernetes.io/job-name"
    return Counter(f"{metadata['namespace']}/{metadata['labels'][job]}" for metadata in succeeded.values())


def test_a_mixed_day(company: dict[str, Team], punctual: Punctual, record_property: Any) -> None:
    """Nothing released waits without a reason on record, no start is interrupted but by an owner who is entitled to,
    quota is never exceeded, and every job runs to its end exactly once."""
    names = itertools.count(1)
    with Observer(company["prod"].cluster) as observer:
        serve(company["speech"], 2)
        jobs = submit(company, WORK, names)
        time.sleep(4)
        jobs += submit(company, WORK[:6], names)
        wait_for(lambda: all(observer.run(*job).finished for job in jobs if job[0] == "nlp"), "room", timeout=150)
        borrowers = submit(company, BORROWERS, names)
        wait_for(lambda: all(observer.run(*job).running for job in borrowers), "the borrowers to run")
        time.sleep(5)  # by what they said they have ended
        jobs += submit(company, WORK[:6], names)
        owners = submit(company, OWNERS, names)
        jobs += borrowers + owners
        wait_for(lambda: all(observer.run(*job).finished for job in jobs), "all to finish", timeout=150)
        time.sleep(1)
        now, journal = time.time(), list(observer.journal)
    waited = waits(journal, now)
    interrupted = evictions(journal)
    record_property("waited", [str(wait) for wait in waited])
    print(f"\nwaited: {waited}\nevicted: {interrupted}")
    assert [wait for wait in waited if not wait.reason] == []
    (owner,) = {company["prod"].workload_of(name)["metadata"]["uid"] for _, name in owners}
    assert interrupted
    for reason, message in interrupted.values():
        assert reason == "InCohortReclamation"
        assert owner in message
    assert overdrawn(journal) == []
    assert ends(journal) == {f"{namespace}/{name}": 1 for namespace, name in jobs}
    assert all(company[namespace].finished(name) for namespace, name in jobs)
    service = [seen for seen in histories(journal).values() if whose(seen[0].item).startswith("speech/serve-")]
    assert len(service) == 2
    assert all(holds(seen[-1]) for seen in service)
