"""The Workloads of a cluster with the objects that own them, followed from one look to the next.

What has not changed costs next to nothing: a busy cluster is looked at many times a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from scheduler.cluster import View
from scheduler.estimates import Estimates
from scheduler.facts import Reader, RootFacts, Unreadable, WorkloadFacts, read_root, read_workload
from scheduler.items import Work
from scheduler.kinds import ROOT_KINDS
from scheduler.settings import Settings


class Works:
    """Follows Workloads and root objects.

    Attributes
    ----------
    by_key
        All Workloads that can be read, by ``namespace/name``.
    by_uid
        The same, by uid.
    key
        Their keys, by uid.
    """

    def __init__(self, estimates: Estimates | None) -> None:
        self.by_key: dict[str, Work] = {}
        self.by_uid: dict[str, Work] = {}
        self.key: dict[str, str] = {}
        self._estimates = estimates
        self._settings: Settings | None = None
        self._workloads = Reader("Workload", read_workload)
        self._roots = {kind: Reader(kind, partial(read_root, kind)) for kind in ROOT_KINDS}
        self._owners: dict[str, RootFacts] = {}
        """Root objects by uid."""
        self._owned: dict[str, set[str]] = {}
        """Keys of the Workloads that name an owner, by its uid; it may be gone, or not be there yet."""

    def follow(self, cluster: View, settings: Settings) -> set[str]:
        """Look again: the keys of the Workloads that are new, gone or not what they were."""
        changed = self._follow_roots(cluster)
        if settings is not self._settings:
            self._settings = settings
            changed |= self.by_key.keys()
        for key, before in self._workloads.follow(cluster.objects("Workload")).items():
            changed.add(key)
            if before is not None:
                self._forget(key, before)
            facts = self._workloads.facts.get(key)
            if facts is not None and facts.owner is not None:
                self._owned.setdefault(facts.owner.uid, set()).add(key)
        for key in changed:
            facts = self._workloads.facts.get(key)
            if facts is not None:
                owner = self._owners.get(facts.owner.uid) if facts.owner else None
                work = Work(facts, owner, settings, self._estimates)
                self.by_key[key] = self.by_uid[facts.reference.uid] = work
                self.key[facts.reference.uid] = key
        return changed

    def broken(self) -> Iterator[Unreadable]:
        """What could not be read."""
        for broken in (*(reader.broken for reader in self._roots.values()), self._workloads.broken):
            yield from (broken[key] for key in sorted(broken))

    def _follow_roots(self, cluster: View) -> set[str]:
        """Keys of the Workloads whose owners are new, gone or not what they were."""
        changed: set[str] = set()
        for kind, reader in self._roots.items():
            for key, before in reader.follow(cluster.objects(kind)).items():
                now = reader.facts.get(key)
                if before is not None:
                    self._owners.pop(before.reference.uid, None)
                if now is not None:
                    self._owners[now.reference.uid] = now
                for facts in (before, now):
                    if facts is not None:
                        changed |= self._owned.get(facts.reference.uid, set())
        return changed

    def _forget(self, key: str, facts: WorkloadFacts) -> None:
        work = self.by_key.pop(key)
        if self.by_uid.get(facts.reference.uid) is work:
            del self.by_uid[facts.reference.uid], self.key[facts.reference.uid]
        if facts.owner is not None:
            keys = self._owned[facts.owner.uid]
            keys.remove(key)
            if not keys:
                del self._owned[facts.owner.uid]
