"""tasks, ledger, parked, kept, idempotency

Revision ID: 0001
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None

_ID = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
_OPEN = sa.text("state = 'open'")
_EXPIRES = sa.text("answer_expires_ms IS NOT NULL")


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("task_id", _ID, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("kind", sa.Text),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("failure", sa.Text),
        sa.Column("arrived_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.Text),
        sa.Column("answer", sa.LargeBinary),
        sa.Column("answer_expires_ms", sa.BigInteger),
    )
    op.create_index(
        "tasks_answer_expires",
        "tasks",
        ["answer_expires_ms"],
        postgresql_where=_EXPIRES,
        sqlite_where=_EXPIRES,
    )


def _ledger() -> None:
    op.create_table(
        "ledger",
        sa.Column("attempt", _ID, primary_key=True),
        sa.Column("task_id", _ID, nullable=False),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("worker", sa.Text, nullable=False),
        sa.Column("pool", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_version", sa.Text, nullable=False),
        sa.Column("input_tokens", sa.BigInteger, nullable=False),
        sa.Column("output_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger, nullable=False),
        sa.Column("cost_usd", sa.Float, nullable=False),
        sa.Column("estimated", sa.Boolean, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("verdict", sa.Text),
        sa.Column("charged", sa.Boolean, nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("ix_ledger_task_id", "ledger", ["task_id"])
    op.create_index(
        "ledger_open", "ledger", ["partition", "deadline_ms"], postgresql_where=_OPEN, sqlite_where=_OPEN
    )


def _parked_and_kept() -> None:
    op.create_table(
        "parked",
        sa.Column("task_id", _ID, primary_key=True),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("attempt", sa.Text, nullable=False),
        sa.Column("final", sa.Boolean, nullable=False),
        sa.Column("stamp_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text),
        sa.Column("seen", sa.Text, nullable=False),
        sa.Column("lane", sa.Text),
        sa.Column("headers", sa.Text),
        sa.Column("value", sa.LargeBinary),
    )
    op.create_index("parked_due", "parked", ["partition", "state", "due_ms"])
    op.create_table(
        "kept",
        sa.Column("kept_key", sa.Text, primary_key=True),
        sa.Column("partition", sa.Integer, nullable=False),
        sa.Column("stamp_ms", sa.BigInteger, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("major", sa.Text, nullable=False),
        sa.Column("task_key", sa.LargeBinary),
        sa.Column("value", sa.LargeBinary),
        sa.Column("headers", sa.Text, nullable=False),
    )
    op.create_index("ix_kept_stamp_ms", "kept", ["stamp_ms"])


def upgrade() -> None:
    _tasks()
    _ledger()
    _parked_and_kept()
    op.create_table(
        "idempotency",
        sa.Column("tenant", _ID, nullable=False),
        sa.Column("idempotency_key", _ID, nullable=False),
        sa.Column("task_id", sa.Text, nullable=False),
        sa.Column("body_sha256", sa.Text, nullable=False),
        sa.Column("deadline_ms", sa.BigInteger, nullable=False),
        sa.Column("accepted", sa.Boolean, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "idempotency_key"),
    )
    op.create_index("ix_idempotency_created_ms", "idempotency", ["created_ms"])


def downgrade() -> None:
    for table in ("idempotency", "kept", "parked", "ledger", "tasks"):
        op.drop_table(table)
