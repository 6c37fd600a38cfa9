"""Whom the kernels evict is whom Kueue's rules, restated plainly in ``naive_preemption``, evict."""

from __future__ import annotations

from functools import partial

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_preemption import Asker, Holder, victims
from naive_quota import Node, PodSet, Quota, choose
from test_quota import FLAVORS, MODES, RESOURCES, Kernels, cohort, gpus, pods

import solver.choose as kernel
from solver.choose import Mode
from solver.preemption import Holders, Preemption, Whom, going_order

rule = partial(settings, deadline=None)

CELLS = [(f, r) for f in FLAVORS[:2] for r in RESOURCES[:2]]

policies = st.builds(
    Preemption,
    within_queue=st.sampled_from([Whom.NEVER, Whom.LOWER_PRIORITY, Whom.LOWER_OR_NEWER_EQUAL_PRIORITY]),
    reclaim=st.sampled_from([Whom.NEVER, Whom.LOWER_PRIORITY, Whom.ANY, Whom.ANY]),
    borrowing=st.booleans(),
    threshold=st.one_of(st.none(), st.integers(0, 3)),
    stop_search=st.booleans(),
    rather_preempt=st.booleans(),
)
limits = st.one_of(st.none(), st.none(), st.integers(0, 3))


@st.composite
def worlds(draw):
    """A tree that is full of work, of which the asker may evict some."""

    def quotas(most, parent):
        limit = limits if parent is not None else st.none()
        return {cell: Quota(draw(st.integers(0, most)), draw(limit), draw(limit)) for cell in CELLS}

    nodes = []
    for k in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from([*nodes, None])) if nodes else None
        nodes.append(Node(f"cohort-{k}", parent, quotas(2, parent)))
    cohorts = list(nodes)
    for k in range(draw(st.integers(2, 4))):
        parent = draw(st.sampled_from(cohorts))
        resources = RESOURCES[: draw(st.integers(1, 2))]
        queue = Node(f"queue-{k}", parent, quotas(5, parent), groups=[(resources, draw(st.permutations(FLAVORS[:2])))])
        queue.try_next, queue.policy = draw(st.booleans()), draw(policies)
        nodes.append(queue)
    queues = nodes[len(cohorts) :]
    holders = []
    for k in range(draw(st.integers(2, 9))):
        uses = draw(st.dictionaries(st.sampled_from(CELLS), st.integers(1, 4), min_size=1, max_size=2))
        priority, created, reserved = (draw(st.integers(0, 3)) for _ in range(3))
        evicted = draw(st.integers(0, 9)) == 0
        holders.append(Holder(f"uid-{k}", draw(st.sampled_from(queues)), uses, priority, created, reserved, evicted))
        for cell, amount in uses.items():
            holders[-1].queue.used[cell] = holders[-1].queue.used.get(cell, 0) + amount
    return nodes, Asker(draw(st.integers(0, 4)), draw(st.integers(0, 3)), holders)


@st.composite
def requests(draw):
    """One or two pod sets; the first may be cut."""
    pod_sets = [
        PodSet(draw(st.integers(1, 2)), {"cpu": draw(st.integers(1, 2))}, frozenset())
        for _ in range(draw(st.integers(1, 2)))
    ]
    if draw(st.integers(0, 4)) == 0:
        pod_sets[0].minimum = 1
    if draw(st.booleans()):
        pod_sets[0].requests["gpu"] = 1
    return pod_sets


def compiled(nodes, asker):
    """The world as the kernels see it, and its holders in the order in which they go."""
    columns = [np.array([facts(h) for h in asker.holders]) for facts in (lambda h: h.priority, lambda h: h.reserved)]
    order = going_order(*columns, [h.uid for h in asker.holders]) if asker.holders else []
    holders = [asker.holders[w] for w in order]
    kernels = Kernels(nodes)
    kernels.packed = kernel.pack_queues(kernels.tree, [q.policy for q in kernels.queues])
    cells = [[kernels.cell(*cell) for cell in h.uses] for h in holders]
    return (
        kernels,
        holders,
        Holders(
            node=np.array([nodes.index(h.queue) for h in holders], dtype=np.int32),
            priority=np.array([h.priority for h in holders], dtype=np.int64),
            created=np.array([h.created for h in holders], dtype=np.int64),
            evicted=np.array([h.evicted for h in holders], dtype=np.bool_),
            first=np.cumsum([0, *map(len, cells)]).astype(np.int32),
            cell=np.array([c for each in cells for c in each], dtype=np.int32),
            amount=np.array([a for h in holders for a in h.uses.values()], dtype=np.int64),
        ),
    )


