"""The simulated cluster behaves as Kueue was measured to behave."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.annotations import format_duration
from scheduler.cluster import GATE, GATES_ANNOTATION, Cluster, Reference, Release
from scheduler.facts import read_workload
from scheduler.loop import Loop
from scheduler.planner_client import InlinePlanner
from scheduler.settings import Settings
from simulator import manifests
from simulator.clock import VirtualClock
from simulator.cluster import SimulatedCluster
from simulator.timeline import GPU, Record, Timeline
from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan

START = 1_800_000_000_000
SECOND = 1_000
MINUTE = 60 * SECOND


def cluster(*teams: list[dict[str, Any]], gating: bool = False, **options: Any) -> SimulatedCluster:
    """A cluster with one flavor and the given teams (default: one with 4 GPUs)."""
    simulated = SimulatedCluster(VirtualClock(START), gating=gating, **options)
    simulated.create(manifests.flavor())
    for item in [item for team in teams or [manifests.team()] for item in team]:
        simulated.create(item)
    return simulated


def solve(request: pb.PlanRequest) -> pb.PlanResponse:
    """A plan, made in this process."""
    problem = decode(request)
    return encode(problem, plan(problem, request.policy, request.budget, request.seed))


def workload_of(simulated: SimulatedCluster, job: Reference) -> Any:
    """The Workload of a job."""
    return next(
        item
        for item in simulated.objects("Workload").values()
        if item["metadata"]["labels"]["kueue.x-k8s.io/job-uid"] == job.uid
    )


def reason_of(simulated: SimulatedCluster, job: Reference) -> tuple[str, str]:
    """Reason and message of the QuotaReserved condition of a job's Workload."""
    conditions = workload_of(simulated, job)["status"]["conditions"]
    return next((c["reason"], c["message"]) for c in conditions if c["type"] == "QuotaReserved")


def run_until_started(simulated: SimulatedCluster, key: str) -> None:
    """Let time pass until a job's pods run."""
    while simulated.timeline.records[key].started is None:
        assert simulated.wait(60)


def held(timeline: Timeline, at: int, namespace: str | None = None) -> int:
    """GPUs that are held just after an instant."""
    return sum(
        r.amounts[GPU]
        for r in timeline.records.values()
        if namespace in (None, r.namespace) and r.admitted is not None
        if r.admitted <= at and (r.finished is None or at < r.finished)
    )


def test_it_is_a_cluster() -> None:
    """The control loop may use it wherever it may use a real cluster."""
    simulated: Cluster = cluster()
    assert simulated.now() == START


# --- what was measured -----------------------------------------------------------------------------------------------


def gap(records: list[Record]) -> float:
    """Seconds from the end of the first pair's pods to the start of the second pair's."""
    first, second = records[:2], records[2:]
    return (min(r.started or 0 for r in second) - max(r.ended or 0 for r in first)) / SECOND


def test_plain_kueue_leaves_gpus_idle_for_about_two_seconds_between_jobs() -> None:
    """The seed example as measured on Kueue 0.17: 2.1 to 2.2 s from the pods' end to the next pods' start."""
    simulated = cluster()
    for name in "abcd":
        simulated.create(manifests.job(name, 2, 10 * SECOND))
    simulated.run()
    assert 2.05 < gap(list(simulated.timeline.records.values())) < 2.25
    assert simulated.timeline.peak() == 4
    assert 23.2 < simulated.timeline.makespan() < 23.6


def test_a_release_right_on_finished_leaves_them_idle_for_little_more_than_one() -> None:
    """The seed example with releases on Finished, as measured: about 1.2 s."""
    simulated = cluster(gating=True)
    jobs = [simulated.create(manifests.job(name, 2, 10 * SECOND)) for name in "abcd"]
    released = 0
    while simulated.clock.next() is not None or released < len(jobs):
        finished = sum(r.finished is not None for r in simulated.timeline.records.values())
        while released < min(len(jobs), finished + 2):
            assert simulated.release(jobs[released]).release is Release.DONE
            released += 1
        simulated.wait(60)
    assert 1.1 < gap(list(simulated.timeline.records.values())) < 1.3
    assert simulated.timeline.peak() == 4


