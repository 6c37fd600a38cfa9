"""What docs/ledger.md says is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from scheduler.annotations import parse_duration
from scheduler.estimates import Estimates, Said
from scheduler.family import Family
from scheduler.ledger import Ledger, ledger_url
from scheduler.settings import HOUR
from tests.scheduler.ledger.test_ledger import DONE, RUNNING

PAGE = (Path(__file__).parents[3] / "docs" / "ledger.md").read_text()
EXAMPLES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition("| user says |")[2].partition("\n\n")[0].splitlines()[2:]
]


@pytest.mark.parametrize(("said", "limit", "runs", "estimate"), EXAMPLES)
def test_the_examples_of_estimates(said: str, limit: str, runs: str, estimate: str) -> None:
    """Each row of the table comes out as it says."""
    estimates = Estimates()
    family = Family("team", "lq", "cq", "Job", "train", "1x(nvidia.com/gpu=2)", "nightly")
    for part in filter(None, runs.split(", ")):
        count, _, length = part.rpartition(" × ")
        for _ in range(int(count or 1)):
            estimates.learn(family, parse_duration(length))
    words = Said(parse_duration(said) if said else None, parse_duration(limit) if limit else None, "limit", HOUR)
    assert estimates.kin(family).estimate(words).duration == parse_duration(estimate)


def test_there_are_examples() -> None:
    """The tables were found."""
    assert len(EXAMPLES) == 6
    assert len(queries()) == 2


def queries() -> list[str]:
    """The SQL of the page."""
    return re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


def test_its_sql_runs(ledger: Ledger, dsn: str) -> None:
    """On both databases, and finds what it is for."""
    ledger.write([DONE, RUNNING])
    engine = sa.create_engine(ledger_url(dsn))
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE workload SET deadline_ms = 1"))
        connection.execute(sa.text("UPDATE run SET ending = 'Preempted'"))
        missed, interrupted = (connection.execute(sa.text(query)).all() for query in queries())
    engine.dispose()
    assert [tuple(row) for row in missed] == [("cq", 1)]
    assert [row.ending for row in interrupted] == ["Preempted"]
