"""Where alembic gets its connection from: whoever opens the store has it."""

from __future__ import annotations

from alembic import context

from trainworks.job.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