def test_a_fresh_release_is_tried_at_once_while_what_did_not_fit_waits_for_the_batch() -> None:
    """A parked Workload comes back a second after quota was freed; one that is released meanwhile overtakes it."""
    simulated = cluster(gating=True)
    long, parked, late = (simulated.create(manifests.job(name, 4, 10 * SECOND)) for name in ("a", "b", "c"))
    simulated.release(long)
    simulated.release(parked)
    while simulated.timeline.records["research/a"].finished is None:
        simulated.wait(60)
    reason, message = reason_of(simulated, parked)
    assert reason == "Pending"
    assert message.startswith("couldn't assign flavors to pod set main: insufficient unused quota for ")
    assert message.endswith("nvidia.com/gpu in flavor gpu, 4 more needed")
    simulated.release(late)
    simulated.run()
    by_name = simulated.timeline.records
    freed = by_name["research/a"].finished or 0
    assert (by_name["research/c"].admitted or 0) - freed < 100
    freed = by_name["research/c"].finished or 0
    assert 1_000 <= (by_name["research/b"].admitted or 0) - freed < 1_100


# --- rules -----------------------------------------------------------------------------------------------------------

jobs_of_one_queue = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=8)


@given(jobs_of_one_queue)
@settings(deadline=None, max_examples=60)
def test_plain_kueue_is_first_come_first_served_with_skips(jobs: list[tuple[int, int]]) -> None:
    """A younger job is admitted before an older one only when the older one does not fit at that moment."""
    simulated = cluster()
    for number, (gpus, minutes) in enumerate(jobs):
        simulated.create(manifests.job(f"job-{number}", gpus, minutes * MINUTE))
    simulated.run()
    records = list(simulated.timeline.records.values())
    for younger in records:
        assert younger.admitted is not None
        free = 4 - held(simulated.timeline, younger.admitted) + younger.amounts[GPU]
        for older in records[: records.index(younger)]:
            assert older.admitted is not None
            assert older.admitted < younger.admitted or older.amounts[GPU] > free


@given(jobs_of_one_queue)
@settings(deadline=None, max_examples=30)
def test_a_strict_queue_never_lets_anyone_pass(jobs: list[tuple[int, int]]) -> None:
    """With StrictFIFO jobs are admitted in the order in which they were created."""
    simulated = cluster(manifests.team(strict=True))
    for number, (gpus, minutes) in enumerate(jobs):
        simulated.create(manifests.job(f"job-{number}", gpus, minutes * MINUTE))
    simulated.run()
    admitted = [r.admitted for r in simulated.timeline.records.values()]
    assert None not in admitted
    assert admitted == sorted(a or 0 for a in admitted)


limits = st.none() | st.integers(0, 6)


@st.composite
def two_teams(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[tuple[int, dict[str, Any]]]]:
    """Two teams in a cohort with limits, and their jobs with the instant at which each comes."""
    nominal = {"red": draw(st.integers(1, 6)), "blue": draw(st.integers(1, 6))}
    lending = {name: draw(limits.map(lambda v, n=n: None if v is None else min(v, n))) for name, n in nominal.items()}
    teams = [
        {"name": name, "gpus": gpus, "borrowing_limit": draw(limits), "lending_limit": lending[name]}
        for name, gpus in nominal.items()
    ]
    jobs = draw(
        st.lists(
            st.tuples(st.sampled_from(["red", "blue"]), st.integers(1, 8), st.integers(1, 200), st.integers(0, 200)),
            max_size=10,
        )
    )
    arrivals = [
        (START + come * SECOND, manifests.job(f"job-{number}", gpus, run * SECOND, namespace=team))
        for number, (team, gpus, run, come) in enumerate(jobs)
    ]
    return teams, arrivals


