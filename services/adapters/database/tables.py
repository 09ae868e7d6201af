"""The schema as it is now; `migrations` has how it came to be, a test compares the two.

Law: no row is keyed by an offset. Times are epoch milliseconds, money is USD, JSON is kept as text.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects import postgresql

metadata = MetaData()
# Ids are compared byte by byte: a collation of human languages would cost time and mean nothing.
Id = Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")

tasks = Table(
    "tasks",
    metadata,
    Column("task_id", Id, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("kind", Text),
    Column("pool", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("failure", Text),
    Column("arrived_ms", BigInteger),
    Column("ended_ms", BigInteger, nullable=False),
    Column("attempt", Text),
    Column("answer", LargeBinary),
    Column("answer_expires_ms", BigInteger),
    Index(
        "tasks_answer_expires",
        "answer_expires_ms",
        postgresql_where=text("answer_expires_ms IS NOT NULL"),
        sqlite_where=text("answer_expires_ms IS NOT NULL"),
    ),
)

ledger = Table(
    "ledger",
    metadata,
    Column("attempt", Id, primary_key=True),
    Column("task_id", Id, nullable=False, index=True),
    Column("partition", Integer, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("worker", Text, nullable=False),
    Column("pool", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("model_version", Text, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("estimated", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("verdict", Text),
    Column("charged", Boolean, nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger),
    Column("deadline_ms", BigInteger, nullable=False),
    Index(
        "ledger_open",
        "partition",
        "deadline_ms",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
    Index(
        "ledger_open_worker",
        "worker",
        "partition",
        postgresql_where=text("state = 'open'"),
        sqlite_where=text("state = 'open'"),
    ),
)

parked = Table(
    "parked",
    metadata,
    Column("task_id", Id, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Text, nullable=False),
    Column("final", Boolean, nullable=False),
    Column("stamp_ms", BigInteger, nullable=False),
    Column("due_ms", BigInteger, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("holder", Text),
    Column("seen", Text, nullable=False),
    Column("lane", Text),
    Column("headers", Text),
    Column("value", LargeBinary),
    Index("parked_due", "partition", "state", "due_ms"),
)

kept = Table(
    "kept",
    metadata,
    Column("kept_key", Text, primary_key=True),
    Column("partition", Integer, nullable=False),
    Column("stamp_ms", BigInteger, nullable=False, index=True),
    Column("type", Text, nullable=False),
    Column("major", Text, nullable=False),
    Column("task_key", LargeBinary),
    Column("value", LargeBinary),
    Column("headers", Text, nullable=False),
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", Id, nullable=False),
    Column("idempotency_key", Id, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("body_sha256", Text, nullable=False),
    Column("deadline_ms", BigInteger, nullable=False),
    Column("accepted", Boolean, nullable=False),
    Column("created_ms", BigInteger, nullable=False, index=True),
    PrimaryKeyConstraint("tenant", "idempotency_key"),
)
