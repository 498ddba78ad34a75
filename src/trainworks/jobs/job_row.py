"""Rows of the job store: jobs, their attempts and placements. Importing them needs no database."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypedDict

from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.jobs.state import JobState, parse_state
from trainworks.record.exit_code import End
from trainworks.units import DAY_S, HOUR_S, Money

EndRequest = Literal["stop", "kill", "preempt", "time_limit"]
"""Reason of a request to end a job."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The share of one node that a job holds."""

    node: str
    cores: float
    devices: tuple[int, ...] = ()
    """Indexes of the accelerators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in the store."""

    id: int
    run_id: str
    run_dir: str
    name: str
    owner: str
    """Name of the user, for display only: `uid` identifies the user."""
    engine: str
    spec: JobSpec
    end: End
    """Its state and how it came to it."""
    submitted_at: float
    changed_at: float
    version: int
    """Number of the last change of this job, counted over all jobs of the store."""
    handle: str | None = None
    """Name of the job on its backend."""
    priority: int = 50
    held: bool = False
    raw: str | None = None
    """State as the backend reports it."""
    reason: str | None = None
    """Why the job waits."""
    detail: str | None = None
    asked_to_end: str | None = None
    attempt: int = 0
    """Number of allocations so far."""
    restarts: int = 0
    """Starts after a failure; starts after a preemption do not count."""
    placement: tuple[Placement, ...] = ()
    reachable: bool = True
    """False while the backend does not answer; the state is then the last one it reported."""
    position: int | None = None
    starts_at: float | None = None
    started_at: float | None = None
    cluster: str | None = None
    """`cluster` of the run file, as JSON; None on this machine."""
    uid: int | None = None
    """User who submitted the job."""
    host: str | None = None
    """Machine whose dispatcher starts the job; None for jobs of remote backends."""
    asked_by: int | None = None
    """User who requested the end of the job; for a waiting job, the administrator who queued it again."""

    @property
    def state(self) -> JobState:
        """State of the job; UNKNOWN if a newer version of Trainworks wrote another."""
        return parse_state(self.end.state)

    @property
    def ended_at(self) -> float | None:
        """Time of its end; None before that."""
        return self.end.at

    @property
    def team(self) -> str:
        """Team that the job is billed to; empty without one."""
        return self.spec.team or billing_of(self.cluster).team

    @property
    def hour_price(self) -> Money | None:
        """Price of an accelerator hour by the run file; None without one."""
        return billing_of(self.cluster).hour_price


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One allocation of a job: from getting its nodes to losing them."""

    job_id: int
    number: int
    started_at: float
    end: End
    """Its state, and how and when it lost its nodes."""
    placement: tuple[Placement, ...] = ()

    @property
    def state(self) -> JobState:
        """State of the job at the end of the attempt, or now."""
        return parse_state(self.end.state)

    @property
    def ended_at(self) -> float | None:
        """When the job lost its nodes; None while it has them."""
        return self.end.at


class JobChanges(TypedDict, total=False):
    """Columns of a job that may change beside its end."""

    name: str
    spec: JobSpec
    handle: str | None
    priority: int
    held: bool
    raw: str | None
    reason: str | None
    detail: str | None
    asked_to_end: str | None
    asked_by: int | None
    attempt: int
    restarts: int
    placement: Sequence[Placement]
    reachable: bool
    position: int | None
    starts_at: float | None
    started_at: float | None
    cluster: str | None
    uid: int | None
    host: str | None


@dataclass(frozen=True, slots=True)
class Billing:
    """Who pays for a job, and at which price."""

    team: str = ""
    """`job.team`, else the account of Slurm or the queue of Kueue; empty without one."""
    hour_price: Money | None = None
    """Price of an accelerator hour by the run file."""


@dataclass(frozen=True, slots=True)
class BilledAttempt:
    """What one attempt held, and whose it was."""

    job_id: int
    owner: str
    billing: Billing
    number: int
    """Number of the attempt, counted from 1."""
    started_at: float
    ended_at: float | None
    """None while it holds its nodes."""
    cores: float
    accelerators: int
    """Sum over all nodes."""
    array: str | None = None
    """Id of the array that the job is one of."""

    def hours(self, now: float) -> float:
        """Hours for which it has held its nodes; never negative, though clocks differ."""
        ended_at = now if self.ended_at is None else self.ended_at
        return max(0.0, ended_at - self.started_at) / HOUR_S

    def cost(self, now: float) -> Money | None:
        """Cost so far, in the currency of the price; None if the run file gives none."""
        price = self.billing.hour_price
        return Money(self.hours(now) * self.accelerators * price.amount, price.currency) if price else None


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month in UTC, by which held time is summed and limited."""

    name: str
    """Year and month, `2026-11`."""
    begins_at: float
    """Unix time of its first moment, in seconds."""
    ends_at: float
    """Unix time of the first moment of the next month, in seconds."""