@given(two_teams(), st.booleans())
@settings(deadline=None, max_examples=60)
def test_quota_is_never_exceeded_and_each_job_runs_once(
    world: tuple[list[dict[str, Any]], list[tuple[int, dict[str, Any]]]], gating: bool
) -> None:
    """Whatever comes when, gated or not: nobody holds more than quota, lending and borrowing limits allow, and every
    job that could ever fit runs exactly once, for as long as it said."""
    teams, arrivals = world
    simulated = cluster(*(manifests.team(cohort="all", **team) for team in teams), gating=gating)
    created: list[Reference] = []
    for at, item in arrivals:
        simulated.clock.at(at, lambda item=item: created.append(simulated.create(item)))
    while simulated.clock.next() is not None:
        simulated.wait(3600)
        for job in created:
            assert simulated.release(job).release in (Release.DONE, Release.NOT_GATED, Release.GONE)
        created.clear()

    timeline, most = simulated.timeline, {}
    for team, other in (teams, teams[::-1]):
        lent = other["gpus"] if other["lending_limit"] is None else other["lending_limit"]
        limit = lent if team["borrowing_limit"] is None else min(lent, team["borrowing_limit"])
        most[team["name"]] = team["gpus"] + limit
    for record in timeline.records.values():
        for at in (record.admitted, record.finished):
            if at is not None:
                assert held(timeline, at) <= sum(team["gpus"] for team in teams)
                assert all(held(timeline, at, name) <= limit for name, limit in most.items())
        fits = record.amounts[GPU] <= most[record.namespace]
        assert record.starts == int(fits)
        if fits:
            assert record.started is not None
            assert record.ended is not None
            text = format_duration(record.ended - record.started)
            item = next(item for _, item in arrivals if item["metadata"]["name"] == record.name)
            assert item["metadata"]["annotations"]["punctual.kueue/duration"] == text
            assert record.finished is not None


def test_the_same_run_twice_is_the_same() -> None:
    """Two runs of the same jobs, with noise, give the same timeline."""

    def run() -> Timeline:
        simulated = cluster(noise=0.5, seed=3)
        for number in range(12):
            simulated.create(manifests.job(f"job-{number}", 1 + number % 3, 10 * MINUTE))
        simulated.run()
        return simulated.timeline

    assert run() == run()


def test_higher_priority_goes_first() -> None:
    """A job of a higher priority class is admitted before older ones."""
    simulated = cluster()
    simulated.create(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": "high"},
            "value": 9,
        }
    )
    simulated.create(manifests.job("first", 4, MINUTE))
    run_until_started(simulated, "research/first")
    simulated.create(manifests.job("low", 4, MINUTE))
    simulated.create(manifests.job("high", 4, MINUTE, labels={"kueue.x-k8s.io/priority-class": "high"}))
    simulated.run()
    admitted = {r.name: r.admitted or 0 for r in simulated.timeline.records.values()}
    assert admitted["first"] < admitted["high"] < admitted["low"]


# --- gates -----------------------------------------------------------------------------------------------------------


def test_a_gated_job_waits_and_holds_nothing() -> None:
    """With the gate on, a job is not tried, although there is room, and says why."""
    simulated = cluster(gating=True)
    job = simulated.create(manifests.job("a", 2, MINUTE))
    simulated.run()
    assert simulated.timeline.records["research/a"].admitted is None
    assert reason_of(simulated, job) == ("AdmissionGated", "Admission is gated by: punctual.kueue/plan")
    assert simulated.objects("Job")["research/a"]["metadata"]["annotations"][GATES_ANNOTATION] == GATE


def test_a_gate_of_somebody_else_stays() -> None:
    """Releasing takes our gate off and no other; the job goes on waiting for the other one."""
    simulated = cluster(gating=True)
    job = simulated.create(manifests.job("a", 2, MINUTE, annotations={GATES_ANNOTATION: "example.com/budget"}))
    simulated.run()
    assert simulated.release(job).release is Release.DONE
    simulated.run()
    assert simulated.objects("Job")["research/a"]["metadata"]["annotations"][GATES_ANNOTATION] == "example.com/budget"
    assert simulated.timeline.records["research/a"].admitted is None


def test_what_can_go_wrong_with_a_release() -> None:
    """A release says when there was no gate, the object is gone or another one, or the gate comes off elsewhere."""
    simulated = cluster(gating=True)
    job = simulated.create(manifests.job("a", 2, MINUTE))
    simulated.run()
    workload = workload_of(simulated, job)["metadata"]
    owned = Reference("Workload", workload["namespace"], workload["name"], workload["uid"])
    assert simulated.release(owned).release is Release.REFUSED
    assert simulated.release(Reference("Job", "research", "a", "another")).release is Release.GONE
    assert simulated.release(job).release is Release.DONE
    assert simulated.release(job).release is Release.NOT_GATED
    simulated.delete(job)
    assert simulated.release(job).release is Release.GONE


