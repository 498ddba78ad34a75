"""The database behind the job store: how it is opened, brought up to date, and locked."""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DatabaseError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from trainworks.errors import DamagedStoreError, EnvironmentProblem

_LOG = logging.getLogger(__name__)

VERSION = "0005"
"""Newest migration."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_REBUILD = "make it anew from the run directories: trainworks jobs rebuild"
_BUSY_S = 30.0
"""How long a writer waits for another one."""
_TURNS = 100
"""How often a connection that found others turning on the write-ahead log waits for its turn."""
_MODES_S = 5.0
"""How long a writer waits for the modes of the files beside the database."""
_RETRY_S = 0.02
_UPGRADE_LOCK = 7240915
"""PostgreSQL's advisory lock of the process that migrates the store."""


def open_database(url: str, *, keep_connection: bool = False) -> Engine:
    """The engine of SQLAlchemy for a URL, with the tables that this version knows.

    With `keep_connection` it connects once, instead of for each use.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """
    try:
        timeout = {"timeout": _BUSY_S} if url.startswith("sqlite") else {}
        pool = {"pool_size": 1, "pool_pre_ping": not timeout} if keep_connection else {"poolclass": NullPool}
        engine = sa.create_engine(url, connect_args=timeout, **pool)
        if engine.dialect.name == "sqlite":
            sa.event.listen(engine, "connect", _set_up_sqlite)
            sa.event.listen(engine, "begin", _begin_sqlite)
        before = file_identity(engine.url)
        _bring_up_to_date(engine)
        if before is not None and before != file_identity(engine.url):  # replaced meanwhile: a lost file is open
            engine.dispose()
            return open_database(url, keep_connection=keep_connection)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        problem = f"cannot open the job store `{_strip_password(url)}`: {_first_line(error)}"
        if _is_damage(error):
            raise DamagedStoreError(problem, hint=_REBUILD) from None
        raise EnvironmentProblem(problem, hint=_hint(url)) from None
    return engine


