"""Between entries and rows of the ledger's tables, and how a row that is there already takes news."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from scheduler.family import FAMILY_FIELDS, Family
from scheduler.ledger_entry import Entry, Outcome, Run
from scheduler.ledger_schema import run, workload

INSERT: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
"""By dialect: an INSERT that may say what to do with a row that is there."""


def upsert_workload(insert: Any) -> Any:
    """What a later look may know less of is kept: plans, estimates and grants are not in the cluster's objects.

    An end that is known is not undone. (Which news is newer, no clock decides: clocks are set.)
    """
    statement = insert(workload)
    new, old = statement.excluded, workload.c
    kept: dict[str, Any] = {
        name: sa.func.coalesce(new[name], old[name])
        for name in ("planned_start_ms", "started_ms", "ended_ms", "user_estimate_ms", "outcome")
    }
    kept |= {
        name: sa.case((new[name] == "", old[name]), else_=new[name])
        for name in ("name", *FAMILY_FIELDS, "flavor", "reason", "bypassed_by")
    }
    kept["usage"] = sa.case((new.flavor == "", old.usage), else_=new.usage)
    kept["managed"] = old.managed | new.managed
    kept["interruptions"] = sa.case((old.interruptions > new.interruptions, old.interruptions), else_=new.interruptions)
    for name in ("estimate_ms", "estimate_source"):  # as it was when it started
        kept[name] = sa.case((old.started_ms.is_not(None) & old.estimate_ms.is_not(None), old[name]), else_=new[name])
    ended = old.outcome.is_not(None) & (old.outcome != Outcome.UNKNOWN)
    for name in ("deadline_ms", "earliest_start_ms", "weight", "hard"):  # what is edited afterwards does not count
        kept[name] = sa.case((ended, old[name]), else_=new[name])
    columns = {column.name: kept.get(column.name, new[column.name]) for column in workload.c if column.name != "uid"}
    tells_more = old.outcome.is_(None) | (new.outcome != Outcome.UNKNOWN)  # not true of one without an outcome
    return statement.on_conflict_do_update(index_elements=["uid"], set_=columns, where=tells_more)


def upsert_run(insert: Any) -> Any:
    """A run that is there already keeps what is not said again."""
    statement = insert(run)
    new, old = statement.excluded, run.c
    return statement.on_conflict_do_update(
        index_elements=["uid", "started_ms"],
        set_={
            "planned_start_ms": sa.func.coalesce(new.planned_start_ms, old.planned_start_ms),
            "ended_ms": sa.func.coalesce(new.ended_ms, old.ended_ms),
            "ending": sa.case((new.ending == "", old.ending), else_=new.ending),
        },
    )


def workload_row(entry: Entry) -> dict[str, Any]:
    """A row of ``workload``."""
    return {
        "uid": entry.uid,
        "name": entry.name,
        **{field: getattr(entry.family, field) for field in FAMILY_FIELDS},
        "managed": entry.managed,
        "submitted_ms": entry.submitted,
        "deadline_ms": entry.deadline,
        "earliest_start_ms": entry.earliest_start,
        "weight": entry.weight,
        "hard": entry.hard,
        "priority_class": entry.priority_class,
        "bypassed_by": entry.bypassed_by,
        "planned_start_ms": entry.planned_start,
        "started_ms": entry.started,
        "ended_ms": entry.ended,
        "interruptions": entry.interruptions,
        "flavor": entry.flavor,
        "gpus": entry.gpus,
        "usage": [list(cell) for cell in entry.usage],
        "estimate_ms": entry.estimate,
        "estimate_source": entry.estimate_source,
        "user_estimate_ms": entry.user_estimate,
        "outcome": entry.outcome,
        "reason": entry.reason,
        "updated_ms": entry.updated,
    }


def run_row(uid: str, each: Run) -> dict[str, Any]:
    """A row of ``run``."""
    return {
        "uid": uid,
        "started_ms": each.started,
        "planned_start_ms": each.planned_start,
        "ended_ms": each.ended,
        "ending": each.ending,
    }


def read_entry(row: Any) -> Entry:
    """An entry from its row, without runs and deadlines."""
    return Entry(
        uid=row.uid,
        name=row.name,
        family=Family(*(getattr(row, field) for field in FAMILY_FIELDS)),
        submitted=row.submitted_ms,
        updated=row.updated_ms,
        managed=row.managed,
        deadline=row.deadline_ms,
        earliest_start=row.earliest_start_ms,
        weight=row.weight,
        hard=row.hard,
        priority_class=row.priority_class,
        bypassed_by=row.bypassed_by,
        planned_start=row.planned_start_ms,
        started=row.started_ms,
        ended=row.ended_ms,
        interruptions=row.interruptions,
        flavor=row.flavor,
        gpus=row.gpus,
        usage=tuple((flavor, resource, held) for flavor, resource, held in row.usage),
        estimate=row.estimate_ms,
        estimate_source=row.estimate_source,
        user_estimate=row.user_estimate_ms,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        reason=row.reason,
    )
