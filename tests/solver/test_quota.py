"""The quota kernels say what Kueue's rules say, restated plainly in ``naive_quota``."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_quota import Node, PodSet, Quota, choose, compile_tree, retry

import solver.choose as kernel
from solver.choose import Mode
from solver.explain import explain, quantity
from solver.quota import available, fits, take

RESOURCES = ["cpu", "gpu", "pods"]
FLAVORS = ["a", "b", "c"]
MODES = {"no": Mode.NO_FIT, "waits": Mode.WAITS, "preempts": Mode.PREEMPTS, "fits": Mode.FITS}

rule = partial(settings, deadline=None)  # the first call compiles

small = st.integers(0, 8)
limits = st.one_of(st.none(), small)


@st.composite
def groups(draw):
    """Resource groups of a queue: each resource and each flavor in one of them at most."""
    covered = draw(st.lists(st.sampled_from(RESOURCES), min_size=1, unique=True))
    offered = draw(st.permutations(FLAVORS))[: draw(st.integers(1, 3))]
    if len(covered) > 1 and len(offered) > 1 and draw(st.booleans()):
        return [(covered[:1], offered[:1]), (covered[1:], offered[1:])]
    return [(covered, offered)]


@st.composite
def trees(draw):
    """Cohorts up to four deep, queues at any of them or alone, any quotas, and any use: debts occur."""
    nodes = []
    for k in range(draw(st.integers(0, 4))):
        parent = draw(st.sampled_from([None, *nodes]))
        nodes.append(Node(f"cohort-{k}", parent, draw(quotas([(f, r) for f in FLAVORS for r in RESOURCES], parent))))
    cohorts = [None, *nodes]
    for k in range(draw(st.integers(1, 4))):
        parent = draw(st.sampled_from(cohorts))
        offer = draw(groups())
        cells = [(f, r) for resources, flavors in offer for f in flavors for r in resources]
        queue = Node(f"queue-{k}", parent, draw(quotas(cells, parent, all_cells=True)), groups=offer)
        queue.try_next = draw(st.booleans())
        queue.used = draw(st.dictionaries(st.sampled_from([(f, r) for f in FLAVORS for r in RESOURCES]), small))
        nodes.append(queue)
    return nodes


@st.composite
def quotas(draw, cells, parent, all_cells=False):
    chosen = cells if all_cells else draw(st.lists(st.sampled_from(cells), unique=True, max_size=4))
    limit = limits if parent is not None else st.none()
    return {cell: Quota(draw(small), draw(limit), draw(limit)) for cell in chosen}


@st.composite
def requests(draw):
    """One to three pod sets; one of them may be cut."""
    pod_sets = [
        PodSet(
            draw(st.integers(1, 5)),
            draw(st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.integers(0, 3), min_size=1)),
            frozenset(draw(st.sets(st.sampled_from(FLAVORS), max_size=1))),
        )
        for _ in range(draw(st.integers(1, 3)))
    ]
    if draw(st.booleans()):
        pod_set = draw(st.sampled_from(pod_sets))
        pod_set.minimum = draw(st.integers(1, pod_set.count))
    return pod_sets


class Kernels:
    """A naive tree as the kernels see it, with its use laid into the usage table."""

    def __init__(self, nodes):
        self.nodes = nodes
        self.queues = [n for n in nodes if n.groups is not None]
        self.tree = compile_tree(nodes, RESOURCES, FLAVORS)
        self.packed = kernel.pack_queues(self.tree)
        self.usage = self.tree.no_usage()
        for queue in self.queues:
            for (flavor, resource), amount in queue.used.items():
                take(self.tree.arrays, self.usage, nodes.index(queue), self.cell(flavor, resource), amount)

    def cell(self, flavor, resource):
        return self.tree.cell(FLAVORS.index(flavor), RESOURCES.index(resource))

    def shapes(self, *shapes):
        """Requests as the kernels see them."""
        return kernel.pack_shapes(
            self.tree,
            [
                [
                    SimpleNamespace(
                        count=p.count,
                        min_count=p.minimum or 0,
                        resources=[RESOURCES.index(r) for r in p.requests],
                        amounts=list(p.requests.values()),
                        excluded_flavors=[FLAVORS.index(f) for f in p.excluded],
                    )
                    for p in shape
                ]
                for shape in shapes
            ],
        )

    def total(self, answer):
        total = np.zeros(self.tree.cells, dtype=np.int64)
        for cell, amount in answer.total.items():
            total[self.cell(*cell)] = amount
        return total

    def flavors(self, queue, pod_sets, choice):
        """The kernels' flavors by pod set and resource, in names."""
        groups = self.queues[queue].groups
        named = []
        for row, pod_set in enumerate(pod_sets):
            flavors = {}
            for g, (resources, _) in enumerate(groups):
                for resource in resources:
                    if resource in pod_set.requests or resource == "pods":
                        flavors[resource] = FLAVORS[choice.flavor[row, g]]
            named.append(flavors)
        return named


