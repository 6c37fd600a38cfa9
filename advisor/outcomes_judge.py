"""Lets the judge of a task score a piece of work: its program says how good it is, the threshold what is enough."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from advisor.outcomes import Judge
from advisor.outcomes_say import CannotJudge
from advisor.serving_judge import ask_command
from advisor.success import Success
from scheduler.ledger_entry import Entry, Verdict


@dataclass(frozen=True)
class Judged:
    """What a judge has said."""

    verdict: Verdict
    score: float
    reason: str


def judge_task(success: Success, entry: Entry, told: Mapping[str, Any]) -> Judged:
    """Ask the judge of its task about a piece of work that has ended.

    Parameters
    ----------
    told
        What the judge's program reads: the entry as ``punctual ledger export -o json`` writes it.

    Raises
    ------
    CannotJudge
        If it is of no task, its task has no judge, or it has not ended as its task wants it.
    advisor.serving_judge.JudgeFailed
        If the judge does not judge: it crashes, takes too long, or writes anything but a score.
    """
    judge, work = Judge(success), f"{entry.family.namespace}/{entry.name}"
    name, task = judge.task(entry)
    if task is None:
        raise CannotJudge(f"{work} is of no task of success.yaml: none matches its queue, namespace and family")
    if task.quality is None:
        raise CannotJudge(f"task {name} has no quality: without a judge its work counts when it ends well and in time")
    if not judge.complete(entry):
        raise CannotJudge(f"{work} ended as {entry.outcome}, not as task {name} wants it: there is no result to judge")
    (score,) = ask_command(task.quality.judge, [told])
    enough = score >= task.quality.threshold
    reason = f"score {score:g}, threshold {task.quality.threshold:g} (task {name})"
    return Judged(Verdict.VERIFIED if enough else Verdict.REJECTED, score, reason)
