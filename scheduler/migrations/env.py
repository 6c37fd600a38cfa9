"""Run by Alembic, on the connection that :mod:`scheduler.ledger` gives it, inside a transaction of that."""

from __future__ import annotations

from alembic import context

from scheduler.ledger_schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata, render_as_batch=True)
context.run_migrations()
