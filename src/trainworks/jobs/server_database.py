"""A job store in a database server, PostgreSQL above all, by way of SQLAlchemy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import final

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from trainworks.errors import EnvironmentProblem
from trainworks.jobs.database import Transaction
from trainworks.jobs.migrations import VERSION, migrate

_UPGRADE_LOCK = 7240915
"""PostgreSQL's advisory lock of the process that migrates the store."""


@final
class ServerDatabase:
    """A database by its URL, brought up to date. With `keep_connection` it connects once, instead of for each use.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """

    file = None

    def __init__(self, url: str, *, keep_connection: bool) -> None:
        self.url = url
        try:
            if (parsed := sa.make_url(url)).get_backend_name() == "sqlite":
                raise ValueError(f"`{parsed.database or ''}` is not the name of a file")
            pool = {"pool_size": 1, "pool_pre_ping": True} if keep_connection else {"poolclass": NullPool}
            self._engine = sa.create_engine(parsed, **pool)
            self._bring_up_to_date()
        except (SQLAlchemyError, ImportError, ValueError) as error:
            without_password = url.partition("@")[2] or url
            problem = f"cannot open the job store `{without_password}`: {_first_line(error)}"
            raise EnvironmentProblem(problem, hint=_hint(url)) from None

    def _bring_up_to_date(self) -> None:
        with self._engine.connect() as connection:
            if sa.inspect(connection).has_table("alembic_version"):
                found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
                if found == VERSION:
                    return
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
            migrate(connection)

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Transaction]:
        """A transaction; a server that does not answer is an EnvironmentProblem."""
        try:
            with self._engine.begin() as connection:
                yield Transaction(
                    lambda statement, values: connection.execute(sa.text(statement), values), lambda found: found.keys()
                )
        except OperationalError as error:
            raise EnvironmentProblem(f"the job store does not answer: {_first_line(error)}") from None

    def close(self) -> None:
        """Close the connection, where one is kept."""
        self._engine.dispose()


def _hint(url: str) -> str:
    if "://" not in url:
        path = Path(url).expanduser().absolute()
        file = path / "jobs.db" if path.is_dir() or not path.suffix else path
        return f"write a URL: TRAINWORKS_STORE=sqlite:///{file}"
    if url.startswith("sqlite"):
        return "write it like TRAINWORKS_STORE=sqlite:////FOLDER/jobs.db"
    return "write it like TRAINWORKS_STORE=postgresql+psycopg://USER@HOST/DATABASE, and see whether the server runs"


def _first_line(error: BaseException) -> str:
    original = getattr(error, "orig", None) or error
    return (str(original).splitlines() or [type(original).__name__])[0]
