"""The job store: every submitted job of every backend, in SQLite by default or in another database by URL.

A change of state is one statement that names the states it may start from: of two concurrent writers one succeeds, and
the other learns that it did not. No lock lasts longer than a statement.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

from trainworks.errors import UsageError
from trainworks.jobs import job_row
from trainworks.jobs.database import SqliteFile, Transaction, sqlite_file
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import TRANSITIONS, JobState, attempt_state, parse_cause, parse_state
from trainworks.jobs.stored_jobs import StoredJobs, among
from trainworks.record.exit_code import End
from trainworks.system import user_id

_LOG = logging.getLogger(__name__)


def open_store(url: str, *, keep_connection: bool = False) -> JobStore:
    """The store at a URL, as SQLAlchemy writes one; made, or brought up to date, if need be.

    With `keep_connection` it stays connected until `close`, for one who asks often. A process that is forked off must
    not touch such a store, and not end in a way that lets Python clean up. Of SQLite's connections the last one that is
    closed takes the write-ahead log with it: one that stays spares all others that work.

    Raises:
        EnvironmentProblem: it cannot be opened, or a newer version of Trainworks wrote it.
    """
    file = sqlite_file(url)
    if file is not None:
        return JobStore(SqliteFile(url, file, keep_connection=keep_connection))
    from trainworks.jobs.server_database import ServerDatabase  # noqa: PLC0415, it imports SQLAlchemy

    return JobStore(ServerDatabase(url, keep_connection=keep_connection))


class JobStore(StoredJobs):
    """The job store, to read and to write."""

    def add(
        self,
        spec: JobSpec,
        *,
        run_dir: str,
        owner: str,
        engine: str,
        now: float,
        cluster: str | None = None,
        uid: int | None = None,
        host: str | None = None,
    ) -> job_row.JobRow:
        """Write a new job down, which waits; once this returns it is not lost.

        A run directory is submitted once: the same again is the job that there is. A job that has ended in a directory
        of the same name, deleted since, gives way to the new one. The run directory is absolute, without links. `owner`
        is a name for display; the user `uid` is that of this process when None. `cluster` has the run file's words for
        where it runs, as JSON. `host` is the machine whose dispatcher starts the job; None where another engine does.

        Raises:
            UsageError: the run directory is a job of another user or machine already.
        """
        uid = user_id() if uid is None else uid
        row = job_row.new_job_columns(spec, run_dir=run_dir, owner=owner, engine=engine, submitted_at=now)
        row |= {"cluster": cluster, "uid": uid, "host": host}
        with self._database.transaction(writes=True) as transaction:
            rows = transaction.rows("SELECT * FROM jobs WHERE run_dir = :run_dir", {"run_dir": run_dir})
            there = job_row.job_of_row(rows[0]) if rows else None
            if there is not None and there.state.is_final and (there.uid, there.host) == (uid, host):
                transaction.count("DELETE FROM jobs WHERE id = :id", {"id": there.id})
                there = None
            if there is None:
                there = _added(transaction, row)
        if (there.uid, there.host) != (uid, host):
            where = there.host or there.engine
            raise UsageError(
                f"cannot submit `{run_dir}`: it is job {there.id} of {there.owner} on {where} already",
                hint="submit from another folder, or with another `--runs`",
            )
        return there

    def restore(
        self,
        spec: JobSpec,
        *,
        run_dir: str,
        owner: str,
        engine: str,
        submitted_at: float,
        end: End,
        columns: job_row.JobChanges,
    ) -> None:
        """Write down a job that another store had, in the state that it is in; this one has no job of its run
        directory. `engine` has it, and `end` tells how it came to its state, and when. With `attempt` among the other
        `columns` that attempt begins.
        """
        now = end.at or submitted_at
        end = end if parse_state(end.state).is_final else replace(end, at=None)
        row = job_row.new_job_columns(spec, run_dir=run_dir, owner=owner, engine=engine, submitted_at=submitted_at)
        row |= job_row.to_columns(columns) | job_row.end_columns(end) | {"changed_at": now}
        with self._database.transaction(writes=True) as transaction:
            job = _added(transaction, row)
            if job.attempt:
                _begin_attempt(transaction, job, now)

    def remove(self, job_id: int) -> bool:
        """Delete a job that its engine never got; False if the engine has it, or it has started."""
        statement = "DELETE FROM jobs WHERE id = :id AND handle IS NULL AND attempt = 0 AND state = :state"
        with self._database.transaction(writes=True) as transaction:
            return transaction.count(statement, {"id": job_id, "state": str(JobState.QUEUED)}) == 1

    def move(
        self,
        job_id: int,
        to: JobState | End,
        *,
        since: Sequence[JobState] | None = None,
        version: int | None = None,
        now: float,
        **changes: Unpack[job_row.JobChanges],
    ) -> bool:
        """Take a job to another state, with what changes beside it; False if another process changed it first.

        An End also says how the job came to its new state, and when it ended or gave up its nodes, if that was before
        `now`. A state alone leaves cause, message, hint and exit code as they are; one that ends an attempt ends it in
        `attempts` too. The job is in one of the states `since`; all that may come before the new one when left out.
        `version` is that of the row as it was read, if nothing in it may have changed since.
        """
        end, words = (to, job_row.end_columns(to)) if isinstance(to, End) else (End(to), {"state": str(to)})
        state, ended_at = parse_state(end.state), end.at or now
        before = [one for one in (since or JobState) if state in TRANSITIONS[one]]
        values = (
            job_row.to_columns(changes) | words | {"changed_at": now, "ended_at": ended_at if state.is_final else None}
        )
        if state.is_final:
            values |= {"position": None, "starts_at": None, "reason": None, "detail": None}
        with self._database.transaction(writes=True) as transaction:
            moved = _changed(transaction, job_id, before, values, version=version)
            if moved is not None:
                self._follow(transaction, moved, ended_at)
        why = "" if moved is not None else "another process changed it first"
        _LOG.info("job %d %s %s: %s", job_id, "is" if moved is not None else "is not", state, why or changes)
        return moved is not None

    def _follow(self, transaction: Transaction, job: job_row.JobRow, ended_at: float) -> None:
        """The attempt's own row: it ends when its job gives up its nodes, and not before it began."""
        own = {"job": job.id, "attempt": job.attempt}
        found = "FROM attempts WHERE job_id = :job AND number = :attempt AND ended_at IS NULL"
        began = next((row["started_at"] for row in transaction.rows(f"SELECT started_at {found}", own)), None)
        if began is None:
            return
        state = attempt_state(job.state, parse_cause(job.end.cause))
        ended = max(began, ended_at) if job.state.is_final or job.state.waits else None
        values = job_row.end_columns(replace(job.end, state=state, at=ended))
        transaction.count(_update("attempts", values, "job_id = :job AND number = :attempt"), values | own)

    def start(
        self, job: job_row.JobRow, placement: Sequence[job_row.Placement], *, now: float
    ) -> job_row.JobRow | None:
        """Give a job that waits its nodes, and begin its next attempt; None if it has changed since it was read."""
        placed = job_row.placement_text(placement)
        values = {
            "attempt": job.attempt + 1,
            "placement": placed,
            "changed_at": now,
            "started_at": now,
            **job_row.end_columns(End(JobState.STARTING)),
            **dict.fromkeys(("reason", "detail", "position", "starts_at", "asked_to_end", "asked_by")),
        }
        with self._database.transaction(writes=True) as transaction:
            started = _changed(transaction, job.id, [job.state], values, version=job.version)
            if started:
                _begin_attempt(transaction, started, now)
        why = "" if started else "not started, another process changed it first"
        _LOG.info("job %d attempt %d: %s", job.id, job.attempt + 1, why or placed)
        return started

    def change(
        self,
        job_id: int,
        *,
        now: float | None = None,
        waits_since_attempt: int | None = None,
        end: End | None = None,
        **changes: Unpack[job_row.JobChanges],
    ) -> bool:
        """Change columns of an unfinished job but its state; False if it does not exist or has ended.

        `now` is None if this does not count as a change. With `waits_since_attempt` False, too, if the job does not
        wait, or has had more attempts than that. `end` tells how it came to the state that it is in.
        """
        only_waiting = waits_since_attempt is not None
        live = [state for state in JobState if (state.waits if only_waiting else not state.is_final)]
        values = job_row.to_columns(changes) | ({"changed_at": now} if now is not None else {})
        if end is not None:
            values |= {
                name: value for name, value in job_row.end_columns(end).items() if name not in ("state", "ended_at")
            }
        with self._database.transaction(writes=True) as transaction:
            return _changed(transaction, job_id, live, values, attempt=waits_since_attempt) is not None

    def explain(self, pending: Mapping[int, tuple[str, str, int | None, float | None]]) -> None:
        """Write down why jobs wait: reason, detail, position and estimated start of each."""
        if not pending:
            return
        waits: dict[str, object] = {}
        of_one = among("state", [str(state) for state in JobState if state.waits], waits)
        columns = ("reason", "detail", "position", "starts_at")
        statement = _update("jobs", columns, f"id = :id AND {of_one}")
        with self._database.transaction(writes=True) as transaction:
            for job, why in pending.items():
                transaction.count(statement, dict(zip(columns, why, strict=True)) | waits | {"id": job})

    def write_attempts(self, job_id: int, rows: Sequence[job_row.Attempt]) -> None:
        """Replace every attempt of a job."""
        if self.attempts(job_id) == list(rows):
            return
        values = [
            job_row.end_columns(row.end)
            | {"job_id": job_id, "number": row.number, "started_at": row.started_at}
            | {"placement": job_row.placement_text(row.placement)}
            for row in rows
        ]
        with self._database.transaction(writes=True) as transaction:
            transaction.count("DELETE FROM attempts WHERE job_id = :job", {"job": job_id})
            for row in values:
                transaction.count(insertion("attempts", row), row)

    def drain(self, node: str, reason: str, *, now: float, uid: int | None = None) -> None:
        """Give a node no more jobs; a new reason replaces the old one."""
        with self._database.transaction(writes=True) as transaction:
            row = {"name": node, "reason": reason, "drained_at": now, "uid": uid}
            transaction.count("DELETE FROM nodes WHERE name = :name", {"name": node})
            transaction.count(insertion("nodes", row), row)

    def undrain(self, node: str) -> bool:
        """Give a node jobs again; False if it was not drained."""
        with self._database.transaction(writes=True) as transaction:
            return transaction.count("DELETE FROM nodes WHERE name = :name", {"name": node}) == 1