def month_of(time_s: float) -> Month:
    """The month that holds a Unix time.

    >>> month_of(0.0)
    Month(name='1970-01', begins_at=0.0, ends_at=2678400.0)
    """
    return _month_of_day(int(time_s // DAY_S))


@lru_cache(maxsize=1024)
def _month_of_day(day: int) -> Month:
    """The month of a day, counted from 1970-01-01: a bill asks for those of thousands of attempts."""
    moment = datetime.fromtimestamp(day * DAY_S, UTC)
    begins = datetime(moment.year, moment.month, 1, tzinfo=UTC)
    ends = datetime(moment.year + moment.month // 12, moment.month % 12 + 1, 1, tzinfo=UTC)
    return Month(f"{moment:%Y-%m}", begins.timestamp(), ends.timestamp())


@lru_cache(maxsize=1024)
def billing_of(cluster: str | None) -> Billing:
    """What the `cluster` of a run file, as JSON, says of the bill.

    >>> billing_of('{"usd_per_accelerator_hour": 2.5, "slurm": {"account": "vision"}}')
    Billing(team='vision', hour_price=Money(amount=2.5, currency='USD'))
    """
    given = json.loads(cluster or "{}")
    team = (given.get("slurm") or {}).get("account") or (given.get("kubernetes") or {}).get("queue")
    usd, price = given.get("usd_per_accelerator_hour"), given.get("price")
    if usd is not None or isinstance(price, float | int):
        return Billing(str(team or ""), Money(price if usd is None else usd, "USD"))
    return Billing(str(team or ""), None if price is None else Money.parse_per_hour(price))


def new_job_columns(spec: JobSpec, *, run_dir: str, owner: str, engine: str, submitted_at: float) -> dict[str, object]:
    """Columns of a new job, without its version."""
    return {
        "run_id": spec.run_id,
        "run_dir": run_dir,
        "name": spec.name,
        "owner": owner,
        "engine": engine,
        "ticket": _spec_text(spec),
        "array": spec.array,
        "priority": spec.priority,
        "held": spec.hold,
        "state": str(JobState.QUEUED),
        "attempt": 0,
        "restarts": 0,
        "reachable": True,
        "submitted_at": submitted_at,
        "changed_at": submitted_at,
    }


def job_of_row(row: Mapping[str, Any]) -> JobRow:
    """The job of a row of the database."""
    values = dict(row)
    del values["array"]  # the spec has it, and searches need the column
    values["end"] = _end_of_columns(values)
    values["spec"] = _spec_of_text(values.pop("ticket"))
    values["placement"] = placement_of(values["placement"])
    values |= {name: bool(values[name]) for name in ("held", "reachable")}  # SQLite has numbers in their place
    return JobRow(**values)


@lru_cache(maxsize=1024)
def _spec_of_text(text: str) -> JobSpec:
    """The spec of a job's `ticket`; kept, because pages list the same jobs every second."""
    spec = json.loads(text)
    node = _node_of(spec["node"])
    roles = tuple(RoleSpec(**role | {"node": _node_of(role["node"])} | _tuples(role)) for role in spec.get("roles", ()))
    return JobSpec(**spec | _tuples(spec) | {"node": node, "roles": roles})


def _node_of(values: Mapping[str, Any]) -> NodeResources:
    return NodeResources(**{**values, **_tuples(values)})


def _tuples(values: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """The lists of JSON, which were tuples."""
    return {key: tuple(value) for key, value in values.items() if isinstance(value, list)}


def attempt_of_row(row: Mapping[str, Any]) -> Attempt:
    """The attempt of a row of the database."""
    values = dict(row)
    values["end"] = _end_of_columns(values)
    values["placement"] = placement_of(values["placement"])
    return Attempt(**values)


def _end_of_columns(values: dict[str, Any]) -> End:
    """Take the columns of an end out of those of a row."""
    words = {name: values.pop(name) for name in ("state", "cause", "message", "hint", "exit_code")}
    return End(**words, at=values.pop("ended_at"))


def end_columns(end: End) -> dict[str, object]:
    """The columns of a job or an attempt that hold its end."""
    return {
        "state": str(end.state),
        "cause": None if end.cause is None else str(end.cause),
        "message": end.message,
        "hint": end.hint,
        "exit_code": end.exit_code,
        "ended_at": end.at,
    }


def billed_of_row(row: Mapping[str, Any]) -> BilledAttempt:
    """What an attempt's row bills, joined with `owner`, `cluster` and `ticket` of its job."""
    placement = placement_of(row["placement"])
    spec, billing = json.loads(row["ticket"]), billing_of(row["cluster"])
    devices = sum(len(one.devices) for one in placement)  # of this machine; clusters name nodes alone
    roles = [role["nodes"] * role["node"]["accelerators"] for role in spec.get("roles", ())]
    accelerators = devices or (sum(roles) if roles else spec["node"]["accelerators"] * len(placement))
    cores = sum(one.cores for one in placement)
    billing = replace(billing, team=team) if (team := spec.get("team")) else billing
    return BilledAttempt(
        job_id=row["job_id"],
        owner=row["owner"],
        billing=billing,
        number=row["number"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        cores=cores,
        accelerators=accelerators,
        array=spec.get("array"),
    )


@lru_cache(maxsize=4096)
def placement_of(text: str | None) -> tuple[Placement, ...]:
    """Parse a placement column."""
    return tuple(Placement(node, cores, tuple(devices)) for node, cores, devices in json.loads(text or "[]"))


def placement_text(placement: Sequence[Placement]) -> str:
    """A placement as a column."""
    return json.dumps([(one.node, one.cores, one.devices) for one in placement])


def to_columns(changes: JobChanges) -> dict[str, object]:
    """Changes of a job as columns of the database."""
    columns: dict[str, object] = {**changes}
    if "placement" in changes:
        columns["placement"] = placement_text(changes["placement"])
    if "spec" in columns:
        del columns["spec"]
        columns["ticket"] = _spec_text(changes["spec"])
    return columns


def _spec_text(spec: JobSpec) -> str:
    return json.dumps(asdict(spec))
