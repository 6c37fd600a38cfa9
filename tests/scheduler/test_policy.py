"""The policy: its defaults, its overrides, its mistakes; and what the scheduler makes of it."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_cluster import START, MemoryCluster

from scheduler.policy import BadPolicy, Policy, read_policy, schema
from scheduler.schema_docs import fields_table
from scheduler.settings import HOUR, MINUTE, Settings
from scheduler.snapshot import Snapshotter, snapshot
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.problem import State

DOCS = Path(__file__).parents[2] / "docs" / "policy.md"


def mistakes(text: str) -> list[str]:
    with pytest.raises(BadPolicy) as caught:
        read_policy(text)
    return [str(mistake) for mistake in caught.value.mistakes]


def test_nothing_configured() -> None:
    """The shortest policy is what the scheduler does without any."""
    made = read_policy("version: 1").settings()
    plain = Settings()
    differ = {name for name in vars(plain) if getattr(made, name) != getattr(plain, name)}
    assert differ == {"objective", "weight_cap"}  # written out, and the largest weight that is read anyway
    assert made.objective == (pb.LATE_WEIGHT, pb.TARDINESS, pb.START_TIMES, pb.STABILITY)


def test_overrides() -> None:
    """A queue has what is written for it, and the rest as all others."""
    policy = read_policy("""
version: 1
mode: observe
defaults: {deadline: 8h, duration: 10m}
weights: {default: 2, byPriorityClass: {urgent: 10, low: 0.5}, cap: 20}
estimates: {learn: false}
clusterQueues:
  research:
    mode: enforce
    estimates: {quantile: 0.9}
    defaults: {deadline: none}
    weights: {byPriorityClass: {urgent: 5}}
""")
    made = policy.settings()
    research, other = made.queue("research"), made.queue("other")
    assert (research.observed, other.observed) == (False, True)
    assert research.default_deadline is None
    assert other.default_deadline is not None
    assert (research.default_duration_ms, research.weight_cap) == (10 * MINUTE, 20)
    assert (research.class_weights, research.default_weight) == ({"urgent": 5, "low": 0.5}, 2)
    assert other.class_weights["urgent"] == 10
    assert (research.estimate_quantile, research.learn) == (0.9, False)
    assert (other.estimate_quantile, other.learn) == (0.5, False)


def test_every_mistake_is_told() -> None:
    """All mistakes at once, each with its line, its path and what is allowed."""
    said = mistakes("""version: 1
mode: observ
clusterQueues:
  research:
    defaults:
      duration: 90
    weights: {cap: -3}
  other: {modee: observe}
