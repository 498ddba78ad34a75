"""Read access to the job store: jobs, their attempts, and drained nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from trainworks.jobs.database import NO_VALUES, Row, SqliteFile, file_identity
from trainworks.jobs.job_row import Attempt, BilledAttempt, JobRow, attempt_of_row, billed_of_row, job_of_row
from trainworks.jobs.state import JobState, parse_state

if TYPE_CHECKING:
    from trainworks.jobs.server_database import ServerDatabase

_SEARCHED = ("run_id", "owner", "engine", "reason", "detail", "cause")
"""Columns in which `search` looks for a text."""
ORDERS = {
    "job": "id",
    "run": "run_id",
    "state": "state",
    "owner": "owner",
    "engine": "engine",
    "priority": "priority",
    "submitted": "submitted_at",
    "started": "started_at",
    "ended": "ended_at",
}
"""Name of an order of `search` -> its column."""
_ENDED_AFTER = "(attempts.ended_at IS NULL OR attempts.ended_at > :since)"


class StoredJobs:
    """Jobs, attempts and drained nodes, as any process may read them."""

    def __init__(self, database: SqliteFile | ServerDatabase) -> None:
        self._database = database
        self._identity = file_identity(database.file)

    @property
    def url(self) -> str:
        """What `open_store` was given, password and all."""
        return self._database.url

    def is_replaced(self) -> bool:
        """Whether another file has its name now: no other process reads what is written to this store."""
        now = file_identity(self._database.file)
        return now is not None and now != self._identity

    def close(self) -> None:
        """Close the connection, where one is kept."""
        self._database.close()

    def _rows(self, query: str, values: Mapping[str, object] = NO_VALUES) -> list[Row]:
        with self._database.transaction() as transaction:
            return transaction.rows(query, values)

    def run_dirs(self) -> set[str]:
        """Run directories of all jobs."""
        return {row["run_dir"] for row in self._rows("SELECT run_dir FROM jobs")}

    def get(self, job_id: int) -> JobRow | None:
        """The job of that number."""
        rows = self._rows("SELECT * FROM jobs WHERE id = :id", {"id": job_id})
        return job_of_row(rows[0]) if rows else None

    def find(self, wanted: str, *, uid: int | None = None) -> JobRow | None:
        """The job of that number, run or run directory; of several runs of one name the newest, that user's first."""
        number = int(wanted) if wanted.isdecimal() and len(wanted) < 10 else None
        query = (
            "SELECT * FROM jobs WHERE run_id = :wanted OR run_dir = :wanted OR id = :number"
            " ORDER BY CASE WHEN uid = :uid THEN 0 ELSE 1 END, id DESC LIMIT 1"
        )
        rows = self._rows(query, {"wanted": wanted, "number": number, "uid": uid})
        return job_of_row(rows[0]) if rows else None

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
        order: str = "job",
        ascending: bool = False,
        skip: int = 0,
    ) -> list[JobRow]:
        """Jobs, newest first: only those that meet each condition that is given.

        `text` is in their run, owner, engine, or the reason why they wait or ended. At most `limit` have a number
        smaller than `before`, to page on from the last one. `one_per_array` leaves of each array only the newest of
        these jobs. `order` is one of `ORDERS`; jobs without a value come last, and of equal ones the newest first. The
        first `skip` are left out.
        """
        values: dict[str, object] = {}
        wanted = {"engine": engine, "owner": owner, "uid": uid, "host": host, "name": name, "array": array}
        where = conditions(wanted, values)
        if states is not None:
            where.append(among("state", map(str, states), values))
        if before is not None:
            where.append("id < :before")
            values["before"] = before
        if text:
            matches = (f"lower({column}) LIKE lower(CAST(:text AS TEXT)) ESCAPE '/'" for column in _SEARCHED)
            where.append(f"({' OR '.join(matches)})")
            values["text"] = "%" + re.sub("([/%_])", r"/\1", text) + "%"
        if one_per_array:
            newest = _statement("SELECT max(id) FROM jobs", [*where, '"array" IS NOT NULL'], 'GROUP BY "array"')
            where.append(f'("array" IS NULL OR id IN ({newest}))')
        column, direction = ORDERS[order], "ASC" if ascending else "DESC"
        by = f"{column} IS NULL, {column} {direction}, id DESC" if column != "id" else f"id {direction}"
        query = _statement("SELECT * FROM jobs", where, f"ORDER BY {by}")
        if limit is not None:  # a database sorts numbers of jobs many times faster than whole rows
            page = _statement("SELECT id AS found FROM jobs", where, f"ORDER BY {by} LIMIT :limit OFFSET :skip")
            query = " ".join(["SELECT jobs.* FROM jobs JOIN (", page, ") AS page ON found = id ORDER BY", by])
            values |= {"limit": limit, "skip": skip}
        return [job_of_row(row) for row in self._rows(query, values)]

    def array_states(self, arrays: Iterable[str]) -> dict[str, dict[JobState, int]]:
        """Jobs of each array by state."""
        values: dict[str, object] = {}
        columns = 'SELECT "array", state, count(*) AS number FROM jobs'
        query = _statement(columns, [among("array", arrays, values)], 'GROUP BY "array", state')
        counts: dict[str, dict[JobState, int]] = {}
        for row in self._rows(query, values):
            counts.setdefault(row["array"], {})[parse_state(row["state"])] = row["number"]
        return counts

    def version(self) -> int:
        """Number of the newest change of a job."""
        return int(self._rows("SELECT number FROM changes")[0]["number"])

    def changed(
        self, after: int, *, engine: str | None = None, uid: int | None = None, host: str | None = None
    ) -> Sequence[JobRow]:
        """Jobs that were changed after that version, in the order of their changes; all, or only those named."""
        values: dict[str, object] = {"after": after}
        where = ["version > :after", *conditions({"engine": engine, "uid": uid, "host": host}, values)]
        rows = self._rows(_statement("SELECT * FROM jobs", where, "ORDER BY version"), values)
        return [job_of_row(row) for row in rows]

    def live_queues(self, uid: int) -> set[tuple[str, str | None]]:
        """Engine and machine of each unfinished job of a user; no machine where another engine starts them."""
        values: dict[str, object] = {"uid": uid}
        where = ["uid = :uid", among("state", [str(one) for one in JobState if not one.is_final], values)]
        rows = self._rows(_statement("SELECT DISTINCT engine, host FROM jobs", where), values)
        return {(row["engine"], row["host"]) for row in rows}

    def counts(self) -> dict[JobState, int]:
        """Jobs by state."""
        rows = self._rows("SELECT state, count(*) AS number FROM jobs GROUP BY state")
        return {parse_state(row["state"]): row["number"] for row in rows}

    def attempts(self, job_id: int | None = None) -> list[Attempt]:
        """Every attempt of a job, in order; of all jobs when None."""
        values: dict[str, object] = {}
        where = conditions({"job_id": job_id}, values)
        rows = self._rows(_statement("SELECT * FROM attempts", where, "ORDER BY job_id, number"), values)
        return [attempt_of_row(row) for row in rows]

    def attempts_since(self, since: float, *, engine: str, host: str | None) -> list[tuple[str, Attempt]]:
        """Run directory and attempt of all jobs of an engine that held nodes after a time, or still do, in order.

        `host` is the machine whose dispatcher starts the jobs; any when None.
        """
        values: dict[str, object] = {"since": since}
        where = [*conditions({"engine": engine, "host": host}, values), _ENDED_AFTER]
        columns = "SELECT run_dir, attempts.* FROM attempts JOIN jobs ON jobs.id = job_id"
        rows = self._rows(_statement(columns, where, "ORDER BY job_id, number"), values)
        return [(row["run_dir"], attempt_of_row({k: v for k, v in row.items() if k != "run_dir"})) for row in rows]

    def billed_attempts(
        self, job_ids: Sequence[int] | None = None, *, arrays: Iterable[str] = ()
    ) -> list[BilledAttempt]:
        """What every attempt of these jobs and arrays held, or of all jobs; of thousands in a fraction of a second."""
        values: dict[str, object] = {}
        if job_ids is None:
            return self._billed([], values)
        return self._billed([f"({among('job_id', job_ids, values)} OR {among('array', arrays, values)})"], values)

    def held_since(self, since: float, *, uid: int, host: str) -> list[BilledAttempt]:
        """What those attempts of a user's jobs held on a machine that had not ended at a time."""
        values: dict[str, object] = {"since": since}
        own = conditions({"engine": "local", "uid": uid, "host": host}, values)
        return self._billed([*own, _ENDED_AFTER], values)

    def _billed(self, where: Sequence[str], values: Mapping[str, object]) -> list[BilledAttempt]:
        query = _statement(
            "SELECT owner, cluster, ticket, job_id, number, attempts.placement, attempts.started_at, attempts.ended_at"
            " FROM attempts JOIN jobs ON jobs.id = job_id",
            where,
        )
        rows = self._rows(query, values)
        return [billed_of_row(row) for row in rows]

    def drains(self) -> dict[str, tuple[str, int | None]]:
        """Drained nodes: why, and the user who drained them."""
        return {row["name"]: (row["reason"], row["uid"]) for row in self._rows("SELECT * FROM nodes")}


def _statement(verb: str, where: Sequence[str], end: str = "") -> str:
    return " ".join([verb, f"WHERE {' AND '.join(where)}" if where else "", end])


def conditions(wanted: Mapping[str, object], values: dict[str, object]) -> list[str]:
    """The conditions that columns have the values that are not None, which it adds to `values`."""
    given = {column: value for column, value in wanted.items() if value is not None}
    values |= given
    return [f'"{column}" = :{column}' for column in given]


def among(column: str, wanted: Iterable[object], values: dict[str, object]) -> str:
    """The condition that a column has one of several values, which it adds to `values`."""
    given = {f"{column}_{number}": value for number, value in enumerate(wanted)}
    values |= given
    return f'"{column}" IN ({", ".join(f":{name}" for name in given)})' if given else "1 = 0"
