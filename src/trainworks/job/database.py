"""The database behind the job store: how it is opened, brought up to date, and locked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from trainworks.errors import EnvironmentProblem

__all__ = ["VERSION", "answering", "open_database"]

VERSION = "0003"
"""Newest migration."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_BUSY_S = 30.0
"""How long a writer waits for another one."""
_UPGRADE_LOCK = 7240915
"""PostgreSQL's advisory lock of whoever brings the store up to date."""


def open_database(url: str, *, keep_connection: bool = False) -> Engine:
    """The engine of SQLAlchemy for a URL, with the tables that this version knows.

    Args:
        url: as SQLAlchemy reads it.
        keep_connection: connect once, instead of for each use.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """
    try:
        engine = sa.create_engine(url, **_options(url, keep_connection))
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _set_up_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        _bring_up_to_date(engine)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        shown = _without_password(url)
        raise EnvironmentProblem(
            f"cannot open the job store `{shown}`: {_first_line(error)}", hint="see TRAINWORKS_STORE"
        ) from None
    return engine


def _options(url: str, keep_connection: bool) -> dict[str, Any]:
    timeout = {"timeout": _BUSY_S} if url.startswith("sqlite") else {}
    pool = {"pool_size": 1, "pool_pre_ping": not timeout} if keep_connection else {"poolclass": NullPool}
    return pool | {"connect_args": timeout}


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says so
    for setting in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "trusted_schema=OFF",
        f"busy_timeout={int(_BUSY_S * 1000)}",
    ):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its turn when it begins: one that first reads could find that another wrote meanwhile."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def _bring_up_to_date(engine: Engine) -> None:
    with engine.connect() as connection:
        if _version(connection) == VERSION:
            return
    with engine.execution_options(writes=True).begin() as connection:
        found = _version(connection)
        if found is not None and found > VERSION:
            raise EnvironmentProblem(
                f"the job store has version {found}, and this version of Trainworks knows {VERSION}",
                hint="take the newer Trainworks, or another TRAINWORKS_STORE",
            )
        if engine.dialect.name == "postgresql":  # one at a time; SQLite's BEGIN IMMEDIATE has seen to that
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
        if _version(connection) != VERSION:
            _migrate(connection)


def _version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def _migrate(connection: Connection) -> None:
    """Run what is missing, in order, within the transaction that there is."""
    from alembic.operations import Operations  # noqa: PLC0415, once in the life of a store
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    scripts = ScriptDirectory(str(_MIGRATIONS))
    context = MigrationContext.configure(connection)
    missing = list(scripts.walk_revisions(context.get_current_revision() or "base", "head"))
    with Operations.context(context):
        for revision in reversed(missing):
            if revision.revision != context.get_current_revision():
                revision.module.upgrade()
    context.stamp(scripts, "head")


def _without_password(url: str) -> str:
    try:
        return sa.make_url(url).render_as_string(hide_password=True)
    except SQLAlchemyError:
        return url.partition("@")[2] or url


def _first_line(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    return (str(original).splitlines() or [type(original).__name__])[0]


@contextmanager
def answering(engine: Engine) -> Iterator[Connection]:
    """A transaction; a database that does not answer is an EnvironmentProblem."""
    try:
        with engine.begin() as connection:
            yield connection
    except OperationalError as error:
        raise EnvironmentProblem(f"the job store does not answer: {_first_line(error)}") from None
