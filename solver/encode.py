"""Plan → response of the contract, column by column."""

from __future__ import annotations

import numpy as np

from solver.api import planner_pb2 as pb
from solver.moves import moves
from solver.plan import Plan
from solver.problem import Problem
from solver.quota import Int32s
from solver.reasons import reasons
from solver.worth import levels, worth


def encode(
    problem: Problem,
    plan: Plan,
    policy: pb.Policy | None = None,
    *,
    final: bool = True,
    timing: pb.Timing | None = None,
) -> pb.PlanResponse:
    """Write a valued plan.

    Parameters
    ----------
    policy
        Whose objective levels are reported; the default levels without it.
    final
        Whether it is the last plan of its call.
    timing
        Where the time went.
    """
    policy = policy or pb.Policy()
    response = pb.PlanResponse(final=final, timing=timing)
    _encode_plan(problem, plan, response.plan)
    for level, value in zip(levels(policy), worth(problem, plan, policy), strict=True):
        response.objective.levels.add(level=level, value=value)
    response.objective.bound = plan.bound
    response.objective.gap = plan.gap(problem)
    response.objective.engine = plan.engine
    for row in problem.rejected:
        response.rejections.add(
            workload=row.row, id=problem.ids[row.row], field=row.field, message=row.message, kind=row.kind
        )
    for queue, message in problem.tree.frozen.items():
        response.frozen_queues.add(name=problem.tree.queue_names[queue], message=message)
    if (problem.previous >= 0).any():
        _encode_moves(problem, plan, response.moves)
    response.notes.extend(problem.notes)
    return response


def _encode_moves(problem: Problem, plan: Plan, out: pb.Moves) -> None:
    moved = moves(problem, plan)
    out.workload.extend(problem.row[moved.row].tolist())
    out.from_ms.extend((problem.previous[moved.row] + problem.now).tolist())
    out.to_ms.extend((plan.start[moved.row] + problem.now).tolist())
    out.reason.extend(moved.reason.tolist())
    out.cause.extend(np.where(moved.cause >= 0, problem.row[moved.cause] + 1, 0).tolist())


def _encode_plan(problem: Problem, plan: Plan, out: pb.Plan) -> None:
    order, now = plan.order(problem), problem.now
    start, due = plan.start[order], problem.due[order]
    finish = start + problem.length(plan.option)[order]
    used, assignment = np.unique(plan.option[order], return_inverse=True)
    out.workload.extend(problem.row[order].tolist())
    out.start_ms.extend((start + now).tolist())
    out.not_before_ms.extend(np.where(plan.not_before[order] > 0, plan.not_before[order] + now, 0).tolist())
    out.finish_ms.extend((finish + now).tolist())
    out.assignment.extend(assignment.tolist())
    out.tardiness_ms.extend(np.maximum(0, finish - due).tolist())
    out.reason.extend(reasons(problem, plan)[order].tolist())
    _encode_assignments(problem, used, out)


def _encode_assignments(problem: Problem, used: Int32s, out: pb.Plan) -> None:
    options, pods, resources = problem.options, problem.packing.pods, len(problem.tree.resources)
    for option in used.tolist():
        k = slice(options.need[option], options.need[option + 1])
        known = slice(pods.first[option], pods.first[option + 1])
        if known.start == known.stop:
            flavor, resource = np.divmod(options.cell[k], resources)
            amounts = options.amount[k].tolist()
            out.assignments.add(flavors=flavor.tolist(), resources=resource.tolist(), amounts=amounts)
            continue
        on_nodes, several = pods.cell[known].tolist(), pods.pods[known].tolist()
        plain = dict(zip(options.cell[k].tolist(), options.amount[k].tolist(), strict=True))
        for cell in set(on_nodes):
            del plain[cell]
        cells = [*on_nodes, *plain]
        out.assignments.add(
            flavors=[cell // resources for cell in cells],
            resources=[cell % resources for cell in cells],
            amounts=[*(pods.size[known] * pods.pods[known]).tolist(), *plain.values()],
            pods=[*several, *(0 for _ in plain)],
        )