@rule(max_examples=100)
@given(trees())
def test_available_is_what_the_rules_say(nodes):
    """At every node and cell, whatever is in use, the kernel's available is the rules' one; no parent's is clamped."""
    kernels = Kernels(nodes)
    for position, node in enumerate(nodes):
        for flavor in FLAVORS:
            for resource in RESOURCES:
                cell = kernels.cell(flavor, resource)
                assert kernels.usage[position, cell] == node.usage((flavor, resource))
                got = available(kernels.tree.arrays, kernels.usage, position, cell)
                assert got == node.available((flavor, resource))
                assert kernels.tree.potential[position, cell] == node.potential((flavor, resource))


@rule(max_examples=100)
@given(trees(), st.data())
def test_give_back_undoes_take(nodes, data):
    """What is taken and given back in any order leaves the use of every node as it was."""
    kernels = Kernels(nodes)
    before = kernels.usage.copy()
    takes = data.draw(
        st.lists(st.tuples(st.sampled_from(kernels.queues), st.integers(0, kernels.tree.cells - 1), small), max_size=6)
    )
    for queue, cell, amount in takes:
        take(kernels.tree.arrays, kernels.usage, nodes.index(queue), cell, amount)
    for queue, cell, amount in data.draw(st.permutations(takes)):
        take(kernels.tree.arrays, kernels.usage, nodes.index(queue), cell, -amount)
    assert (kernels.usage == before).all()


@rule(max_examples=100)
@given(trees(), st.dictionaries(st.integers(0, 8), st.integers(0, 10), min_size=1))
def test_fits_means_every_amount_is_available(nodes, need):
    """A request fits when each amount is at most what is available, and a debt counts as nothing available."""
    kernels = Kernels(nodes)
    cells, amounts = np.array(list(need), dtype=np.int32), np.array(list(need.values()), dtype=np.int64)
    for queue in kernels.queues:
        expected = all(
            amount <= max(0, queue.available((FLAVORS[cell // 3], RESOURCES[cell % 3])))
            for cell, amount in need.items()
        )
        assert fits(kernels.tree.arrays, kernels.usage, nodes.index(queue), cells, amounts) == expected


@rule(max_examples=200)
@given(trees(), requests())
def test_choose_is_what_the_rules_say(nodes, pod_sets):
    """Mode, level, flavors, pods and totals of a first attempt are those of the rules."""
    kernels = Kernels(nodes)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes)
    for position, queue in enumerate(kernels.queues):
        expected = choose(queue, pod_sets)
        mode, level = kernel.choose(kernels.tree.arrays, kernels.packed, shapes, kernels.usage, position, 0, choice)
        assert mode == MODES[expected.mode]
        if mode != Mode.NO_FIT:
            assert level == expected.level
            assert choice.pods.tolist() == expected.counts
            assert (choice.total == kernels.total(expected)).all()
        if mode == Mode.FITS:
            assert kernels.flavors(position, pod_sets, choice) == expected.flavors


@rule(max_examples=150)
@given(trees(), requests())
def test_retry_goes_on_from_the_next_flavor(nodes, pod_sets):
    """The attempts of the cycles that follow, and their number, are those of the rules."""
    kernels = Kernels(nodes)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes)
    for position, queue in enumerate(kernels.queues):
        expected, attempts = retry(queue, pod_sets, 6)
        mode, _, attempt = kernel.retry(
            kernels.tree.arrays, kernels.packed, shapes, kernels.usage, position, 0, choice, 6
        )
        assert (mode, attempt) == (MODES[expected.mode], attempts)
        if mode == Mode.FITS:
            assert kernels.flavors(position, pod_sets, choice) == expected.flavors


@rule(max_examples=100)
@given(trees(), requests())
def test_claim_takes_what_was_chosen(nodes, pod_sets):
    """After a claim each cell of the queue has what the pod sets of the choice ask for, and the cohorts their part."""
    kernels = Kernels(nodes)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes)
    for position, queue in enumerate(kernels.queues):
        answer = choose(queue, pod_sets)
        kernel.choose(kernels.tree.arrays, kernels.packed, shapes, kernels.usage, position, 0, choice)
        if answer.mode == "fits":
            kernel.claim(kernels.tree.arrays, kernels.usage, kernels.packed.node[position], choice.total)
            for cell, amount in answer.total.items():
                queue.used[cell] = queue.used.get(cell, 0) + amount
    for position, node in enumerate(nodes):
        for flavor in FLAVORS:
            for resource in RESOURCES:
                assert kernels.usage[position, kernels.cell(flavor, resource)] == node.usage((flavor, resource))


def answer(nodes, queue, *pod_sets):
    """Mode, level, first pod set's flavors …, pods of a first attempt on a fixed case; the rules must agree."""
    kernels = Kernels(nodes)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes)
    position = kernels.queues.index(queue)
    mode, level = kernel.choose(kernels.tree.arrays, kernels.packed, shapes, kernels.usage, position, 0, choice)
    assert MODES[choose(queue, list(pod_sets)).mode] == mode
    if mode != Mode.FITS:
        return Mode(mode).name
    return level, [f.get("gpu") for f in kernels.flavors(position, pod_sets, choice)], choice.pods.tolist()


