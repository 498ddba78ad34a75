"""Migrations of the job store. They alone say which tables and columns there are; the store writes SQL for them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.errors import EnvironmentProblem

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_LOG = logging.getLogger(__name__)

VERSION = "0005"
"""Newest migration."""


def migrate(connection: Connection) -> None:
    """Bring a store up to date, in a transaction of SQLAlchemy in which no other process does.

    Raises:
        EnvironmentProblem: a newer version of Trainworks wrote it.
    """
    # once in the life of a store: the two libraries take longer to import than a command takes to answer
    from alembic.operations import Operations  # noqa: PLC0415
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    context = MigrationContext.configure(connection)
    found = context.get_current_revision()
    if found is not None and found > VERSION:
        raise EnvironmentProblem(
            f"the job store has version {found}, and this version of Trainworks knows {VERSION}",
            hint="take the newer Trainworks, or another TRAINWORKS_STORE",
        )
    if found == VERSION:
        return
    scripts = ScriptDirectory(str(Path(__file__).parent))
    missing = list(scripts.walk_revisions(found or "base", "head"))
    _LOG.info("migrating the job store from %s to %s", found or "nothing", VERSION)
    with Operations.context(context):
        for revision in reversed(missing):
            if revision.revision != found:
                revision.module.upgrade()
    context.stamp(scripts, "head")