objective: [late]
budjet: 1s
reservations:
- {node: a, flavor: f, resource: cpu, amount: 4, start: 2026-12-01T06:00:00Z, end: 2026-12-01T05:00:00Z}
- {node: a, flavor: f, resource: cpu, amount: many, start: 2026-12-01T06:00:00Z, end: 2026-12-02T05:00:00Z}
""")
    for expected in (
        "line 2: mode: is 'observ'; must be 'enforce' or 'observe'",
        'line 6: clusterQueues.research.defaults.duration: "90" has no unit; write 90s, 90m, 90h or 90d',
        "line 7: clusterQueues.research.weights.cap: is -3; should be greater than or equal to 0",
        "line 8: clusterQueues.other.modee: is not known; did you mean mode?",
        "line 10: budjet: is not known; did you mean budget?",
    ):
        assert expected in said
    assert any(m.startswith("line 9: objective[0]: is 'late'; must be 'lateWeight'") for m in said)
    assert any(m.startswith("line 12: reservations[0]: ends at 2026-12-01T05:00:00Z, not after") for m in said)
    assert any(m.startswith("line 13: reservations[1]: 'many' is not a quantity") for m in said)
    assert len(said) == 8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; the shortest policy is: version: 1"),
        ("[]", "must be a mapping"),
        ("a: [", "line 1: is no YAML"),
        ("version: 1\nmode: observe\nmode: enforce", "line 3: is no YAML: mode is there twice"),
        ("{}", "version: is missing; write version: 1"),
        ("version: 2", "version: is 2; must be 1"),
        ("version: 1\nobjective: [peak, peak]", "objective lists peak twice"),
        ("version: 1\nbudget: [1s]", "budget: is ['1s']; must be a text"),
        ("version: 1\nweights: {default: .inf}", "weights.default"),
        ("version: 1\ncluster_queues: {}", "cluster_queues: is not known; did you mean clusterQueues?"),
        ("version: 1\nclusterQueues: {a: 3}", "clusterQueues.a: is 3; must be a mapping"),
        ("version: 1\ndefaults: {deadline: {}}", "defaults.deadline: is {}; must be a text"),
        ("version: 1\nx: !!python/object:os.system {}", "is no YAML"),
    ],
)
def test_a_mistake(text: str, message: str) -> None:
    """What cannot be meant is refused in words for the one who wrote it."""
    assert any(message in said for said in mistakes(text))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["version", "mode", "defaults", "deadline", "weights", "cap", "clusterQueues", "x"])
                | st.text(max_size=4),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
@settings(max_examples=150, deadline=None)
def test_any_junk_is_a_policy_or_a_mistake(data: Any) -> None:
    """Whatever is written, it is read or refused in words; nothing else happens."""
    with contextlib.suppress(BadPolicy):
        read_policy(yaml.safe_dump(data))


def test_what_is_shown_is_the_policy() -> None:
    """A policy with its defaults filled in reads as the same policy, and does not contain what nobody wrote."""
    policy = read_policy(
        "version: 1\nageing: never\nclusterQueues: {a: {mode: observe, defaults: {deadline: due 6:00 UTC}}}"
    )
    data = policy.as_data()
    assert data["clusterQueues"]["a"] == {
        "mode": "observe",
        "defaults": {"deadline": "due 06:00 UTC"},
        "weights": {"byPriorityClass": {}},
        "estimates": {},
    }
    assert read_policy(yaml.safe_dump(data)) == policy
    assert read_policy(json.dumps(data)) == policy


def test_schema_knows_every_field() -> None:
    """The schema refuses unknown keys as we do, describes each field, and gives defaults in the form of the file."""
    found = schema()
    for part in (found, *found["$defs"].values()):
        assert part["additionalProperties"] is False
        assert all(field.get("description") or "$ref" in field for field in part["properties"].values())
    assert found["properties"]["budget"]["default"] == "1s"
    assert found["$defs"]["Defaults"]["properties"]["deadline"]["default"] == "none"
    assert found["required"] == ["version"]
    json.dumps(found)


def test_the_page_has_every_field() -> None:
    """The table of docs/policy.md is what the schema says."""
    assert fields_table(schema()) in DOCS.read_text()


def test_examples_of_the_page_are_policies() -> None:
    """Every YAML block of docs/policy.md that is a policy reads as one."""
    blocks = [block.partition("```")[0] for block in DOCS.read_text().split("```yaml\n")[1:]]
    policies = [block for block in blocks if block.startswith("version:")]
    assert len(policies) >= 2
    for block in policies:
        assert isinstance(read_policy(block), Policy)


# --- what becomes of work ---------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster()
    cluster.queue()
    cluster.queue("other", local="other")
    return cluster


def goes_by(text: str) -> Settings:
    return read_policy("version: 1\n" + text).settings()


def test_defaults_of_work_that_says_nothing(cluster: MemoryCluster) -> None:
    """Deadline, run time and weight come from the queue's policy where the job says nothing, and only there."""
    cluster.job("plain")
    cluster.job("said", deadline="1h", duration="5m", weight="2")
    cluster.job("elsewhere", queue="other")
    going = goes_by("clusterQueues: {cq: {defaults: {deadline: 8h, duration: 10m}, weights: {default: 3}}}")
    items = {item.root.name: item for item in snapshot(cluster, going).items}
    found = {name: (item.deadline, item.estimate, item.weight) for name, item in items.items()}
    assert found == {
        "plain": (START + 8 * HOUR, 10 * MINUTE, 3),
        "said": (START + HOUR, 5 * MINUTE, 2),
        "elsewhere": (None, HOUR, 1),
    }


