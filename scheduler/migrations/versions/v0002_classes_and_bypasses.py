"""Priority classes, who let work pass by the plan, and an index for what ended lately in a queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them; what was there has no class, and nobody let it pass."""
    with op.batch_alter_table("workload") as table:
        table.add_column(sa.Column("priority_class", sa.Text, nullable=False, server_default=""))
        table.add_column(sa.Column("bypassed_by", sa.Text, nullable=False, server_default=""))
        table.create_index("workload_by_queue", ["cluster_queue", "ended_ms"])