def ask(nodes, asker, queue, pod_sets):
    """Mode, level, uids of the victims and choice of the kernels; and the rules' answer."""
    kernels, holders, columns = compiled(nodes, asker)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes, columns)
    before = kernels.usage.copy()
    position = kernels.queues.index(queue)
    mode, level = kernel.choose(
        kernels.tree.arrays,
        kernels.packed,
        shapes,
        kernels.usage,
        position,
        0,
        choice,
        asker.priority,
        asker.created,
    )
    assert (kernels.usage == before).all()
    gone = sorted(holders[w].uid for w in choice.victims if w >= 0)
    expected = choose(queue, pod_sets, evict=lambda short, request: victims(queue, asker, short, request))
    return mode, level, gone, (kernels, choice, expected)


@rule(max_examples=150)
@given(worlds(), requests())
def test_victims_are_those_of_the_rules(world, pod_sets):
    """Mode, flavors, pods, victims of each request are those of the rules, and all that is in use stays in use."""
    nodes, asker = world
    for queue in [n for n in nodes if n.groups is not None]:
        mode, level, gone, (kernels, choice, expected) = ask(nodes, asker, queue, pod_sets)
        if expected.refused:
            assert mode == Mode.NO_FIT
            continue
        assert mode == MODES[expected.mode]
        if mode != Mode.NO_FIT:
            assert level == expected.level
            assert choice.pods.tolist() == expected.counts
            assert (choice.total == kernels.total(expected)).all()
            assert gone == expected.victims


def held(uid, queue, gpus, priority=0, **facts):
    """Work that holds GPUs of flavor a."""
    queue.used["a", "gpu"] = queue.used.get(("a", "gpu"), 0) + gpus
    return Holder(uid, queue, {("a", "gpu"): gpus}, priority, **facts)


def evicted(nodes, queue, asker, *pod_sets):
    """Whom a fixed case evicts; the rules must agree. The mode when it is nobody."""
    mode, _, gone, (_, _, expected) = ask(nodes, asker, queue, list(pod_sets))
    assert (mode, gone) == (MODES[expected.mode], expected.victims)
    return gone or Mode(mode).name


def lent(**policy):
    """A cohort of an owner of 4 GPUs and a borrower of none who has them all, in two pieces."""
    top = cohort()
    owner, borrower = gpus("owner", top, a=4), gpus("borrower", top, a=0)
    owner.policy = Preemption(**policy)
    return [top, owner, borrower], owner, borrower


def test_without_a_policy_nobody_goes():
    """Lent quota comes back only when its user ends."""
    nodes, owner, borrower = lent()
    assert evicted(nodes, owner, Asker(9, holders=[held("x", borrower, 4)]), pods(1)) == "WAITS"


def test_an_owner_gets_lent_quota_back_from_any_priority():
    """reclaimWithinCohort: Any, even from higher priority."""
    nodes, owner, borrower = lent(reclaim=Whom.ANY)
    assert evicted(nodes, owner, Asker(0, holders=[held("x", borrower, 4, priority=9)]), pods(1)) == ["x"]


def test_an_owner_gets_lent_quota_back_from_lower_priority_only():
    """reclaimWithinCohort: LowerPriority; a lender cannot take back from its equals."""
    nodes, owner, borrower = lent(reclaim=Whom.LOWER_PRIORITY)
    holders = [held("low", borrower, 2), held("same", borrower, 2, priority=1)]
    assert evicted(nodes, owner, Asker(1, holders=holders), pods(2)) == ["low"]
    assert evicted(nodes, owner, Asker(1, holders=holders), pods(3)) == "WAITS"


def test_nobody_within_its_own_quota_is_reclaimed_from():
    """Only what is used above nominal quota can be taken back."""
    top = cohort()
    mine, other = gpus("mine", top, a=2), gpus("other", top, a=2)
    mine.policy = Preemption(reclaim=Whom.ANY)
    holders = [held("x", other, 2)]
    assert evicted([top, mine, other], mine, Asker(9, holders=holders), pods(3)) == "NO_FIT"


def test_the_newest_of_equals_goes_first():
    """Of the same priority those that were admitted last go, then the smaller uid."""
    nodes, owner, borrower = lent(reclaim=Whom.ANY)
    holders = [held("old", borrower, 2, reserved=1), held("new", borrower, 2, reserved=2)]
    assert evicted(nodes, owner, Asker(holders=holders), pods(1)) == ["new"]
    holders[1].reserved = 1
    assert evicted(nodes, owner, Asker(holders=holders), pods(1)) == ["new"]  # "new" < "old"


def test_whoever_need_not_go_stays():
    """A small one that goes first is put back when a larger one has to go anyway."""
    nodes, owner, borrower = lent(reclaim=Whom.ANY)
    holders = [held("large", borrower, 3, priority=1), held("small", borrower, 1)]
    assert evicted(nodes, owner, Asker(holders=holders), pods(3)) == ["large"]


