"""The ledger's tables, on SQLite and PostgreSQL alike. ``migrations/`` makes them; a test holds the two together.

Instants and lengths of time are milliseconds, instants since the Unix epoch.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, Table, Text
from sqlalchemy.types import JSON

from scheduler.family import FAMILY_FIELDS

metadata = MetaData()

workload = Table(
    "workload",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("name", Text, nullable=False),
    *(Column(name, Text, nullable=False) for name in FAMILY_FIELDS),
    Column("managed", Boolean, nullable=False),
    Column("submitted_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger),
    Column("earliest_start_ms", BigInteger),
    Column("weight", Float, nullable=False),
    Column("hard", Boolean, nullable=False),
    Column("planned_start_ms", BigInteger),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("interruptions", Integer, nullable=False),
    Column("flavor", Text, nullable=False),
    Column("gpus", BigInteger, nullable=False),
    Column("usage", JSON, nullable=False),
    Column("estimate_ms", BigInteger),
    Column("estimate_source", Text, nullable=False),
    Column("user_estimate_ms", BigInteger),
    Column("outcome", Text),
    Column("reason", Text, nullable=False),
    Column("updated_ms", BigInteger, nullable=False),
    Column("priority_class", Text, nullable=False, server_default=""),
    Column("bypassed_by", Text, nullable=False, server_default=""),
    Index("workload_by_end", "ended_ms"),
    Index("workload_by_queue", "cluster_queue", "ended_ms"),
    Index("workload_by_outcome", "outcome"),
)

run = Table(
    "run",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("started_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("planned_start_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("ending", Text, nullable=False),
)

deadline = Table(
    "deadline",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("noticed_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("deadline_ms", BigInteger),
)

verdict = Table(
    "verdict",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("noticed_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("verdict", Text, nullable=False),
    Column("said_by", Text, nullable=False),
    Column("reason", Text, nullable=False),
)

setting = Table(
    "setting",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
)