def file_identity(url: sa.URL) -> tuple[int, int] | None:
    """Device and inode of a store that is a file; None of any other, and of one that is not there."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    try:
        found = Path(url.database).stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def set_aside(url: str) -> Path:
    """Rename a damaged SQLite file and what lies beside it, so that a new store can be made; returns its new name.

    Raises:
        EnvironmentProblem: it cannot be renamed.
    """
    file = Path(sa.make_url(url).database or "")
    number = next(number for number in itertools.count(1) if not _aside(file, number).exists())
    try:
        for suffix in ("-wal", "-shm", ""):
            part = file.with_name(file.name + suffix)
            if part.exists():
                part.rename(_aside(part, number))
    except OSError as error:
        raise EnvironmentProblem(f"cannot rename the damaged store `{file}`: {error.strerror}") from None
    return _aside(file, number)


def _aside(file: Path, number: int) -> Path:
    return file.with_name(f"{file.name}.damaged-{number}")


def _is_damage(error: BaseException) -> bool:
    """Whether SQLite could read the file, and found something else than a database."""
    return type(error) is DatabaseError


def _hint(url: str) -> str:
    if "://" not in url:
        path = Path(url).expanduser().absolute()
        file = path / "jobs.db" if path.is_dir() or not path.suffix else path
        return f"write a URL: TRAINWORKS_STORE=sqlite:///{file}"
    if url.startswith("sqlite"):
        return "set TRAINWORKS_DATA to a folder where you can write, or TRAINWORKS_STORE=sqlite:////FOLDER/jobs.db"
    return "write it like TRAINWORKS_STORE=postgresql+psycopg://USER@HOST/DATABASE, and see whether the server runs"


def _set_up_sqlite(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where SQLAlchemy says so
    busy = f"busy_timeout={int(_BUSY_S * 1000)}"
    for setting in (busy, "synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {setting}")
    _write_ahead(connection)


def _write_ahead(connection: Any) -> None:
    """Turn on the write-ahead log; SQLite does not wait by itself where several connections turn it on at once."""
    for _ in range(_TURNS):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                raise
        connection.execute("BEGIN IMMEDIATE")  # this waits until the other connection is done
        connection.execute("COMMIT")
    connection.execute("PRAGMA journal_mode=WAL")


def _begin_sqlite(connection: Connection) -> None:
    """A writer takes its turn when it begins: one that first reads could find that another wrote meanwhile."""
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.get_execution_options().get("writes") else "BEGIN")


def _bring_up_to_date(engine: Engine) -> None:
    with engine.connect() as connection:
        if _version(connection) == VERSION:
            return
    with _transaction(engine.execution_options(writes=True)) as connection:
        found = _version(connection)
        if found is not None and found > VERSION:
            raise EnvironmentProblem(
                f"the job store has version {found}, and this version of Trainworks knows {VERSION}",
                hint="take the newer Trainworks, or another TRAINWORKS_STORE",
            )
        if engine.dialect.name == "postgresql":  # one at a time; SQLite's BEGIN IMMEDIATE has seen to that
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
        if _version(connection) != VERSION:
            from alembic.operations import Operations  # noqa: PLC0415, once in the life of a store
            from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
            from alembic.script import ScriptDirectory  # noqa: PLC0415

            scripts = ScriptDirectory(str(_MIGRATIONS))
            context = MigrationContext.configure(connection)
            missing = list(scripts.walk_revisions(context.get_current_revision() or "base", "head"))
            _LOG.info("migrating the job store from %s to %s", context.get_current_revision() or "nothing", VERSION)
            with Operations.context(context):
                for revision in reversed(missing):
                    if revision.revision != context.get_current_revision():
                        revision.module.upgrade()
            context.stamp(scripts, "head")


def _version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    return connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()


def _strip_password(url: str) -> str:
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
        with _transaction(engine) as connection:
            yield connection
    except DatabaseError as error:
        if _is_damage(error):
            raise DamagedStoreError(f"the job store is damaged: {_first_line(error)}", hint=_REBUILD) from None
        if not isinstance(error, OperationalError):
            raise
        logs = [Path(f"{engine.url.database}{suffix}") for suffix in ("-wal", "-shm") if _is_read_only(error)]
        closed = next((file for file in logs if file.exists() and not os.access(file, os.W_OK)), None)
        files = [shlex.quote(str(file)) for file in (engine.url.database, closed)]
        hint = "its owner lets you write by: chmod --reference={} {}".format(*files) if closed else None
        raise EnvironmentProblem(f"the job store does not answer: {_first_line(error)}", hint=hint) from None


@contextmanager
def _transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction, on a connection that can write where this user may.

    SQLite makes the files of its write-ahead log with the mode that the umask leaves, and gives them the database's a
    moment later; after a kill in between, the owner's next connection does. Another user who connects meanwhile reads
    only, for as long as the connection lasts: hence another one, for some seconds.
    """
    deadline = time.monotonic() + _MODES_S
    with ExitStack() as stack:
        while (connection := _begun(engine, stack, is_last=time.monotonic() >= deadline)) is None:
            engine.dispose()
            _LOG.debug("the connection to the job store is read-only yet: another in %g s", _RETRY_S)
            time.sleep(_RETRY_S)  # noqa: TID251, as SQLite sleeps while another connection writes
        yield connection


def _begun(engine: Engine, stack: ExitStack, *, is_last: bool) -> Connection | None:
    """A connection with a transaction; None if it cannot write and the next one may."""
    try:
        return stack.enter_context(engine.begin())
    except OperationalError as error:
        if is_last or not _is_read_only(error) or not os.access(engine.url.database or "", os.W_OK):
            raise
        return None


def _is_read_only(error: OperationalError) -> bool:
    """Whether SQLite refuses to write; the low byte of its codes is the kind of an error."""
    return getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
