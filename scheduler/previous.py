"""The plan in force as part of the next request: so that the next plan keeps its starts, and its flavors."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.items import Item
from scheduler.plans import PlanInForce
from solver.api import planner_pb2 as pb


def add_previous(request: pb.PlanRequest, items: Sequence[Item], plan: PlanInForce) -> None:
    """Add what a plan says about the rows of a request, as far as it knows them.

    Flavors and resources that the request does not have any more are left out of it; who had them gets others.
    """
    placed = [(row, plan.placements[item.uid]) for row, item in enumerate(items) if item.uid in plan.placements]
    flavors = {flavor.name: position for position, flavor in enumerate(request.quota.flavors)}
    resources = {name: position for position, name in enumerate(request.quota.resources)}
    position: dict[int, int] = {}
    """By identity: placements of one plan share what is equal."""
    previous = request.previous
    for _, placement in placed:
        if id(placement.flavors) not in position:
            position[id(placement.flavors)] = len(position)
            known = [(f, r) for r, f in placement.flavors.items() if f in flavors and r in resources]
            previous.assignments.add(flavors=[flavors[f] for f, _ in known], resources=[resources[r] for _, r in known])
    previous.workload.extend([row for row, _ in placed])
    previous.start_ms.extend([placement.start for _, placement in placed])
    previous.assignment.extend([position[id(placement.flavors)] for _, placement in placed])
