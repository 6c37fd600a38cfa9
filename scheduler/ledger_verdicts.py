"""Verdicts in the ledger: each is written once, what was said before stays on record, and the last one counts.

They come from two sides: from annotations on the work, which a controller that starts anew sees again, and from who
writes to the ledger itself. Neither side's old word, seen again, undoes the other's newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from scheduler.ledger_entry import Judgement, Verdict
from scheduler.ledger_rows import INSERT
from scheduler.ledger_schema import verdict

BY_LEDGER = "ledger:"
"""Begin of the name of who wrote to the ledger itself."""


def write_judgements(connection: Connection, uid: str, judgements: Sequence[Judgement]) -> bool:
    """Add what is not known, oldest first; whether anything was."""
    known = read_judgements(connection, [uid]).get(uid, [])
    news = False
    for each in judgements:
        ours = each.by.startswith(BY_LEDGER)
        same_side = [old for old in known if old.by.startswith(BY_LEDGER) == ours]
        last = (known if ours else same_side)[-1:]
        if last and (each.noticed < last[0].noticed or _same(each, last[0])):
            continue
        noticed = max([each.noticed, *(old.noticed + 1 for old in known)])
        row = {"uid": uid, "noticed_ms": noticed, "verdict": each.verdict, "said_by": each.by, "reason": each.reason}
        connection.execute(INSERT[connection.dialect.name](verdict).on_conflict_do_nothing(), [row])
        known.append(Judgement(noticed, each.verdict, each.by, each.reason))
        news = True
    return news


def read_judgements(connection: Connection, uids: Sequence[str]) -> dict[str, list[Judgement]]:
    """What was said of these Workloads, by uid, oldest first."""
    said: dict[str, list[Judgement]] = {}
    query = sa.select(verdict).where(verdict.c.uid.in_(uids)).order_by(verdict.c.noticed_ms)
    row: Any
    for row in connection.execute(query):
        judgement = Judgement(row.noticed_ms, Verdict(row.verdict), row.said_by, row.reason)
        said.setdefault(row.uid, []).append(judgement)
    return said


def _same(one: Judgement, other: Judgement) -> bool:
    return (one.verdict, one.by, one.reason) == (other.verdict, other.by, other.reason)