def test_jobs_of_unmanaged_namespaces_get_no_gate() -> None:
    """Only namespaces with the label are ours."""
    simulated = cluster(gating=True)
    namespace = dict(simulated.objects("Namespace")["research"])
    simulated.replace({**namespace, "metadata": {"name": "research", "labels": {}}})
    simulated.create(manifests.job("a", 2, MINUTE))
    simulated.run()
    assert simulated.timeline.records["research/a"].on_time is None
    assert simulated.timeline.records["research/a"].finished is not None


# --- objects ---------------------------------------------------------------------------------------------------------


def test_admission_is_written_as_kueue_writes_it() -> None:
    """The status of an admitted Workload has queue, count, flavors and totals, and the snapshot's reader reads them."""
    simulated = cluster(manifests.team(flavors={"gpu": 2, "old": 4}))
    simulated.create(manifests.flavor("old"))
    job = simulated.create(manifests.job("a", 2, MINUTE, pods=2))
    run_until_started(simulated, "research/a")
    workload = workload_of(simulated, job)
    assert workload["status"]["admission"] == {
        "clusterQueue": "research",
        "podSetAssignments": [{"name": "main", "count": 2, "flavors": {GPU: "old"}, "resourceUsage": {GPU: "4"}}],
    }
    facts = read_workload(workload)
    assert facts.admission is not None
    assert facts.admission.usage == (("old", GPU, 4, 2),)
    assert simulated.objects("Job")["research/a"]["spec"]["suspend"] is False


def test_the_first_listed_flavor_that_fits_is_taken() -> None:
    """Kueue's default: the first flavor in the queue's order in which the request fits."""
    simulated = cluster(manifests.team(flavors={"gpu": 2, "old": 4}))
    simulated.create(manifests.flavor("old"))
    jobs = [simulated.create(manifests.job(name, 2, MINUTE)) for name in "ab"]
    simulated.run()
    taken = [workload_of(simulated, job)["status"]["admission"]["podSetAssignments"][0]["flavors"] for job in jobs]
    assert taken == [{GPU: "gpu"}, {GPU: "old"}]


def test_a_finished_job_looks_finished() -> None:
    """Job and Workload have the conditions that Kubernetes and Kueue give them."""
    simulated = cluster()
    job = simulated.create(manifests.job("a", 2, MINUTE))
    simulated.run()
    status = simulated.objects("Job")["research/a"]["status"]
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} == {"SuccessCriteriaMet", "Complete"}
    assert status["succeeded"] == 1
    assert read_workload(workload_of(simulated, job)).finished


def test_a_job_waits_for_its_queue_to_exist() -> None:
    """Without its LocalQueue a job is inadmissible; it starts when the queue appears."""
    namespace, cluster_queue, local_queue = manifests.team()
    simulated = cluster([namespace, cluster_queue])
    job = simulated.create(manifests.job("a", 2, MINUTE))
    simulated.run()
    assert reason_of(simulated, job)[0] == "Inadmissible"
    simulated.create(local_queue)
    simulated.run()
    assert simulated.timeline.records["research/a"].finished is not None


def test_a_held_queue_starts_nothing_and_stops_nothing() -> None:
    """With stopPolicy Hold what runs goes on, what waits waits, until the queue is opened again."""
    _, queue, _ = manifests.team()
    simulated = cluster()
    simulated.create(manifests.job("a", 4, MINUTE))
    waits = simulated.create(manifests.job("b", 4, MINUTE))
    run_until_started(simulated, "research/a")
    simulated.replace({**queue, "spec": {**queue["spec"], "stopPolicy": "Hold"}})
    simulated.run()
    assert simulated.timeline.records["research/a"].finished is not None
    assert reason_of(simulated, waits)[0] == "Inadmissible"
    simulated.replace(queue)
    simulated.run()
    assert simulated.timeline.records["research/b"].finished is not None


