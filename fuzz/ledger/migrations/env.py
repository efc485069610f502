"""Entry point of Alembic: runs the migrations, on the connection and in the transaction of fuzz/ledger/migrate.py."""

from __future__ import annotations

from alembic import context

from fuzz.ledger.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
