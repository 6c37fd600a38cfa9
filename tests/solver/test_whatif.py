"""What would make late work on time: changes that are shown to do so, and proofs that no plan does."""

from small_requests import NOW, SECOND, add, request

from solver.api import planner_pb2 as pb
from solver.decode import decode
from solver.encode import encode
from solver.planner import plan
from solver.verify import verify
from solver.whatif import Answer, Kind, what_if


def solve(asked: pb.PlanRequest) -> pb.PlanResponse:
    """A plan that has passed the verifier."""
    asked.budget.work_limit = 20
    response = encode(problem := decode(asked), plan(problem, asked.policy, asked.budget, asked.seed), asked.policy)
    assert verify(asked, response.plan, response.objective) == []
    return response


def answer(asked: pb.PlanRequest, row: int) -> Answer:
    """What is known about a row, which is late."""
    response = solve(asked)
    assert response.plan.tardiness_ms[list(response.plan.workload).index(row)] > 0
    return what_if(asked, response, row, solve)


def two() -> pb.PlanRequest:
    """Two jobs that each need all four GPUs for ten seconds; the second cannot wait for the first."""
    asked = request({"q": 4})
    add(asked, 4, 10 * SECOND, due=10 * SECOND, weight=3)
    add(asked, 4, 10 * SECOND, due=15 * SECOND)
    return asked


def test_a_job_that_comes_too_late_behind_another() -> None:
    """A later deadline, four more GPUs, or more weight than the other one's, which is late then."""
    changes = {change.kind: change for change in answer(two(), 1).changes}
    assert changes[Kind.DEADLINE].finish == NOW + 20 * SECOND
    assert (changes[Kind.QUOTA].amounts, changes[Kind.QUOTA].finish) == ({0: 4}, NOW + 10 * SECOND)
    assert (changes[Kind.WEIGHT].weight, changes[Kind.WEIGHT].late) == (3, (0,))
    assert changes.keys() == {Kind.DEADLINE, Kind.QUOTA, Kind.WEIGHT}


def test_half_the_size_for_twice_as_long() -> None:
    """Beside another job there is room for half of it, and time enough."""
    asked = request({"q": 4})
    add(asked, 2, 20 * SECOND, due=20 * SECOND, weight=3)
    add(asked, 4, 5 * SECOND, due=19 * SECOND)
    (size,) = [change for change in answer(asked, 1).changes if change.kind is Kind.SIZE]
    assert (size.part, size.finish) == (0.5, NOW + 10 * SECOND)


def test_another_flavor() -> None:
    """A flavor that its pods rule out would have room."""
    asked = two()
    asked.quota.flavors.add(name="other")
    asked.quota.cluster_queues[0].resource_groups[0].flavors.add(flavor=1).resources.add(resource=0, nominal=4)
    asked.shapes[0].pod_sets[0].excluded_flavors.append(1)
    (flavor,) = [change for change in answer(asked, 1).changes if change.kind is Kind.FLAVOR]
    assert (flavor.flavor, flavor.finish) == (1, NOW + 10 * SECOND)


def test_what_is_proved_to_be_impossible() -> None:
    """Behind work that runs longer than there is time no plan has it on time; nor one that is too long by itself."""
    asked = request({"q": 4})
    add(asked, 4, 60 * SECOND, state=pb.RUNNING)
    add(asked, 4, 10 * SECOND, due=50 * SECOND)
    behind = answer(asked, 1)
    assert behind.impossible
    assert {change.kind for change in behind.changes} == {Kind.DEADLINE, Kind.QUOTA}
    asked = request({"q": 4})
    add(asked, 4, 10 * SECOND, due=5 * SECOND)
    assert answer(asked, 0) == Answer((behind.changes[0].__class__(Kind.DEADLINE, NOW + 10 * SECOND),), True)


def test_the_request_stays_as_it_was() -> None:
    """Trying changes changes nothing."""
    asked = two()
    asked.budget.work_limit = 20
    before = asked.SerializeToString(deterministic=True)
    answer(asked, 1)
    assert asked.SerializeToString(deterministic=True) == before
