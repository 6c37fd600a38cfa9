"""Plans in plain words."""

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.annotations import format_instant
from scheduler.forecast import Forecast, Row, forecast, to_json
from scheduler.plans import BadPlan
from scheduler.snapshot import Snapshot, snapshot
from scheduler.still import StillCluster
from scheduler.workloads import workload_for
from solver.api import planner_pb2 as pb

NOW = 1_800_000_000_000
HOUR = 3_600_000
GPU = "nvidia.com/gpu"


def view(*jobs: dict[str, Any], queues: list[dict[str, Any]] | None = None) -> StillCluster:
    """A namespace ``ns`` whose LocalQueue ``gpus`` leads to a ClusterQueue ``cq`` with 4 GPUs, and gated jobs."""
    still = StillCluster(NOW)
    still.by_kind["Namespace"]["ns"] = {
        "metadata": {"name": "ns", "uid": "ns", "labels": {"punctual.kueue/managed": "true"}}
    }
    still.by_kind["ResourceFlavor"]["gpu"] = {"metadata": {"name": "gpu", "uid": "gpu"}}
    for item in queues or [cluster_queue("cq")]:
        still.by_kind[item["kind"]][item["metadata"]["name"]] = item
    still.by_kind["LocalQueue"]["ns/gpus"] = {
        "metadata": {"name": "gpus", "namespace": "ns", "uid": "gpus"},
        "spec": {"clusterQueue": "cq"},
    }
    for item in jobs:
        workload = workload_for(item, {})
        workload["metadata"]["uid"] = item["metadata"]["name"]
        workload["status"] = item.pop("workload", {})
        still.by_kind["Job"]["ns/" + item["metadata"]["name"]] = item
        still.by_kind["Workload"]["ns/" + workload["metadata"]["name"]] = workload
    return still


def cluster_queue(name: str, gpus: int = 4, **spec: Any) -> dict[str, Any]:
    """A ClusterQueue with GPUs of one flavor."""
    quotas = [{"name": "gpu", "resources": [{"name": GPU, "nominalQuota": gpus}]}]
    groups = [{"coveredResources": [GPU], "flavors": quotas}]
    return {
        "kind": "ClusterQueue",
        "metadata": {"name": name, "uid": name},
        "spec": {"namespaceSelector": {}, "resourceGroups": groups, **spec},
    }


def job(name: str, gpus: int = 2, hours: int = 1, gates: str = "punctual.kueue/plan", **wishes: str) -> dict[str, Any]:
    """A job that was created an hour ago."""
    annotations = {"punctual.kueue/duration": f"{hours}h", "kueue.x-k8s.io/admission-gated-by": gates}
    annotations |= {f"punctual.kueue/{name.replace('_', '-')}": value for name, value in wishes.items()}
    pod = {"containers": [{"name": "main", "resources": {"requests": {GPU: gpus}}}]}
    return {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"job {name}",
            "creationTimestamp": format_instant(NOW - HOUR),
            "labels": {"kueue.x-k8s.io/queue-name": "gpus"},
            "annotations": {key: value for key, value in annotations.items() if value},
        },
        "spec": {"template": {"spec": pod}},
    }


def running(name: str, gpus: int, hours: int, since: int, **wishes: str) -> dict[str, Any]:
    """A job that has quota since so many hours."""
    at = {"lastTransitionTime": format_instant(NOW - since * HOUR), "status": "True"}
    assignment = {"name": "main", "count": 1, "flavors": {GPU: "gpu"}, "resourceUsage": {GPU: str(gpus)}}
    return job(name, gpus, hours, gates="", **wishes) | {
        "workload": {
            "conditions": [{"type": "QuotaReserved", **at}, {"type": "Admitted", **at}],
            "admission": {"clusterQueue": "cq", "podSetAssignments": [assignment]},
        }
    }


