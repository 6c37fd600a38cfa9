"""Brings a ledger's tables up to date, by the steps in ``migrations/``."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from alembic.config import Config

_FOLDER = Path(__file__).with_name("migrations")
_LOCK = 0x70756E6374
"""Of PostgreSQL: several replicas upgrade one after another."""

# Before its first import: it tells of each of its plugins, and later of each step.
logging.getLogger("alembic").setLevel(logging.WARNING)


def revision(connection: Connection) -> str | None:
    """The step that a ledger is at; None when there are no tables yet."""
    from alembic.runtime.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


@cache
def revisions() -> tuple[str, ...]:
    """All steps that this version knows, the newest first."""
    from alembic.script import ScriptDirectory

    return tuple(script.revision for script in ScriptDirectory.from_config(config()).walk_revisions())


def upgrade(connection: Connection, to: str = "head") -> None:
    """Take the steps that are missing, in the transaction that is open."""
    from alembic import command

    settings = config()
    settings.attributes["connection"] = connection
    command.upgrade(settings, to)


def lock(connection: Connection) -> None:
    """Let only one upgrade at a time, until the transaction ends; a SQLite file has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))


def config() -> Config:
    """How Alembic finds the steps."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
