"""Cases for the oracle: a tree of cohorts and queues, and what happens in it, as plain values.

The ``repr`` of a :class:`Case` is Python: a case that failed is pasted into ``test_oracle.py`` as it was printed.
Names are local to a case; :mod:`oracle` prefixes them, so that many cases live side by side in one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from solver.preemption import Preemption, Whom

GPU = "example.com/gpu"
SLICE, TILE, IGNORED = "example.com/slice", "example.com/tile", "ignored.example.com/port"
UNIT = {
    GPU: ("", 1),
    "cpu": ("m", 500),
    "memory": ("Mi", 256),
    "pods": ("", 1),
    SLICE: ("", 1),
    TILE: ("", 1),
    IGNORED: ("", 1),
}
"""Suffix and size of the unit in which amounts of a resource are drawn."""

RESOURCES = {
    "excludeResourcePrefixes": ["ignored.example.com/"],
    "transformations": [
        {"input": SLICE, "strategy": "Replace", "outputs": {GPU: "500m", "cpu": "250m"}},
        {"input": TILE, "strategy": "Retain", "multiplyBy": "cpu", "outputs": {GPU: "1"}},
    ],
}
"""``resources`` of the configuration of the Kueue that is asked."""

NEVER = Preemption()

Limits = tuple[int, int | None, int | None]
"""nominalQuota, borrowingLimit, lendingLimit, in units of the resource."""


@dataclass(frozen=True)
class Flavor:
    """A ResourceFlavor; ``taint`` is the key of a NoSchedule taint."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    taint: str = ""
    tolerated: bool = False
    """Whether the flavor itself tolerates its taint."""


@dataclass(frozen=True)
class Group:
    """A resource group: limits by flavor (in Kueue's order) and resource."""

    resources: tuple[str, ...]
    flavors: dict[str, dict[str, Limits]]


@dataclass(frozen=True)
class Cohort:
    """A Cohort object."""

    name: str
    parent: str = ""
    groups: tuple[Group, ...] = ()


@dataclass(frozen=True)
class Queue:
    """A ClusterQueue, with a LocalQueue of the same name."""

    name: str
    cohort: str = ""
    groups: tuple[Group, ...] = ()
    try_next: bool = False
    preemption: Preemption = NEVER


@dataclass(frozen=True)
class Extras:
    """What pods get besides what they ask for, in units: by a LimitRange and by a RuntimeClass."""

    default: dict[str, int] = field(default_factory=dict)
    default_request: dict[str, int] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    """Of a container."""
    most_of_pod: dict[str, int] = field(default_factory=dict)
    overhead: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PodSet:
    """A pod set of a Workload; ``requests`` of one pod in units."""

    count: int
    requests: dict[str, int]
    minimum: int | None = None
    selector: dict[str, str] = field(default_factory=dict)
    affinity: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """One term of required node affinity: key, operator, values."""
    tolerates: tuple[str, ...] = ()
    limited: bool = True
    """Whether its requests are its limits as well."""
    sandboxed: bool = False
    """Whether it is of the RuntimeClass."""


@dataclass(frozen=True)
class Submit:
    """A new Workload: the question to the oracle."""

    queue: str
    pod_sets: tuple[PodSet, ...]
    priority: int = 0


@dataclass(frozen=True)
class End:
    """One of the admitted Workloads is deleted: the ``which``-th of them, counted round and round."""

    which: int


@dataclass(frozen=True)
class Edit:
    """A Cohort or ClusterQueue as it is from now on."""

    to: Cohort | Queue


@dataclass(frozen=True)
class Change:
    """LimitRange and RuntimeClass as they are from now on."""

    extras: Extras


Step = Submit | End | Edit | Change


@dataclass(frozen=True)
class Case:
    """A tree and what happens in it."""

    flavors: tuple[Flavor, ...]
    cohorts: tuple[Cohort, ...]
    queues: tuple[Queue, ...]
    steps: tuple[Step, ...]
    extras: Extras = Extras()


def draw_case(seed: str, steps: int = 14) -> Case:
    """A random case in which nobody preempts; the same for the same seed."""
    return _Draw(Random(seed)).case(steps)


def draw_preemption(seed: str, steps: int = 18) -> Case:
    """A random case in which queues may evict work of others or their own; the same for the same seed."""
    return _DrawPreemption(Random(seed)).case(steps)


