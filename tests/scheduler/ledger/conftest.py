"""Both databases for the tests of the ledger.

==============  ====================================================================================================
``postgres``    a running :class:`tests.scheduler.ledger.postgres.Postgres` (session)
``dsn``         the address of a ledger that is not made yet: each test runs on SQLite and on PostgreSQL
``ledger``      the same, open
==============  ====================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.ledger import Ledger
from tests.scheduler.ledger.postgres import Postgres, missing


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL; a test that ends it starts it again."""
    if why := missing():
        pytest.skip(why)
    server = Postgres()
    try:
        server.make()
        yield server
    finally:
        server.remove()


@pytest.fixture(params=["sqlite", "postgresql"])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new ledger may be."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture
def ledger(dsn: str) -> Iterator[Ledger]:
    """A new ledger."""
    with Ledger(dsn).open() as opened:
        yield opened
