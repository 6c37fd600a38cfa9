"""Verdicts: who said of a result that it counts, or not."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add their table; of what was there, nobody has said anything."""
    op.create_table(
        "verdict",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("noticed_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("verdict", sa.Text, nullable=False),
        sa.Column("said_by", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