def smaller(case: Case) -> list[Case]:
    """Cases with a part of this one left out, the largest parts first."""
    found = []
    size = len(case.steps) // 2
    while size >= 1:
        found += [_without(case, range(at, at + size)) for at in range(0, len(case.steps), size)]
        size //= 2
    named = {step.queue for step in case.steps if isinstance(step, Submit)}
    named |= {step.to.name for step in case.steps if isinstance(step, Edit)}
    for queue in case.queues:
        if queue.name not in named:
            found.append(replace(case, queues=tuple(q for q in case.queues if q is not queue)))
    changed = [step.to for step in case.steps if isinstance(step, Edit)]
    used = {q.cohort for q in (*case.queues, *changed) if isinstance(q, Queue)}
    used |= {c.name for c in changed} | {c.parent for c in (*case.cohorts, *changed) if isinstance(c, Cohort)}
    if any(cohort.name not in used for cohort in case.cohorts):
        found.append(replace(case, cohorts=tuple(c for c in case.cohorts if c.name in used)))
    for k, step in enumerate(case.steps):
        if isinstance(step, Submit) and len(step.pod_sets) > 1:
            for left_out in step.pod_sets:
                kept = replace(step, pod_sets=tuple(p for p in step.pod_sets if p is not left_out))
                found.append(replace(case, steps=(*case.steps[:k], kept, *case.steps[k + 1 :])))
    return found


def _without(case: Case, dropped: range) -> Case:
    return replace(case, steps=tuple(step for k, step in enumerate(case.steps) if k not in dropped))


