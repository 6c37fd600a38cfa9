"""Workloads, their runs, the edits of their deadlines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "workload",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("namespace", sa.Text, nullable=False),
        sa.Column("local_queue", sa.Text, nullable=False),
        sa.Column("cluster_queue", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("stem", sa.Text, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("managed", sa.Boolean, nullable=False),
        sa.Column("submitted_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger),
        sa.Column("earliest_start_ms", sa.BigInteger),
        sa.Column("weight", sa.Float, nullable=False),
        sa.Column("hard", sa.Boolean, nullable=False),
        sa.Column("planned_start_ms", sa.BigInteger),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("interruptions", sa.Integer, nullable=False),
        sa.Column("flavor", sa.Text, nullable=False),
        sa.Column("gpus", sa.BigInteger, nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("estimate_ms", sa.BigInteger),
        sa.Column("estimate_source", sa.Text, nullable=False),
        sa.Column("user_estimate_ms", sa.BigInteger),
        sa.Column("outcome", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("updated_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("workload_by_end", "workload", ["ended_ms"])
    op.create_index("workload_by_outcome", "workload", ["outcome"])
    op.create_table(
        "run",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("started_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("planned_start_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("ending", sa.Text, nullable=False),
    )
    op.create_table(
        "deadline",
        sa.Column("uid", sa.Text, primary_key=True),
        sa.Column("noticed_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("deadline_ms", sa.BigInteger),
    )
    op.create_table(
        "setting",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, nullable=False),
    )
