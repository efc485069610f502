"""Entry point of Alembic: runs the migrations, in the connection and transaction of fuzz/ledger/tables/migrate.py."""

from __future__ import annotations

from alembic import context

from fuzz.ledger.tables.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