def gpus(name, parent=None, used=0, try_next=False, **quotas):
    """A queue with GPUs only; ``a=(nominal, lendingLimit, borrowingLimit)`` for each flavor in order."""
    quotas = {(f, "gpu"): Quota(*(q if isinstance(q, tuple) else (q,))) for f, q in quotas.items()}
    queue = Node(name, parent, quotas, groups=[(["gpu"], [f for f, _ in quotas])], try_next=try_next)
    queue.used = {("a", "gpu"): used} if used else {}
    return queue


def cohort(name="all", parent=None, **quotas):
    """A cohort with GPU quotas of its own."""
    return Node(name, parent, {(f, "gpu"): Quota(*(q if isinstance(q, tuple) else (q,))) for f, q in quotas.items()})


def pods(count, gpu=1, minimum=None, excluded=(), **more):
    """A pod set of ``count`` pods with so many GPUs each."""
    return PodSet(count, {"gpu": gpu} | more, frozenset(excluded), minimum)


def test_without_a_lending_limit_all_is_lent():
    """A queue borrows all of what its neighbour does not use."""
    top = cohort()
    mine, other = gpus("mine", top, a=2), gpus("other", top, a=3)
    assert answer([top, mine, other], mine, pods(5)) == (1, ["a"], [5])


def test_a_lending_limit_keeps_the_rest_private():
    """Of 3 GPUs with lendingLimit 1, others may have 1; the owner all 3."""
    top = cohort()
    mine, other = gpus("mine", top, a=2), gpus("other", top, a=(3, 1))
    assert answer([top, mine, other], mine, pods(3)) == (1, ["a"], [3])
    assert answer([top, mine, other], mine, pods(4)) == "NO_FIT"
    assert answer([top, mine, other], other, pods(5)) == (1, ["a"], [5])


def test_a_borrowing_limit_counts_from_the_subtree():
    """A cohort of 2 + 2 GPUs with borrowingLimit 1 gets 5 of its parent's tree, whatever its own nominal quota is."""
    top = cohort("top", a=10)
    middle = cohort("middle", top, a=(2, None, 1))
    mine = gpus("mine", middle, a=2)
    assert answer([top, middle, mine], mine, pods(5)) == (2, ["a"], [5])
    assert answer([top, middle, mine], mine, pods(6)) == "NO_FIT"


def test_a_cohort_in_debt_eats_private_quota():
    """Quota cut below use: what the cohort owes is taken from the part that its child does not lend."""
    top = cohort()
    mine, other = gpus("mine", top, a=(4, 0)), gpus("other", top, used=3, a=0)
    assert answer([top, mine, other], mine, pods(1)) == (0, ["a"], [1])
    assert answer([top, mine, other], mine, pods(2)) == "WAITS"


def test_a_debt_above_all_private_quota_leaves_nothing():
    """Available is below zero then, and counts as zero."""
    top = cohort()
    mine, other = gpus("mine", top, a=(4, 0)), gpus("other", top, used=9, a=0)
    assert answer([top, mine, other], mine, pods(1)) == "WAITS"
    assert answer([top, mine, other], mine, pods(1, gpu=0)) == (0, ["a"], [1])


