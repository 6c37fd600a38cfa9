"""Who follows a cluster sees in it what somebody sees who has just come."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from memory_cluster import MemoryCluster

from scheduler.cluster import GATES_ANNOTATION
from scheduler.settings import HOUR, MINUTE, Settings
from scheduler.snapshot import Snapshot, Snapshotter
from solver.api import planner_pb2 as pb

NAMES = ["a", "b", "c"]
STEPS = st.tuples(
    st.sampled_from(
        [
            *["create", "create", "release", "admit", "admit_elsewhere", "finish", "wish", "believe", "wait"],
            *[
                "orphan",
                "drop_workload",
                "break_workload",
                "break_job",
                "no_version",
                "resize",
                "stop",
                "unmanage",
                "tune",
            ],
        ]
    ),
    st.sampled_from(NAMES),
)


def said(snap: Snapshot) -> tuple[Any, ...]:
    """What a snapshot says, whatever the order of its tables."""
    work, request = snap.request.workloads, snap.request
    flavors = [flavor.name for flavor in request.quota.flavors]
    held = [
        [
            (flavors[f], request.quota.resources[r], a, p)
            for f, r, a, p in zip(x.flavors, x.resources, x.amounts, x.pods, strict=True)
        ]
        for x in request.assignments
    ]
    rows = [
        (
            *(
                str(request.shapes[shape]) if state != pb.RUNNING else "",
                held[assignment] if state == pb.RUNNING else "",
                state,
            ),
            *(request.quota.cluster_queues[queue].name, *rest),
        )
        for shape, assignment, state, queue, *rest in zip(
            *(work.shape, work.assignment, work.state, work.cluster_queue, work.id, work.release_ms, work.duration_ms),
            *(work.due_ms, work.created_ms, work.reserved_ms, work.weight, work.priority, work.evicted, work.hard),
            strict=True,
        )
    ]
    others = (sorted(map(str, snap.complaints)), sorted(map(str, snap.stranded)), snap.unsupported, snap.leads)
    return snap.items, dict(snap.row), snap.releasable.tolist(), rows, others, request.now_ms, request.budget


@given(st.lists(STEPS, min_size=1, max_size=40))
def test_who_follows_sees_what_a_newcomer_sees(steps: list[tuple[str, str]]) -> None:
    """After any sequence of changes a snapshotter that remembers takes the snapshot that a fresh one takes."""
    cluster = MemoryCluster()
    cluster.queue()
    settings, released = Settings(), set[str]()
    follower = Snapshotter(settings)
    for step, name in steps:
        settings = change(cluster, step, name, settings, released)
        follower.settings = settings
        seen = follower.take(cluster, released)
        assert said(seen) == said(Snapshotter(settings).take(cluster, released))
        assert {item.uid for item in seen.items} <= follower.works.keys()


def test_other_settings_count_without_any_work() -> None:
    """Which queues are left to Kueue goes by the settings of the moment, also while nothing waits."""
    cluster = MemoryCluster()
    cluster.queue(admissionScope={"admissionMode": "UsageBasedAdmissionFairSharing"})
    follower = Snapshotter(Settings())
    assert set(follower.take(cluster).unsupported) == {"cq"}
    follower.settings = Settings(managed_label="example.com/another")
    assert follower.take(cluster).unsupported == {}


def change(cluster: MemoryCluster, step: str, name: str, settings: Settings, released: set[str]) -> Settings:
    """Change something, if it is there to be changed."""
    try:
        key = cluster.key_of(name)
    except (KeyError, TypeError):
        key = ""
    job = f"team/{name}"
    match step:
        case "create":
            wishes = {"a": {"deadline": "2h"}, "b": {"earliest_start": "1h", "duration": "30m"}, "c": {}}
            cluster.job(name, **wishes[name])
        case "release" if key:
            cluster.edit("Job", job, lambda o: o["metadata"]["annotations"].pop(GATES_ANNOTATION, None))
        case "admit" | "admit_elsewhere" if key and "spec" in cluster.objects("Workload")[key]:
            cluster.admit(name, flavor="gpu" if step == "admit" else "gone")
        case "finish" if key and "status" in cluster.objects("Workload")[key]:
            cluster.finish(name)
        case "wish" if key:
            cluster.edit("Job", job, lambda o: o["metadata"]["annotations"].update({"punctual.kueue/weight": "7"}))
        case "believe" if key:
            released ^= {cluster.objects("Workload")[key]["metadata"]["uid"]}
        case "wait":
            cluster.time += {"a": MINUTE, "b": HOUR, "c": 3 * HOUR}[name]
        case "orphan" if job in cluster.objects("Job"):
            cluster.drop("Job", job)
        case "drop_workload" if key:
            cluster.drop("Workload", key)
        case "break_workload" if key:
            cluster.edit("Workload", key, lambda o: o.pop("spec", None))
        case "break_job" if key:
            cluster.edit("Job", job, lambda o: o["metadata"].update(creationTimestamp="yesterday"))
        case "no_version" if key:
            cluster._objects["Workload"][key] = {**cluster.objects("Workload")[key], "metadata": {"name": name}}
        case "resize":
            cluster.queue(gpus={"a": 1, "b": 4, "c": 8}[name])
        case "stop":
            cluster.queue(**({} if name == "a" else {"stopPolicy": "Hold"}))
        case "unmanage":
            cluster.edit("Namespace", "team", lambda o: o["metadata"].update(labels={}))
        case "tune":
            return Settings(default_duration_ms={"a": MINUTE, "b": HOUR, "c": 2 * HOUR}[name])
    return settings