def respond(seen: Snapshot, starts: Mapping[str, float], **reasons: str) -> pb.PlanResponse:
    """A response: hours from now at which jobs start, by name, in the order of admission; reasons by name."""
    rows = {item.root.name: row for row, item in enumerate(seen.items)}
    response = pb.PlanResponse()
    response.objective.engine = "by hand"
    for name, hours in starts.items():
        row = rows[name]
        start = NOW + round(hours * HOUR)
        finish = start + seen.request.workloads.duration_ms[row]
        due = seen.request.workloads.due_ms[row]
        amounts = seen.request.shapes[seen.request.workloads.shape[row]].pod_sets[0].amounts
        response.plan.workload.append(row)
        response.plan.start_ms.append(start)
        response.plan.finish_ms.append(finish)
        response.plan.not_before_ms.append(0)
        response.plan.tardiness_ms.append(max(0, finish - due) if due else 0)
        response.plan.reason.append(reasons.get(name, "ROOM_NOW" if hours == 0 else "WAITS_FOR_QUOTA"))  # type: ignore[arg-type]
        response.plan.assignment.append(len(response.plan.assignments))
        response.plan.assignments.add(flavors=[0], resources=[0], amounts=amounts)
    return response


def planned(still: StillCluster, starts: Mapping[str, float], **reasons: str) -> Forecast:
    """The forecast of a plan made by hand."""
    seen = snapshot(still)
    return forecast(seen, respond(seen, starts, **reasons), lambda instant: format_instant(instant)[11:16])


def rows(result: Forecast) -> dict[str, Row]:
    """Rows by the name of their job."""
    return {row.item.root.name: row for row in result.rows}


def test_a_plan_becomes_rows_in_the_order_of_admission() -> None:
    """What runs comes first, then what is planned, in order, with start, end, slack and flavor."""
    still = view(job("b", deadline="4h"), job("a"), running("r", 2, 2, since=1, deadline="3h"))
    result = planned(still, {"b": 0, "a": 1})
    assert [row.name for row in result.rows] == ["ns/r", "ns/b", "ns/a"]
    assert result.order == ("ns/b", "ns/a")
    by_name = rows(result)
    assert by_name["r"].start == NOW - HOUR
    assert by_name["r"].finish == NOW + HOUR
    assert by_name["r"].on_time is True
    assert by_name["r"].reason == "running since 07:00"
    assert by_name["b"].slack == 2 * HOUR
    assert by_name["b"].on_time is True
    assert by_name["a"].on_time is None
    assert by_name["a"].slack is None
    assert by_name["a"].flavors == {GPU: "gpu"}
    assert by_name["a"].amounts == {GPU: 2}


def test_the_reason_names_the_quota_that_is_in_use() -> None:
    """Who waits for quota reads how much of what is in use, and until when."""
    result = planned(view(running("r", 4, 2, since=1), job("a")), {"a": 1})
    assert rows(result)["a"].reason == "waits for quota: 4 of 4 nvidia.com/gpu in flavor gpu in use until 09:00"


def test_quota_that_other_planned_work_takes_counts_as_in_use() -> None:
    """Work that starts earlier by the same plan is part of what is in use; what ended before is not."""
    result = planned(view(job("a", 4), job("b", 3), job("c", 2)), {"a": 0, "b": 1, "c": 2})
    assert rows(result)["c"].reason == "waits for quota: 3 of 4 nvidia.com/gpu in flavor gpu in use until 10:00"