class _Draw:
    """Draws small trees in which about half of what is asked for fits."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def case(self, steps: int) -> Case:
        random = self.random
        self.flavors = [self._flavor(f"f{k}") for k in range(random.choice([1, 2, 2, 3]))]
        names = [flavor.name for flavor in self.flavors]
        extra = random.choice([(), ("cpu",), ("cpu",), ("cpu", "pods"), ("pods",)])
        self.layout: list[tuple[tuple[str, ...], list[str]]] = [((GPU, *extra), names)]
        if random.random() < 0.3:
            self.flavors += [self._flavor(f"g{k}") for k in range(random.choice([1, 2]))]
            second = [flavor.name for flavor in self.flavors if flavor.name not in names]
            self.layout = [((GPU, *extra[1:]), names), (random.choice([("cpu",), ("cpu", "memory")]), second)]
        self.asked = sorted({resource for resources, _ in self.layout for resource in resources} - {"pods"})
        self.extras = self._extras() if random.random() < 0.4 else Extras()
        cohorts: list[Cohort] = []
        for k in range(random.choice([0, 1, 1, 2, 3, 4])):
            parent = random.choice(["", *(c.name for c in cohorts), *(c.name for c in cohorts), "implicit"])
            cohorts.append(Cohort(f"c{k}", parent, self._groups(parent, queue=False)))
        self.parents = ["", *([c.name for c in cohorts] * 3), "implicit"]
        queues = []
        for k in range(random.randint(1, 4)):
            cohort = random.choice(self.parents)
            queues.append(Queue(f"q{k}", cohort, self._groups(cohort), random.random() < 0.4))
        self.queues, self.cohorts = list(queues), list(cohorts)
        taken = tuple(self._steps(steps))
        return Case(tuple(self.flavors), tuple(cohorts), tuple(queues), taken, self.extras)

    def _steps(self, steps: int) -> list[Step]:
        taken: list[Step] = []
        while len(taken) < steps:
            chance = self.random.random()
            if chance < 0.72 or not taken:
                taken.append(self._submit())
            elif chance < 0.86:
                taken.append(End(self.random.randrange(6)))
            elif self.extras != Extras() and self.random.random() < 0.4:
                taken.append(Change(self._extras()))
            else:
                taken.append(Edit(self._changed()))
        return taken

    def _changed(self) -> Cohort | Queue:
        random = self.random
        if self.cohorts and random.random() < 0.4:
            k = random.randrange(len(self.cohorts))
            parent = self.cohorts[k].parent
            self.cohorts[k] = replace(self.cohorts[k], groups=self._groups(parent, queue=False))
            return self.cohorts[k]
        k = random.randrange(len(self.queues))
        cohort = self.queues[k].cohort if random.random() < 0.7 else random.choice(self.parents)
        self.queues[k] = replace(self.queues[k], cohort=cohort, groups=self._groups(cohort))
        return self.queues[k]

    def _extras(self) -> Extras:
        random = self.random
        default = {r: random.choice([1, 2]) for r in self.asked if random.random() < 0.4}
        requests = {r: random.choice([1, 1, 2]) for r in self.asked if r != GPU and random.random() < 0.5}
        requests = {r: min(n, default.get(r, n)) for r, n in requests.items()}  # the apiserver insists
        return Extras(
            default,
            requests,
            most={r: random.choice([2, 3]) for r in self.asked if random.random() < 0.3},
            most_of_pod={r: random.choice([2, 3, 4]) for r in self.asked if random.random() < 0.3},
            overhead={r: random.choice([1, 2]) for r in self.asked if random.random() < 0.5},
        )

    def _flavor(self, name: str) -> Flavor:
        random = self.random
        labels = {}
        if random.random() < 0.6:
            labels["kind"] = random.choice([name, "common"])
        if random.random() < 0.2:
            labels["zone"] = random.choice(["east", "west"])
        taint = f"only-{name}" if random.random() < 0.25 else ""
        return Flavor(name, labels, taint, bool(taint) and random.random() < 0.3)

    def _groups(self, parent: str, queue: bool = True) -> tuple[Group, ...]:
        random = self.random
        groups = []
        for resources, flavors in self.layout:
            if not queue and random.random() < 0.4:
                continue
            chosen = random.sample(flavors, random.randint(1, len(flavors)))
            limits = {f: {r: self._limits(r, bool(parent), queue) for r in resources} for f in chosen}
            groups.append(Group(resources, limits))
        return tuple(groups)

    def _limits(self, resource: str, limited: bool, queue: bool) -> Limits:
        random = self.random
        scale = 2 if resource in ("cpu", "memory", "pods") else 1
        nominal = scale * random.choice([0, 1, 2, 3, 4, 6, 8] if queue else [0, 1, 2, 4, 6])
        borrowing = scale * random.randint(0, 4) if limited and random.random() < 0.4 else None
        lending = random.randint(0, nominal if queue else 6) if limited and random.random() < 0.4 else None
        return nominal, borrowing, lending

    def _submit(self) -> Submit:
        random = self.random
        queue = random.choice(self.queues)
        pod_sets = [self._pod_set() for _ in range(random.choice([1, 1, 1, 2, 2, 3]))]
        kinds = [flavor.labels["kind"] for flavor in self.flavors if "kind" in flavor.labels]
        if kinds and random.random() < 0.15:  # a later pod set needs the flavor that an earlier one may take
            pod_sets[0] = replace(pod_sets[0], selector={}, affinity=())
            pod_sets.append(replace(self._pod_set(), selector={"kind": random.choice(kinds)}, affinity=()))
        if random.random() < 0.25:
            k = random.randrange(len(pod_sets))
            count = random.randint(2, 8)
            pod_sets[k] = replace(pod_sets[k], count=count, minimum=random.randint(1, count))
        return Submit(queue.name, tuple(pod_sets))

    def _pod_set(self) -> PodSet:
        random = self.random
        requests = {GPU: random.choice([0, 1, 1, 1, 1, 2, 2])}
        covered = {r for resources, _ in self.layout for r in resources} - {GPU, "pods"}
        for resource in sorted(covered):
            if random.random() < 0.7:
                requests[resource] = random.choice([1, 1, 1, 2])
        if random.random() < 0.03:
            requests["memory"] = random.choice([0, 1])  # where no group covers it, it never fits, but for nothing of it
        selector, affinity = {}, ()
        chance = random.random()
        flavor = random.choice(self.flavors)
        if chance < 0.15:
            selector = dict(flavor.labels)
        elif chance < 0.18:
            selector = {random.choice(["kind", "elsewhere"]): "nowhere"}
        elif chance < 0.28:
            kind = flavor.labels.get("kind", "common")
            affinity = (("kind", random.choice(["In", "NotIn"]), (kind,)), ("elsewhere", "Exists", ()))
        tolerates = tuple(f.taint for f in self.flavors if f.taint and random.random() < 0.7)
        limited, sandboxed = True, False
        if self.extras != Extras():
            requests = {r: n for r, n in requests.items() if random.random() < 0.7}
            limited, sandboxed = random.random() < 0.6, random.random() < 0.4
        chance = random.random()
        if chance < 0.06 and self.extras == Extras():
            # Not beside what slices are counted as: Kueue adds the two or keeps one of them, at random.
            requests = {SLICE: requests.get(GPU, 1)} | {r: n for r, n in requests.items() if r not in (GPU, "cpu")}
        elif chance < 0.1:
            requests[IGNORED] = 1
        count = random.choice([1, 1, 2, 3])
        return PodSet(count, requests, None, selector, affinity, tolerates, limited, sandboxed)


class _DrawPreemption(_Draw):
    """Draws trees of one cohort with few limits, full of small work of different priorities."""

    def case(self, steps: int) -> Case:
        random = self.random
        self.flavors = [Flavor(f"f{k}") for k in range(random.choice([1, 1, 2]))]
        self.layout = [((GPU, *random.choice([(), (), ("cpu",)])), [flavor.name for flavor in self.flavors])]
        self.cohorts = [Cohort("c0", "", self._groups("", queue=False))]
        for k in range(1, random.randint(1, 4)):
            parent = random.choice(self.cohorts).name
            self.cohorts.append(Cohort(f"c{k}", parent, self._groups(parent, queue=False)))
        self.parents = [cohort.name for cohort in self.cohorts]
        self.queues = [self._queue(f"q{k}") for k in range(random.randint(2, 4))]
        queues, cohorts = tuple(self.queues), tuple(self.cohorts)
        return Case(tuple(self.flavors), cohorts, queues, tuple(self._steps(steps)))

    def _queue(self, name: str) -> Queue:
        cohort = self.random.choice(self.parents)
        try_next = self.random.random() < 0.4
        return Queue(name, cohort, self._groups(cohort), try_next, self._preemption(try_next))

    def _steps(self, steps: int) -> list[Step]:
        taken: list[Step] = []
        for _ in range(steps):
            chance = self.random.random()
            if chance < 0.06:
                taken.append(End(self.random.randrange(6)))
            elif chance < 0.14:
                k = self.random.randrange(len(self.queues))
                self.queues[k] = self._queue(self.queues[k].name)
                taken.append(Edit(self.queues[k]))
            else:
                taken.append(self._submit())
        return taken

    def _preemption(self, try_next: bool) -> Preemption:
        random = self.random
        reclaim = random.choice([Whom.NEVER, Whom.LOWER_PRIORITY, Whom.ANY, Whom.ANY])
        stop_search = random.random() < 0.3
        return Preemption(
            within_queue=random.choice([Whom.NEVER, Whom.LOWER_PRIORITY, Whom.LOWER_OR_NEWER_EQUAL_PRIORITY]),
            reclaim=reclaim,
            borrowing=(borrowing := reclaim != Whom.NEVER and random.random() < 0.5),
            threshold=random.randint(0, 3) if borrowing and random.random() < 0.5 else None,
            stop_search=stop_search,
            rather_preempt=try_next and not stop_search and random.random() < 0.5,
        )

    def _limits(self, resource: str, limited: bool, queue: bool) -> Limits:
        random = self.random
        nominal = random.choice([0, 1, 2, 3, 4, 6] if queue else [0, 0, 1, 2])
        borrowing = random.randint(1, 4) if limited and random.random() < 0.15 else None
        lending = random.randint(0, nominal) if limited and random.random() < 0.15 else None
        return (nominal, borrowing, lending) if resource == GPU else (2 * nominal, borrowing, lending)

    def _submit(self) -> Submit:
        random = self.random
        queue = random.choice(self.queues)
        pod_sets = []
        for _ in range(random.choice([1, 1, 1, 2])):
            requests = {GPU: random.choice([1, 1, 2])}
            if "cpu" in self.layout[0][0]:
                requests["cpu"] = random.choice([1, 2])
            pod_sets.append(PodSet(random.choice([1, 1, 2]), requests))
        if random.random() < 0.1:
            pod_sets[0] = replace(pod_sets[0], count=4, minimum=1)
        return Submit(queue.name, tuple(pod_sets), random.randint(0, 3))
