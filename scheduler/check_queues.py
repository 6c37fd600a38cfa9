"""The queues that opted-in namespaces lead to: whether they are there, take work, and are supported."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.check import Finding, Installation, State
from scheduler.check_policies import MANAGED, managed
from scheduler.queues import QueueReader


def queues(at: Installation) -> Iterable[Finding]:
    """What is wrong with the queues of opted-in namespaces."""
    seen = QueueReader().read(at.cluster)
    for unreadable in seen.objects.unreadable:
        yield Finding("queues", State.WARN, unreadable.message)
    namespaces = {name for name, item in at.cluster.objects("Namespace").items() if managed(item)}
    ours: dict[str, str] = {}
    for key, queue in seen.objects.local_queues.items():
        if key.partition("/")[0] not in namespaces:
            continue
        ours[queue.cluster_queue] = key
        if queue.stopped:
            yield Finding("queues", State.WARN, f"{queue.stopped}: our gates come off there", _start("localqueue", key))
    unsupported = seen.left_to_kueue(MANAGED)
    good = []
    for name, local in sorted(ours.items()):
        facts = seen.objects.cluster_queues.get(name)
        if facts is None:
            told = f"LocalQueue {local} names ClusterQueue {name}, which does not exist: our gates come off there"
            yield Finding("queues", State.FAIL, told, f"kubectl get clusterqueues    # and make {name}")
        elif name in unsupported:
            told = f"{seen.why_unsupported(name)}: it is left to Kueue (docs/how-it-works.md)"
            yield Finding("queues", State.WARN, told, f"kubectl edit clusterqueue {name}")
        elif facts.stopped:
            told = f"{facts.stopped}: our gates come off there"
            yield Finding("queues", State.WARN, told, _start("clusterqueue", name))
        else:
            good.append(name)
    if good:
        yield Finding("queues", State.OK, f"supported, and they take work: {', '.join(good)}")
    for remark in at.remarks:
        yield Finding("queues", State.WARN, remark)


def _start(kind: str, key: str) -> str:
    namespace, _, name = key.rpartition("/")
    where = f" -n {namespace}" if namespace else ""
    return f'kubectl patch {kind} {name}{where} --type=merge -p \'{{"spec":{{"stopPolicy":"None"}}}}\''