def test_a_queue_evicts_its_own_lower_priority():
    """withinClusterQueue: LowerPriority, and newer equals only where the policy has them."""
    mine = gpus("mine", a=2)
    holders = [held("low", mine, 1), held("same", mine, 1, priority=1, created=5)]
    for policy, expected in (
        (Whom.NEVER, "WAITS"),
        (Whom.LOWER_PRIORITY, "WAITS"),
        (Whom.LOWER_OR_NEWER_EQUAL_PRIORITY, ["low", "same"]),
    ):
        mine.policy = Preemption(within_queue=policy)
        asker = Asker(1, created=4, holders=holders)
        assert evicted([mine], mine, asker, pods(2)) == expected
    mine.policy = Preemption(within_queue=Whom.LOWER_PRIORITY)
    assert evicted([mine], mine, Asker(1, holders=holders), pods(1)) == ["low"]


def test_borrowing_by_eviction_needs_its_policy_and_a_lower_priority():
    """borrowWithinCohort: what is above nominal quota too, from lower priorities up to the threshold."""
    top = cohort()
    mine, other = gpus("mine", top, a=1), gpus("other", top, a=1)
    lender = gpus("lender", top, a=2)
    nodes = [top, mine, other, lender]
    holders = [held("x", other, 4, priority=2)]
    for policy, expected in (
        (Preemption(reclaim=Whom.LOWER_PRIORITY), "NO_FIT"),
        (Preemption(reclaim=Whom.LOWER_PRIORITY, borrowing=True), ["x"]),
        (Preemption(reclaim=Whom.LOWER_PRIORITY, borrowing=True, threshold=2), ["x"]),
        (Preemption(reclaim=Whom.LOWER_PRIORITY, borrowing=True, threshold=1), "WAITS"),
    ):
        mine.policy = policy
        assert evicted(nodes, mine, Asker(3, holders=holders), pods(2)) == expected


def test_the_right_over_others_comes_from_the_smaller_part_of_the_tree():
    """Within its own cohort's quota a queue takes back from outside even what it would have to borrow inside."""
    top = cohort("top")
    team = cohort("team", top)
    mine, mate = gpus("mine", team, a=1), gpus("mate", team, a=1)
    outside = gpus("outside", top, a=0)
    mine.policy = Preemption(reclaim=Whom.ANY)
    holders = [held("x", outside, 2, priority=9)]
    assert evicted([top, team, mine, mate, outside], mine, Asker(holders=holders), pods(2)) == ["x"]


def test_by_default_a_later_flavor_comes_before_an_eviction():
    """whenCanPreempt: TryNextFlavor looks on; MayStopSearch evicts in the first flavor."""
    mine = gpus("mine", a=1, b=1)
    holders = [held("low", mine, 1)]
    mine.policy = Preemption(within_queue=Whom.LOWER_PRIORITY)
    assert evicted([mine], mine, Asker(1, holders=holders), pods(1)) == "FITS"
    mine.policy = Preemption(within_queue=Whom.LOWER_PRIORITY, stop_search=True)
    assert evicted([mine], mine, Asker(1, holders=holders), pods(1)) == ["low"]


def test_preference_may_fool_kueue():
    """Lent quota of one resource is short and another is borrowed: the flavor passes as fitting, and is refused."""
    top = Node("top", None, {("a", "cpu"): Quota(1)})
    mine = Node("mine", top, {("a", "gpu"): Quota(1), ("a", "cpu"): Quota(0)}, groups=[(["gpu", "cpu"], ["a"])])
    other = gpus("other", top, a=0)
    mine.try_next, mine.policy = True, Preemption(rather_preempt=True)
    asker = Asker(holders=[held("x", other, 1)])
    mode, _, _, (_, _, expected) = ask([top, mine, other], asker, mine, [pods(1, cpu=1)])
    assert mode == Mode.NO_FIT
    assert expected.refused


def test_preference_may_put_eviction_before_borrowing():
    """preference: PreemptionOverBorrowing."""
    top = cohort(b=1)
    mine = gpus("mine", top, try_next=True, a=1, b=0)
    holders = [held("low", mine, 1)]
    mine.policy = Preemption(within_queue=Whom.LOWER_PRIORITY)
    assert evicted([top, mine], mine, Asker(1, holders=holders), pods(1)) == "FITS"
    mine.policy = Preemption(within_queue=Whom.LOWER_PRIORITY, rather_preempt=True)
    assert evicted([top, mine], mine, Asker(1, holders=holders), pods(1)) == ["low"]