def test_listed_with_nothing_can_be_borrowed_and_not_listed_cannot():
    """A flavor with nominal 0 is borrowed; one that the queue does not list is not, though the cohort has it."""
    top = cohort(a=4, b=4)
    mine = gpus("mine", top, b=0)
    assert answer([top, mine], mine, pods(4)) == (1, ["b"], [4])
    assert answer([top, mine], mine, pods(4, excluded="b")) == "NO_FIT"


def test_use_of_a_flavor_taken_out_goes_on_counting():
    """A queue that runs on a flavor it no longer lists still takes it from the others of its cohort."""
    top = cohort()
    gone, mine = gpus("gone", top, used=3, b=1), gpus("mine", top, a=4)
    assert answer([top, gone, mine], mine, pods(1)) == (0, ["a"], [1])
    assert answer([top, gone, mine], mine, pods(2)) == "WAITS"


def test_by_default_the_first_flavor_that_fits_even_by_borrowing():
    """MayStopSearch: borrowed quota of the first flavor comes before own quota of the second."""
    top = cohort(a=4)
    mine = gpus("mine", top, a=1, b=4)
    assert answer([top, mine], mine, pods(2)) == (1, ["a"], [2])


def test_try_next_flavor_prefers_not_to_borrow():
    """TryNextFlavor: own quota of the second flavor comes before borrowed quota of the first."""
    top = cohort(a=4)
    mine = gpus("mine", top, try_next=True, a=1, b=4)
    assert answer([top, mine], mine, pods(2)) == (0, ["b"], [2])


def test_try_next_flavor_borrows_least_far():
    """When every flavor must be borrowed: from the nearest cohort, the earlier flavor of equals."""
    top = cohort("top", a=4)
    middle = cohort("middle", top, b=4, c=4)
    mine = gpus("mine", middle, try_next=True, a=0, b=0, c=0)
    assert answer([top, middle, mine], mine, pods(2)) == (1, ["b"], [2])


def test_an_early_pod_set_takes_the_flavor_that_a_later_one_needs():
    """Pod sets are placed greedily; the next attempt goes on from the next flavor."""
    mine = gpus("mine", a=2, b=2)
    request = [pods(2), pods(2, excluded="b")]
    assert answer([mine], mine, *request) == "NO_FIT"
    found, attempts = retry(mine, request, 5)
    assert (found.mode, attempts) == ("fits", 2)


def test_pod_sets_add_up():
    """What earlier pod sets took counts for the later ones."""
    mine = gpus("mine", a=3, b=2)
    assert answer([mine], mine, pods(2), pods(2)) == (0, ["a", "b"], [2, 2])
    assert answer([mine], mine, pods(2), pods(2), pods(2)) == "NO_FIT"


def test_pods_count_where_they_are_covered():
    """A queue that covers pods admits no more of them, however small they are; all in the pod set's flavor."""
    mine = Node("mine", None, {("a", "pods"): Quota(3), ("a", "gpu"): Quota(9)}, groups=[(["gpu", "pods"], ["a"])])
    assert answer([mine], mine, pods(3)) == (0, ["a"], [3])
    assert answer([mine], mine, pods(4)) == "NO_FIT"


def test_all_resources_of_a_group_come_in_one_flavor():
    """No flavor has both: enough GPUs in one and enough CPUs in another is not enough."""
    quotas = {("a", "gpu"): Quota(4), ("a", "cpu"): Quota(1), ("b", "gpu"): Quota(1), ("b", "cpu"): Quota(4)}
    mine = Node("mine", None, quotas, groups=[(["gpu", "cpu"], ["a", "b"])])
    assert answer([mine], mine, pods(2, cpu=1)) == "NO_FIT"


def test_each_group_has_a_flavor_of_its_own():
    """GPUs come in one flavor and CPUs in another when they are in different groups."""
    quotas = {("a", "gpu"): Quota(4), ("b", "cpu"): Quota(1), ("c", "cpu"): Quota(4)}
    mine = Node("mine", None, quotas, groups=[(["gpu"], ["a"]), (["cpu"], ["b", "c"])])
    assert choose(mine, [pods(2, cpu=1)]).flavors == [{"gpu": "a", "cpu": "c"}]
    assert answer([mine], mine, pods(2, cpu=1)) == (0, ["a"], [2])


