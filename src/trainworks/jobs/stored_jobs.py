"""Read access to the job store: jobs, their attempts, and drained nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from trainworks.jobs.database import answering, file_identity
from trainworks.jobs.job_row import Attempt, BilledAttempt, JobRow, attempt_of_row, billed_of_row, job_of_row
from trainworks.jobs.state import JobState, parse_state
from trainworks.jobs.tables import attempts, changes, jobs, nodes


class StoredJobs:
    """Jobs, attempts and drained nodes, as any process may read them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._file = file_identity(engine.url)

    @property
    def url(self) -> str:
        """What `open_store` was given, password and all."""
        return self._engine.url.render_as_string(hide_password=False)

    def is_replaced(self) -> bool:
        """Whether another file has its name now: no other process reads what is written to this store."""
        now = file_identity(self._engine.url)
        return now is not None and now != self._file

    def close(self) -> None:
        """Close the connection, where one is kept."""
        self._engine.dispose()

    def _reading(self) -> AbstractContextManager[Connection]:
        return answering(self._engine)

    def run_dirs(self) -> set[str]:
        """Run directories of all jobs."""
        with self._reading() as connection:
            return set(connection.execute(sa.select(jobs.c.run_dir)).scalars())

    def get(self, job_id: int) -> JobRow | None:
        """The job of that number."""
        with self._reading() as connection:
            row = connection.execute(sa.select(jobs).where(jobs.c.id == job_id)).first()
        return job_of_row(row) if row else None

    def find(self, wanted: str, *, uid: int | None = None) -> JobRow | None:
        """The job of that number, run or run directory; of several runs of one name the newest, that user's first."""
        known = jobs.c.run_id == wanted
        if wanted.isdecimal() and len(wanted) < 10:
            known |= jobs.c.id == int(wanted)
        known |= jobs.c.run_dir == wanted
        with self._reading() as connection:
            theirs = sa.case((jobs.c.uid == uid, 0), else_=1)
            row = connection.execute(sa.select(jobs).where(known).order_by(theirs, jobs.c.id.desc()).limit(1)).first()
        return job_of_row(row) if row else None

    def search(
        self,
        *,
        states: Iterable[JobState] | None = None,
        engine: str | None = None,
        owner: str | None = None,
        uid: int | None = None,
        host: str | None = None,
        name: str | None = None,
        text: str | None = None,
        limit: int | None = None,
        before: int | None = None,
        array: str | None = None,
        one_per_array: bool = False,
    ) -> list[JobRow]:
        """Jobs, newest first: only those that meet each condition that is given.

        `text` is in their run, owner, engine, or the reason why they wait or ended. At most `limit` have a number
        smaller than `before`, to page on from the last one. `one_per_array` leaves of each array only the newest of
        these jobs.
        """
        query = sa.select(jobs).order_by(jobs.c.id.desc())
        if states is not None:
            query = query.where(jobs.c.state.in_([str(state) for state in states]))
        wanted = {"engine": engine, "owner": owner, "uid": uid, "host": host, "name": name, "array": array}
        for column, value in wanted.items():
            query = query.where(jobs.c[column] == value) if value is not None else query
        query = query.where(jobs.c.id < before) if before is not None else query
        if text:
            columns = (jobs.c[column] for column in ("run_id", "owner", "engine", "reason", "detail", "cause"))
            query = query.where(sa.or_(*(column.icontains(text, autoescape=True) for column in columns)))
        if one_per_array:
            found = query.order_by(None).where(jobs.c.array.is_not(None)).subquery()
            newest = sa.select(sa.func.max(found.c.id)).group_by(found.c.array)
            query = query.where(jobs.c.array.is_(None) | jobs.c.id.in_(newest))
        with self._reading() as connection:
            return [job_of_row(row) for row in connection.execute(query.limit(limit))]

    def array_states(self, arrays: Iterable[str]) -> dict[str, dict[JobState, int]]:
        """Jobs of each array by state."""
        columns = (jobs.c.array, jobs.c.state, sa.func.count())
        query = sa.select(*columns).where(jobs.c.array.in_(list(arrays))).group_by(jobs.c.array, jobs.c.state)
        counts: dict[str, dict[JobState, int]] = {}
        with self._reading() as connection:
            for array, state, count in connection.execute(query):
                counts.setdefault(array, {})[parse_state(state)] = count
        return counts

    def version(self) -> int:
        """Number of the newest change of a job."""
        with self._reading() as connection:
            return int(connection.execute(sa.select(changes.c.number)).scalar_one())

    def changed(
        self, after: int, *, engine: str | None = None, uid: int | None = None, host: str | None = None
    ) -> Sequence[JobRow]:
        """Jobs that were changed after that version, in the order of their changes; all, or only those named."""
        query = sa.select(jobs).where(jobs.c.version > after).order_by(jobs.c.version)
        for column, value in (("engine", engine), ("uid", uid), ("host", host)):
            query = query.where(jobs.c[column] == value) if value is not None else query
        with self._reading() as connection:
            return [job_of_row(row) for row in connection.execute(query)]

    def counts(self) -> dict[JobState, int]:
        """Jobs by state."""
        query = sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state)
        with self._reading() as connection:
            return {parse_state(state): count for state, count in connection.execute(query)}

    def attempts(self, job_id: int | None = None) -> list[Attempt]:
        """Every attempt of a job, in order; of all jobs when None."""
        query = sa.select(attempts).order_by(attempts.c.job_id, attempts.c.number)
        query = query if job_id is None else query.where(attempts.c.job_id == job_id)
        with self._reading() as connection:
            return [attempt_of_row(row) for row in connection.execute(query)]

    def billed_attempts(
        self, job_ids: Sequence[int] | None = None, *, arrays: Iterable[str] = ()
    ) -> list[BilledAttempt]:
        """What every attempt of these jobs and arrays held, or of all jobs; of thousands in a fraction of a second."""
        if job_ids is None:
            return self._billed(sa.true())
        return self._billed(attempts.c.job_id.in_(job_ids) | jobs.c.array.in_(list(arrays)))

    def held_since(self, since: float, *, uid: int, host: str) -> list[BilledAttempt]:
        """What those attempts of a user's jobs held on a machine that had not ended at a time."""
        own = (jobs.c.engine == "local") & (jobs.c.uid == uid) & (jobs.c.host == host)
        return self._billed(own & (attempts.c.ended_at.is_(None) | (attempts.c.ended_at > since)))

    def _billed(self, condition: sa.ColumnElement[bool]) -> list[BilledAttempt]:
        of_attempt = (
            attempts.c.job_id,
            attempts.c.number,
            attempts.c.placement,
            attempts.c.started_at,
            attempts.c.ended_at,
        )
        query = sa.select(jobs.c.owner, jobs.c.cluster, jobs.c.ticket, *of_attempt).join_from(attempts, jobs)
        with self._reading() as connection:
            return [billed_of_row(row) for row in connection.execute(query.where(condition))]

    def drained(self) -> dict[str, str]:
        """Drained nodes, and why."""
        return {name: reason for name, (reason, _) in self.drains().items()}

    def drains(self) -> dict[str, tuple[str, int | None]]:
        """Drained nodes: why, and the user who drained them."""
        with self._reading() as connection:
            return {row.name: (row.reason, row.uid) for row in connection.execute(sa.select(nodes))}
