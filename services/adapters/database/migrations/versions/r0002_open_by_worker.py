"""open tries by worker: those of a dead one are found without reading all

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None

_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    op.create_index(
        "ledger_open_worker",
        "ledger",
        ["worker", "partition"],
        postgresql_where=_OPEN,
        sqlite_where=_OPEN,
    )


def downgrade() -> None:
    op.drop_index("ledger_open_worker", "ledger")