def test_a_resource_that_no_group_covers_never_fits():
    """… unless nothing of it is asked for."""
    mine = gpus("mine", a=4)
    assert answer([mine], mine, pods(1, cpu=1)) == "NO_FIT"
    assert answer([mine], mine, pods(1, cpu=0)) == (0, ["a"], [1])


def test_partial_admission_takes_as_many_pods_as_fit():
    """10 pods, 3 at least, 6 GPUs: 6 pods; with 2 GPUs it waits."""
    assert answer([q := gpus("mine", a=6)], q, pods(10, minimum=3)) == (0, ["a"], [6])
    assert answer([q := gpus("mine", a=2)], q, pods(10, minimum=3)) == "NO_FIT"


def test_partial_admission_comes_after_all_flavors():
    """All pods in the second flavor come before some in the first."""
    mine = gpus("mine", a=6, b=10)
    assert answer([mine], mine, pods(10, minimum=3)) == (0, ["b"], [10])


@pytest.mark.parametrize(("minimum", "admitted"), [(1, 2), (3, 6)])
def test_partial_admission_searches_as_kueue_does(minimum, admitted):
    """Fewer pods may fit worse (4 take what the second pod set needs): a binary search then misses the best number."""
    mine = gpus("mine", a=4, b=6)
    assert answer([mine], mine, pods(7, minimum=minimum), pods(2, excluded="b"))[2] == [admitted, 2]


def why(nodes, queue, *pod_sets):
    """Why it does not fit."""
    kernels = Kernels(nodes)
    shapes = kernels.shapes(pod_sets)
    choice = kernel.blank(kernels.packed, shapes)
    position = kernels.queues.index(queue)
    kernel.choose(kernels.tree.arrays, kernels.packed, shapes, kernels.usage, position, 0, choice)
    return explain(kernels.tree, kernels.packed, shapes, kernels.usage, position, 0, choice)


def test_reasons_are_in_kueues_words():
    """What is missing now, what can never be, what is ruled out and what nothing covers, each as Kueue says it."""
    top = cohort()
    mine, other = gpus("mine", top, used=1, a=2, b=1), gpus("other", top, a=1)
    assert why([top, mine, other], mine, pods(1), pods(3, excluded="b")) == [
        [],
        [
            "flavor b is ruled out by node affinity or an untolerated taint",
            "insufficient quota for gpu in flavor a, previously considered podsets requests (1) + "
            "current podset request (3) > maximum capacity (3)",
        ],
    ]
    assert why([top, mine, other], mine, pods(1, cpu=1)) == [["resource cpu unavailable in ClusterQueue"]]
    mine = gpus("mine", used=2, a=3)
    assert why([mine], mine, pods(2), pods(2)) == [
        ["insufficient unused quota for gpu in flavor a, 1 more needed"],
        [
            "insufficient quota for gpu in flavor a, previously considered podsets requests (2) + "
            "current podset request (2) > maximum capacity (3)"
        ],
    ]


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", 0, "0"),
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", 4_000_000, "4k"),
        ("memory", 1, "1"),
        ("memory", 1_500_000, "1500k"),
        ("memory", 128_000, "125Ki"),
        ("memory", 1536 << 20, "1536Mi"),
        ("memory", 2 << 30, "2Gi"),
        ("hugepages-2Mi", 1 << 21, "2Mi"),
        ("nvidia.com/gpu", 2048, "2048"),
        ("nvidia.com/gpu", 3000, "3k"),
    ],
)
def test_quantities_are_written_as_kubernetes_does(resource, value, text):
    """Amounts in reasons look like those in manifests."""
    assert quantity(resource, value) == text


def test_an_option_is_found_by_its_totals():
    """The option that takes exactly what was chosen, else none."""
    need = np.array([0, 2, 3, 5], dtype=np.int32)
    cell = np.array([0, 1, 3, 0, 3], dtype=np.int32)
    amount = np.array([2, 1, 2, 1, 1], dtype=np.int64)
    for total, option in (
        ([2, 1, 0, 0], 0),
        ([0, 0, 0, 2], 1),
        ([1, 0, 0, 1], 2),
        ([1, 0, 0, 2], -1),
        ([2, 0, 0, 0], -1),
    ):
        assert kernel.option_of(np.array(total, dtype=np.int64), 0, 3, need, cell, amount) == option
