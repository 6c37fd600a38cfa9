"""The priority class of each Workload, and an index for what is asked most: what ended lately in a queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both; what was there has no class."""
    with op.batch_alter_table("workload") as table:
        table.add_column(sa.Column("priority_class", sa.Text, nullable=False, server_default=""))
        table.create_index("workload_by_queue", ["cluster_queue", "ended_ms"])
