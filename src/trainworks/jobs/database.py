"""The database behind the job store: how it is opened, brought up to date, and locked.

A SQLite file is asked directly, without SQLAlchemy: to import that takes longer than `trainworks ps` may. It makes the
tables of a new file, and connects to a database server. The store writes each statement once, in SQL that both know.
"""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, final

from trainworks.errors import DamagedStoreError, EnvironmentProblem
from trainworks.jobs.migrations import VERSION, migrate

_LOG = logging.getLogger(__name__)

_REBUILD = "make it anew from the run directories: trainworks jobs rebuild"
_BUSY_S = 30.0
"""How long a writer waits for another one."""
_TURNS = 100
"""How often a connection that found others turning on the write-ahead log waits for its turn."""
_MODES_S = 5.0
"""How long a writer waits for the modes of the files beside the database."""
_RETRY_S = 0.02
_SCHEMES = ("sqlite:///", "sqlite+pysqlite:///")


class Transaction(Protocol):
    """Statements of one transaction; `:name` in a statement stands for a value."""

    def rows(self, statement: str, values: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        """The rows that a statement finds or returns, by column."""

    def count(self, statement: str, values: Mapping[str, object] | None = None) -> int:
        """How many rows a statement has changed."""


class Database(Protocol):
    """What the store asks, whichever database it is."""

    @property
    def url(self) -> str:
        """What `open_database` was given, password and all."""

    @property
    def file(self) -> Path | None:
        """The file of SQLite; None of any other."""

    def transaction(self, *, writes: bool = False) -> AbstractContextManager[Transaction]:
        """A transaction; a database that does not answer is an EnvironmentProblem."""

    def close(self) -> None:
        """Close the connection, where one is kept."""


def open_database(url: str, *, keep_connection: bool = False) -> Database:
    """The database of a URL, with the tables that this version knows.

    With `keep_connection` it connects once, instead of for each use.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """
    file = sqlite_file(url)
    if file is None:
        from trainworks.jobs.server_database import ServerDatabase  # noqa: PLC0415, it imports SQLAlchemy

        return ServerDatabase(url, keep_connection=keep_connection)
    database = SqliteFile(url, file, keep_connection=keep_connection)
    try:
        before = file_identity(file)
        _bring_up_to_date(database)
        if before is not None and before != file_identity(file):  # replaced meanwhile: a lost file is open
            database.close()
            return open_database(url, keep_connection=keep_connection)
    except (sqlite3.Error, ValueError) as error:
        problem = f"cannot open the job store `{url}`: {error}"
        if _is_damage(error):
            raise DamagedStoreError(problem, hint=_REBUILD) from None
        hint = "set TRAINWORKS_DATA to a folder where you can write, or TRAINWORKS_STORE=sqlite:////FOLDER/jobs.db"
        raise EnvironmentProblem(problem, hint=hint) from None
    return database


def sqlite_file(url: str) -> Path | None:
    """The file of a URL like `sqlite:////folder/jobs.db`; None of any other.

    >>> sqlite_file("sqlite:////folder/jobs.db")
    PosixPath('/folder/jobs.db')
    >>> sqlite_file("postgresql+psycopg://host/jobs")
    """
    name = next((url.removeprefix(scheme) for scheme in _SCHEMES if url.startswith(scheme)), "")
    return None if not name or "?" in name or name.startswith((":", "file:")) else Path(name)


def file_identity(file: Path | None) -> tuple[int, int] | None:
    """Device and inode of the file of a store; None without one, and of one that is not there."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_dev, found.st_ino)


def set_aside(url: str) -> Path:
    """Rename a damaged SQLite file and what lies beside it, so that a new store can be made; returns its new name.

    Raises:
        EnvironmentProblem: it cannot be renamed.
    """
    file = sqlite_file(url) or Path()
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
    return type(error) is sqlite3.DatabaseError


def _bring_up_to_date(database: SqliteFile) -> None:
    if database.version() != VERSION:
        database.migrate()


@final
class SqliteFile:
    """A file of SQLite; any thread may use it."""

    def __init__(self, url: str, file: Path, *, keep_connection: bool) -> None:
        self.url = url
        self.file = file
        self._keeps_connection = keep_connection
        self._kept: list[sqlite3.Connection] = []
        """At most one that no thread uses now."""

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[_Statements]:
        """A transaction; a file that does not answer is an EnvironmentProblem."""
        try:
            with self._transaction(writes=writes) as connection:
                yield _Statements(connection)
        except sqlite3.DatabaseError as error:
            if _is_damage(error):
                raise DamagedStoreError(f"the job store is damaged: {error}", hint=_REBUILD) from None
            if not isinstance(error, sqlite3.OperationalError):
                raise
            logs = [Path(f"{self.file}{suffix}") for suffix in ("-wal", "-shm") if _is_read_only(error)]
            closed = next((file for file in logs if file.exists() and not os.access(file, os.W_OK)), None)
            files = [shlex.quote(str(file)) for file in (self.file, closed)]
            hint = "its owner lets you write by: chmod --reference={} {}".format(*files) if closed else None
            raise EnvironmentProblem(f"the job store does not answer: {error}", hint=hint) from None

    def close(self) -> None:
        """Close the connection, where one is kept."""
        while self._kept:
            self._kept.pop().close()

    def version(self) -> str | None:
        """The newest migration that the file has had; None of an empty one."""
        with self._transaction() as connection:
            is_there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone() if is_there else None
        return str(found[0]) if found else None

    def migrate(self) -> None:
        """Bring the file up to date; see `migrations.migrate`."""
        import sqlalchemy as sa  # noqa: PLC0415, once in the life of a store

        # what it has begun SQLAlchemy rolls back as it connects, and begins again here
        engine = sa.create_engine("sqlite://", creator=lambda: self._begun(writes=True), poolclass=sa.NullPool)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        try:
            with engine.begin() as connection:
                migrate(connection)
        except sa.exc.DBAPIError as error:
            raise error.orig or error from None

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        connection = self._begun(writes=writes)
        try:
            yield connection
            connection.commit()
        except BaseException:
            connection.close()  # which rolls back
            raise
        if self._keeps_connection and not self._kept:
            self._kept.append(connection)
        else:
            connection.close()

    def _begun(self, *, writes: bool) -> sqlite3.Connection:
        """A connection with a transaction, that can write where this user may.

        A writer takes its turn when it begins: one that first reads could find that another wrote meanwhile. SQLite
        makes the files of its write-ahead log with the mode that the umask leaves, and gives them the database's a
        moment later; after a kill in between, the owner's next connection does. Another user who connects meanwhile
        reads only, for as long as the connection lasts: hence another one, for some seconds.
        """
        deadline = time.monotonic() + _MODES_S
        while True:
            try:
                connection = self._kept.pop()
            except IndexError:
                connection = self._connect()
            try:
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                return connection
            except sqlite3.Error as error:
                connection.close()
                if time.monotonic() >= deadline or not _is_read_only(error) or not os.access(self.file, os.W_OK):
                    raise
            _LOG.debug("the connection to the job store is read-only yet: another in %g s", _RETRY_S)
            time.sleep(_RETRY_S)  # noqa: TID251, as SQLite sleeps while another connection writes

    def _connect(self) -> sqlite3.Connection:
        # transactions begin where `_begun` says so, and a kept connection goes from thread to thread
        connection = sqlite3.connect(self.file, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            for setting in ("synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
                connection.execute(f"PRAGMA {setting}")
            _write_ahead(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
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


def _is_read_only(error: sqlite3.Error) -> bool:
    """Whether SQLite refuses to write; the low byte of its codes is the kind of an error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY


@final
class _Statements:
    """The statements of a transaction; see `Transaction`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str, values: Mapping[str, object] | None = None) -> list[dict[str, Any]]:
        found = self._connection.execute(statement, values or {})
        columns = [column[0] for column in found.description]
        return [dict(zip(columns, row, strict=True)) for row in found]

    def count(self, statement: str, values: Mapping[str, object] | None = None) -> int:
        return self._connection.execute(statement, values or {}).rowcount