def test_more_quota_lets_waiting_work_in() -> None:
    """Raising the quota starts what waits, about a second later, and what runs goes on counting."""
    simulated = cluster()
    for name in "abc":
        simulated.create(manifests.job(name, 4, MINUTE))
    simulated.clock.after(10 * SECOND, lambda: simulated.replace(manifests.team(gpus=8)[1]))
    simulated.run()
    admitted = [(r.admitted or 0) - START for r in simulated.timeline.records.values()]
    assert 11 * SECOND <= admitted[1] < 11_500
    assert admitted[2] > MINUTE


def test_deleting_a_running_job_frees_its_quota() -> None:
    """A deleted job runs no more, and its quota goes to the next."""
    simulated = cluster()
    job = simulated.create(manifests.job("a", 4, 60 * MINUTE))
    simulated.create(manifests.job("b", 4, MINUTE))
    simulated.clock.after(10 * SECOND, lambda: simulated.delete(job))
    simulated.run()
    records = simulated.timeline.records
    assert records["research/a"].ended is None
    assert 11 * SECOND <= (records["research/b"].admitted or 0) - START < 12 * SECOND
    assert list(simulated.objects("Job")) == ["research/b"]
    assert len(simulated.objects("Workload")) == 1


def test_a_queue_gets_back_by_eviction_what_it_has_lent() -> None:
    """The owner's job is admitted a second after Kueue evicted the borrower's, which then begins anew."""
    owner, borrower = manifests.team("owner", 4, cohort="all", reclaims=True), manifests.team("other", 0, cohort="all")
    simulated = cluster(owner, borrower)
    simulated.create(manifests.job("lent", 4, MINUTE, namespace="other"))
    simulated.clock.after(10 * SECOND, lambda: simulated.create(manifests.job("mine", 4, MINUTE, namespace="owner")))
    simulated.run()
    mine, lent = (simulated.timeline.records[key] for key in ("owner/mine", "other/lent"))
    assert 11 * SECOND < mine.started - START < 12 * SECOND
    assert [run.freed - START < 11.5 * SECOND for run in lent.lost] == [True]
    assert lent.started > mine.finished
    assert lent.ended == lent.started + MINUTE
    assert simulated.timeline.peak() == 4
    assert 300 > simulated.timeline.idle(4) >= 0


def test_what_is_released_into_lent_quota_evicts_the_borrower() -> None:
    """The control loop releases the owner's job into quota that is lent, unless the policy prefers to wait."""
    for policy, evictions in ((pb.HONOUR, 1), (pb.WAIT, 0)):
        owner, borrower = (
            manifests.team("owner", 4, cohort="all", reclaims=True),
            manifests.team("other", 0, cohort="all"),
        )
        simulated = cluster(owner, borrower, gating=True)
        loop = Loop(simulated, InlinePlanner(solve), Settings(preemption=policy, engine=pb.GREEDY))
        simulated.create(manifests.job("lent", 4, MINUTE, namespace="other"))
        simulated.clock.after(
            10 * SECOND, lambda here=simulated: here.create(manifests.job("mine", 4, MINUTE, namespace="owner"))
        )
        while (
            any(r.finished is None for r in simulated.timeline.records.values()) or len(simulated.timeline.records) < 2
        ):
            simulated.wait(loop.step().pause)
        mine, lent = (simulated.timeline.records[key] for key in ("owner/mine", "other/lent"))
        assert len(lent.lost) == evictions
        assert (mine.started < START + 20 * SECOND) == bool(evictions)


def test_an_ownerless_workload_runs_too() -> None:
    """A Workload without a Job is gated, released, admitted and finished all the same."""
    simulated = cluster(gating=True)
    pods = {"name": "main", "count": 1, "template": manifests.job("x", 2, MINUTE)["spec"]["template"]}
    manifest = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "Workload",
        "metadata": {"name": "w", "namespace": "research", "annotations": {"punctual.kueue/duration": "5m"}},
        "spec": {"queueName": manifests.QUEUE, "podSets": [pods]},
    }
    workload = simulated.create(manifest)
    simulated.run()
    assert simulated.timeline.records["research/w"].admitted is None
    assert simulated.release(workload).release is Release.DONE
    simulated.run()
    record = simulated.timeline.records["research/w"]
    assert record.started is not None
    assert record.ended == record.started + 5 * MINUTE
    assert read_workload(simulated.objects("Workload")["research/w"]).finished


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (manifests.job("a", 1, MINUTE, namespace="nowhere"), "namespace nowhere does not exist"),
        (manifests.job("a", 1, MINUTE, labels={"kueue.x-k8s.io/queue-name": ""}), "names no queue"),
        (manifests.flavor(), "exists already"),
    ],
)
def test_nonsense_is_refused(manifest: dict[str, Any], message: str) -> None:
    """What an apiserver would refuse is refused, with a message."""
    with pytest.raises(ValueError, match=message):
        cluster().create(manifest)