def test_in_a_cohort_the_reason_names_the_part_that_is_full() -> None:
    """If the cohort as a whole is full, it is named; if only the queue's own limit binds, the queue is."""
    shared = [cluster_queue("cq", 4, cohortName="all"), cluster_queue("other", 4, cohortName="all")]
    result = planned(view(running("r", 7, 2, since=1), job("a"), queues=shared), {"a": 1})
    expected = "waits for quota: 7 of 8 nvidia.com/gpu in flavor gpu in cohort all in use until 09:00"
    assert rows(result)["a"].reason == expected
    shared[0]["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = 1
    result = planned(view(running("r", 4, 2, since=1), job("a"), queues=shared), {"a": 1})
    expected = "waits for quota: 4 of 5 nvidia.com/gpu in flavor gpu in queue cq in use until 09:00"
    assert rows(result)["a"].reason == expected


def test_who_waits_although_there_is_room_is_told_so() -> None:
    """Nothing is in use, so quota is not the reason."""
    result = planned(view(job("a")), {"a": 1})
    assert rows(result)["a"].reason == "waits its turn: the room is kept for others"


@pytest.mark.parametrize(
    ("reason", "start", "expected"),
    [
        ("ROOM_NOW", 0, "starts now: there is room"),
        ("WAITS_FOR_RELEASE_DATE", 1, "not before 09:00"),
        ("LATE_ALREADY", 0, "late by 1h30m: it could not meet its deadline even without others; starts now"),
        ("LATE_NO_ROOM", 0.5, "late by 2h: others that are due sooner or weigh more take the room; waits its turn"),
        ("RELEASED", 0, "released: Kueue admits it next"),
        ("NOT_OURS", 0, "not managed by Punctual: Kueue admits it in its own order"),
    ],
)
def test_each_reason_has_its_words(reason: str, start: float, expected: str) -> None:
    """Every reason of the planner's contract is put into words."""
    result = planned(view(job("a", hours=2, deadline="90m")), {"a": start}, a=reason)
    assert rows(result)["a"].reason.startswith(expected)


def test_work_that_outlives_its_estimate_is_told() -> None:
    """Running longer than estimated is said; it is expected to go on."""
    row = rows(planned(view(running("r", 2, 1, since=3)), {}))["r"]
    assert row.reason == "running since 05:00, longer than estimated"
    assert row.finish is not None
    assert row.finish > NOW


def test_late_work_is_late_in_every_form() -> None:
    """Late is what ends after its deadline, running or planned, or has no place in the plan."""
    still = view(running("r", 1, 9, since=1, deadline="2h"), job("a", deadline="90m"), job("big", 9, deadline="8h"))
    result = planned(still, {"a": 1})
    assert {row.item.root.name for row in result.late()} == {"r", "a", "big"}
    big = rows(result)["big"]
    assert big.start is None
    assert big.reason.startswith("not planned: ")


def test_work_whose_queue_is_missing_has_a_row() -> None:
    """A job that no plan can have says why, among the others."""
    lost = job("lost", deadline="8h")
    lost["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "nowhere"
    row = rows(planned(view(lost, job("a")), {"a": 0}))["lost"]
    assert row.reason == "not planned: LocalQueue ns/nowhere does not exist"
    assert row.on_time is False


def test_gates_of_others_are_named() -> None:
    """Work that somebody else holds too is planned, and says so."""
    result = planned(view(job("a", gates="example.com/budget,punctual.kueue/plan")), {"a": 0})
    assert rows(result)["a"].reason.endswith("; also gated by example.com/budget")


def test_the_peak_is_what_is_in_use_at_once() -> None:
    """Running and planned work count while they run; what ends when another starts does not count with it."""
    still = view(running("r", 1, 2, since=1), job("a", 3), job("b", 2))
    assert planned(still, {"a": 0, "b": 1}).peak == {"gpu": {GPU: 4}}
    assert planned(still, {"b": 0}).peak == {"gpu": {GPU: 3}}


def test_json_has_the_promised_shape() -> None:
    """Keys and instants (RFC 3339, UTC) are what the documentation promises."""
    told = to_json(planned(view(job("a", deadline="4h"), job("big", 9)), {"a": 0}))
    assert told["now"] == "2027-01-15T08:00:00Z"
    assert told["order"] == ["ns/a"]
    assert told["workloads"][0] == {
        "namespace": "ns",
        "name": "a",
        "queue": "gpus",
        "clusterQueue": "cq",
        "state": "pending",
        "start": "2027-01-15T08:00:00Z",
        "finish": "2027-01-15T09:00:00Z",
        "deadline": "2027-01-15T11:00:00Z",
        "flavor": {GPU: "gpu"},
        "onTime": True,
        "reason": "starts now: there is room",
    }
    assert told["workloads"][1]["start"] is None
    assert told["peak"] == {"gpu": {GPU: "2"}}
    assert told["bound"] == 0
    assert told["gap"] == 0
    assert told["engine"] == "by hand"


def test_a_response_that_makes_no_sense_is_refused() -> None:
    """A plan for rows that are not there is not shown."""
    seen = snapshot(view(job("a")))
    response = respond(seen, {"a": 0})
    response.plan.workload[0] = 7
    with pytest.raises(BadPlan):
        forecast(seen, response)
