"""Alembic's entry: runs on the connection, inside the transaction, that `ablate.store.migrate`
hands over.
"""

from alembic import context

from ablate.store.schema import VERSION_TABLE, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