def test_defaults_are_for_our_work_only(cluster: MemoryCluster) -> None:
    """Work of namespaces that are not opted in gets no deadline from us."""
    cluster.put({"kind": "Namespace", "metadata": {"name": "free", "labels": {}}})
    cluster.put({"kind": "LocalQueue", "metadata": {"name": "lq", "namespace": "free"}, "spec": {"clusterQueue": "cq"}})
    cluster.job("theirs", namespace="free", gates="")
    cluster.job("ours", gates="")
    items = {item.root.name: item.deadline for item in snapshot(cluster, goes_by("defaults: {deadline: 8h}")).items}
    assert items == {"theirs": None, "ours": START + 8 * HOUR}


def test_weights_by_priority_class(cluster: MemoryCluster) -> None:
    """A class has the weight of the table, never its number; the annotation goes before it."""
    for name, annotations in (("a", {}), ("b", {"weight": "2"}), ("c", {})):
        cluster.job(name, **annotations)
        reference = {"name": "urgent" if name != "c" else "unknown", "kind": "WorkloadPriorityClass"}
        cluster.edit(
            "Workload", cluster.key_of(name), lambda w, r=reference: w["spec"].update(priorityClassRef=r, priority=1000)
        )
    going = goes_by("weights: {byPriorityClass: {urgent: 10}}")
    assert {item.root.name: item.weight for item in snapshot(cluster, going).items} == {"a": 10, "b": 2, "c": 1}


def test_weights_are_capped(cluster: MemoryCluster) -> None:
    """More than the queue's cap counts as the cap, and the owner hears it; the table is not bound by it."""
    cluster.job("greedy", weight="50")
    cluster.job("modest", weight="2")
    seen = snapshot(cluster, goes_by("weights: {default: 9, cap: 5}"))
    assert {item.root.name: item.weight for item in seen.items} == {"greedy": 5, "modest": 2}
    (complaint,) = seen.complaints
    assert (complaint.target.name, complaint.reason) == ("greedy", "WeightCapped")
    assert "counts as 5" in complaint.message


def test_a_policy_counts_from_the_next_look(cluster: MemoryCluster) -> None:
    """Work that is known already is judged anew when the settings are others."""
    cluster.job("plain")
    taker = Snapshotter(goes_by(""))
    assert taker.take(cluster).items[0].deadline is None
    taker.settings = goes_by("defaults: {deadline: 8h}")
    assert taker.take(cluster).items[0].deadline == START + 8 * HOUR


def test_reservations_and_levels_reach_the_planner(cluster: MemoryCluster) -> None:
    """Objective, thresholds and reservations are in the request; a reservation that is over or for no queue is not."""
    cluster.job("plain")
    going = goes_by("""
objective: [peak, lateWeight]
stabilityThreshold: 0.5
ageing: never
preemption: wait
engine: greedy
reservations:
- {node: cq, flavor: gpu, resource: nvidia.com/gpu, amount: 2, start: 2027-01-15T08:00:00Z, end: 2027-01-15T10:00:00Z}
- {node: cq, flavor: gpu, resource: nvidia.com/gpu, amount: 2, start: 2020-01-15T08:00:00Z, end: 2020-01-15T10:00:00Z}
- {node: gone, flavor: gpu, resource: nvidia.com/gpu, amount: 2, start: 2027-01-15T08:00:00Z, end: 2027-01-15T10:00:00Z}
""")
    request = snapshot(cluster, going).request
    assert list(request.policy.objective) == [pb.PEAK, pb.LATE_WEIGHT]
    assert (request.policy.stability_threshold, request.policy.ageing_ms) == (0.5, 0)
    assert (request.policy.engine, request.policy.preemption) == (pb.GREEDY, pb.WAIT)
    (kept,) = request.reservations
    assert (kept.node, kept.amount) == ("cq", 2)
    assert int(decode(request).busy.amount.sum()) == 2


def test_observed_queues(cluster: MemoryCluster) -> None:
    """Gated work of an observed queue is stranded at once, ungated work is Kueue's; other queues are as before."""
    cluster.job("gated")
    cluster.job("free", gates="")
    cluster.job("elsewhere", queue="other")
    seen = snapshot(cluster, goes_by("clusterQueues: {cq: {mode: observe}}"))
    assert {item.root.name: item.state for item in seen.items} == {"free": State.FOREIGN, "elsewhere": State.PENDING}
    (lost,) = seen.stranded
    assert (lost.item.root.name, lost.reason, lost.confirmed) == ("gated", "QueueObserved", True)
