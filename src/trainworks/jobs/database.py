"""The database behind the job store: how it is opened, brought up to date, and locked.

A SQLite file is asked directly, without SQLAlchemy: to import that takes longer than `trainworks ps` may. That
makes the tables of a new file, and connects to a server. The store writes each statement once, in SQL that both know.
"""

from __future__ import annotations

import itertools
import logging
import os
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final

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
NO_VALUES: Mapping[str, object] = {}
Row = Mapping[str, Any]


class Transaction:
    """Statements of one transaction, which `execute` sends; `columns` has the names of those of a result."""

    def __init__(self, execute: Callable[..., Any], columns: Callable[[Any], Iterable[str]]) -> None:
        self._execute = execute
        self._columns = columns

    def rows(self, statement: str, values: Mapping[str, object] = NO_VALUES) -> list[Row]:
        """The rows that a statement finds or returns, by column; `:name` in it stands for a value."""
        found = self._execute(statement, values)
        columns = list(self._columns(found))
        return [dict(zip(columns, row, strict=True)) for row in found]

    def count(self, statement: str, values: Mapping[str, object] = NO_VALUES) -> int:
        """How many rows a statement has changed."""
        return int(self._execute(statement, values).rowcount)


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
    with suppress(OSError):
        if file is not None:
            return (found := file.stat()).st_dev, found.st_ino
    return None


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


@final
class SqliteFile:
    """A file of SQLite by its URL, with the tables that this version knows; any thread may use it.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """

    def __init__(self, url: str, file: Path, *, keep_connection: bool) -> None:
        self.url = url
        self.file = file
        self._keeps_connection = keep_connection
        self._kept: list[sqlite3.Connection] = []
        """At most one that no thread uses now."""
        try:
            while True:
                before = file_identity(file)
                self._bring_up_to_date()
                if before in (None, file_identity(file)):
                    break
                self.close()  # replaced meanwhile: a lost file is open
        except (sqlite3.Error, ValueError) as error:
            problem = f"cannot open the job store `{url}`: {error}"
            if _is_damage(error):
                raise DamagedStoreError(problem, hint=_REBUILD) from None
            hint = "set TRAINWORKS_DATA to a folder where you can write, or TRAINWORKS_STORE=sqlite:////FOLDER/jobs.db"
            raise EnvironmentProblem(problem, hint=hint) from None

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Transaction]:
        """A transaction; a file that does not answer is an EnvironmentProblem."""
        try:
            with self._transaction(writes=writes) as connection:
                yield Transaction(connection.execute, lambda found: (column[0] for column in found.description))
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

    def _bring_up_to_date(self) -> None:
        with self._transaction() as connection:
            is_there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone() if is_there else None
        if found == (VERSION,):
            return
        import sqlalchemy as sa  # noqa: PLC0415, once in the life of a store

        # what `_begun` has begun SQLAlchemy rolls back as it connects, and begins again here
        engine = sa.create_engine("sqlite://", creator=lambda: self._begun(writes=True), poolclass=sa.NullPool)
        sa.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        try:
            with engine.begin() as begun:
                migrate(begun)
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