def _next_version(transaction: Transaction) -> int:
    """Number of the next change of a job.

    A writer takes it and keeps others from writing until it is done, so that numbers become visible in their order.
    """
    return int(transaction.rows("UPDATE changes SET number = number + 1 RETURNING number")[0]["number"])


def _added(transaction: Transaction, row: dict[str, object]) -> job_row.JobRow:
    row["version"] = _next_version(transaction)
    return job_row.job_of_row(transaction.rows(insertion("jobs", row) + " RETURNING *", row)[0])


def _changed(
    transaction: Transaction,
    job_id: int,
    states: Sequence[JobState],
    columns: Mapping[str, object],
    *,
    version: int | None = None,
    attempt: int | None = None,
) -> job_row.JobRow | None:
    """The job of that number, after new values of columns; None if it has another state, version or attempt."""
    values = {**columns, "version": _next_version(transaction)}
    known: dict[str, object] = {"id": job_id, "seen": version, "since": attempt}
    where = f"id = :id AND {among('state', map(str, states), known)}"
    where += " AND version = :seen" if version is not None else ""
    where += " AND attempt = :since" if attempt is not None else ""
    rows = transaction.rows(_update("jobs", values, where) + " RETURNING *", values | known)
    return job_row.job_of_row(rows[0]) if rows else None


def _begin_attempt(transaction: Transaction, job: job_row.JobRow, now: float) -> None:
    row = {"job_id": job.id, "number": job.attempt, "state": str(job.state), "started_at": now}
    row["placement"] = job_row.placement_text(job.placement)
    transaction.count(insertion("attempts", row), row)


def _update(table: str, columns: Collection[str], where: str) -> str:
    """A statement; the names in it are of this program alone, and each value is bound."""
    return " ".join(["UPDATE", table, "SET", ", ".join(f'"{name}" = :{name}' for name in columns), "WHERE", where])


def insertion(table: str, names: Collection[str]) -> str:
    """A statement that adds a row; see `_update`."""
    columns, values = ", ".join(f'"{name}"' for name in names), ", ".join(f":{name}" for name in names)
    return " ".join(["INSERT INTO", table, f"({columns}) VALUES ({values})"])
