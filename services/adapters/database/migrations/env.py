"""Alembic's entry: runs the revisions on the connection that `migrate` hands in."""

from __future__ import annotations

from alembic import context

from services.adapters.database.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
with context.begin_transaction():
    context.run_migrations()