# --- run times and time ----------------------------------------------------------------------------------------------


def test_pods_run_for_what_their_annotation_says_once_for_each_wave() -> None:
    """The real run time comes from the pod template; more completions than pods at a time take several waves."""
    simulated = cluster()
    manifest = manifests.job("a", 1, 10 * MINUTE, runs=3 * MINUTE, pods=2)
    manifest["spec"]["completions"] = 5
    simulated.create(manifest)
    simulated.run()
    record = simulated.timeline.records["research/a"]
    assert record.started is not None
    assert record.ended == record.started + 9 * MINUTE


def test_noise_moves_run_times_but_not_between_runs() -> None:
    """With noise jobs take longer or shorter than estimated, by their name: the same in every order."""
    spans = []
    for names in ("abcdef", "fedcba"):
        simulated = cluster(noise=0.5)
        for name in names:
            simulated.create(manifests.job(name, 2, 10 * MINUTE))
        simulated.run()
        spans.append({r.name: (r.ended or 0) - (r.started or 0) for r in simulated.timeline.records.values()})
    assert spans[0] == spans[1]
    assert min(spans[0].values()) < 10 * MINUTE < max(spans[0].values())


def test_waiting_takes_virtual_time_up_to_the_next_change() -> None:
    """wait() returns True at the next change, or False when the time is over; nobody really waits."""
    simulated = cluster()
    assert simulated.wait(5)  # the queues were made
    assert simulated.now() == START
    assert not simulated.wait(3600)
    assert simulated.now() == START + 3600 * SECOND
    simulated.create(manifests.job("a", 1, 10 * MINUTE))
    assert simulated.wait(3600)
    assert simulated.now() == START + 3600 * SECOND


def test_objects_are_a_copy_that_later_changes_leave_alone() -> None:
    """What objects() returned stays as it was."""
    simulated = cluster()
    simulated.create(manifests.job("a", 1, MINUTE))
    before = simulated.objects("Job")
    simulated.run()
    assert "conditions" not in before["research/a"]["status"]
    assert (
        before["research/a"]["metadata"]["resourceVersion"]
        != simulated.objects("Job")["research/a"]["metadata"]["resourceVersion"]
    )


def test_owners_are_told() -> None:
    """Events and annotations arrive where they were sent."""
    simulated = cluster()
    job = simulated.create(manifests.job("a", 1, MINUTE))
    simulated.event(job, "Normal", "Planned", "starts soon")
    simulated.annotate(job, {"punctual.kueue/planned-start": "soon", "punctual.kueue/duration": None})
    assert simulated.events == [(START, job, "Normal", "Planned", "starts soon")]
    assert simulated.objects("Job")["research/a"]["metadata"]["annotations"] == {"punctual.kueue/planned-start": "soon"}


def test_what_a_limit_range_adds_counts() -> None:
    """Containers get the defaults of a LimitRange in their namespace: two jobs that say nothing share four GPUs."""
    simulated = cluster()
    limits = {"limits": [{"type": "Container", "default": {GPU: "2"}}]}
    simulated.create({"kind": "LimitRange", "metadata": {"name": "gpus", "namespace": manifests.TEAM}, "spec": limits})
    jobs = []
    for name in "abc":
        job = manifests.job(name, gpus=0, duration=MINUTE)
        del job["spec"]["template"]["spec"]["containers"][0]["resources"]
        jobs.append(simulated.create(job))
    run_until_started(simulated, f"{manifests.TEAM}/b")
    assert [reason_of(simulated, job)[0] for job in jobs] == ["QuotaReserved", "QuotaReserved", "Pending"]
