"""The jobs of the store for many readers: found, counted and priced without a poll of a backend per reader."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from trainworks.api.jobs import Job, JobRow, JobState, refresh_jobs
from trainworks.api.notices import Notify, warn
from trainworks.backends.store_place import is_there_a_store, store_url
from trainworks.backends.submission import submitted_runs
from trainworks.catalog.exchange import usd_of
from trainworks.errors import TrainworksError, UnknownRunError, UsageError, suggest
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.job_row import BilledAttempt, month_of
from trainworks.jobs.state import parse_state
from trainworks.jobs.store import JobStore, open_store
from trainworks.jobs.stored_jobs import ORDERS
from trainworks.record.events.log import read_events
from trainworks.recover.failures import describe_failure, first_failure
from trainworks.report.job_costs import HeldTime, Usage
from trainworks.units import Money

__all__ = ["HeldTime", "JobBoard", "JobQuery", "JobsFound", "Usage", "UsageKey", "usage"]

UsageKey = Literal["month", "user", "team"]

_REFRESH_EVERY_S = 3.0


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Conditions that a listed job meets."""

    state: str = ""
    """A state, `live` for all that are not final, or empty for any."""
    owner: str = ""
    text: str = ""
    """In the run, owner, engine, or the reason why the job waits or ended."""
    before: int | None = None
    """Only jobs with a smaller number; to read on from the last one of a page."""
    limit: int = 50
    order: str = "-job"
    """One of `ORDERS`, the largest value first after a `-`."""
    skip: int = 0
    """Leave out so many, to read on in an order other than that of the numbers."""

    def column(self) -> str:
        """The order without its direction.

        Raises:
            UsageError: no such order.
        """
        name = self.order.removeprefix("-")
        if name not in ORDERS:
            hint = suggest(name, ORDERS, otherwise=f"one of {', '.join(ORDERS)}")
            raise UsageError(f"no order `{self.order}`", hint=hint)
        return name

    def states(self) -> Sequence[JobState] | None:
        """The wanted states; None for all of them.

        Raises:
            UsageError: no such state.
        """
        if self.state == "live":
            return [state for state in JobState if not state.is_final]
        if not self.state:
            return None
        if self.state.upper() not in JobState.__members__:
            raise UsageError(f"no state `{self.state}`", hint=f"one of live, {', '.join(JobState)}")
        return [parse_state(self.state.upper())]


@dataclass(frozen=True, slots=True)
class JobsFound:
    """One page of jobs."""

    jobs: list[JobRow]
    next: int | None
    """`before` of the next page in the order of the numbers; None on the last one."""
    counts: dict[str, int]
    """Jobs of the whole store by state."""
    has_more: bool = False
    """True if there is a next page."""


class JobBoard:
    """The job store, open for as long as there are readers.

    `notify` receives warnings of backends that do not answer.
    """

    def __init__(self, clock: Clock | None = None, notify: Notify = warn) -> None:
        self._clock = clock or SystemClock()
        self._notify = notify
        self._store: JobStore | None = None
        self._lock = threading.Lock()
        self._refreshed_at = 0.0

    def find(self, query: JobQuery) -> JobsFound:
        """Jobs, the newest first.

        Raises:
            UsageError: no such state.
        """
        states, column, store = query.states(), query.column(), self._opened()
        if store is None:
            return JobsFound([], None, {})
        rows = store.search(
            states=states,
            owner=query.owner or None,
            text=query.text,
            before=query.before,
            limit=query.limit + 1,
            order=column,
            ascending=not query.order.startswith("-"),
            skip=query.skip,
        )
        shown = rows[: query.limit]
        counts = {str(state): count for state, count in sorted(store.counts().items())}
        has_more = len(rows) > len(shown)
        return JobsFound(shown, shown[-1].id if has_more and query.order == "-job" else None, counts, has_more)

    def job(self, name: str) -> Job:
        """The job of a number or a run id.

        Raises:
            UnknownRunError: no such job.
        """
        store = self._opened()
        row = store.find(name) if store is not None else None
        if store is None or row is None:
            raise UnknownRunError(f"no job `{name}`", hint="see the list of jobs")
        return Job(store, row, self._notify)

    def live_run_dirs(self) -> list[str]:
        """Run directories of the newest 200 jobs that have not ended."""
        return [job.run_dir for job in self.find(JobQuery("live", limit=200)).jobs]

    def version(self) -> int:
        """Grows with every change of a job; 0 without a store."""
        store = self._opened()
        return 0 if store is None else store.version()

    def usage(self, by: Sequence[UsageKey] = get_args(UsageKey)) -> Usage:
        """What jobs held, one sum for each value of `by`: the month (UTC), user and team."""
        store = self._opened()
        attempts = [] if store is None else store.billed_attempts()
        return summed(attempts, by, self._clock.now())

    def _opened(self) -> JobStore | None:
        with self._lock:
            if self._store is not None and self._store.is_replaced():
                self._store.close()
                self._store = None
            if self._store is None and is_there_a_store():
                self._store = open_store(store_url(), keep_connection=True)
            if self._store is not None and self._clock.now() >= self._refreshed_at + _REFRESH_EVERY_S:
                self._refreshed_at = self._clock.now()
                # A scheduler may take seconds to answer, and readers want the last known states meanwhile.
                threading.Thread(target=self._refresh, args=(self._store,), daemon=True).start()
            return self._store

    def _refresh(self, store: JobStore) -> None:
        try:
            refresh_jobs(store, self._notify)
        except TrainworksError as error:
            self._notify(error.message)


def usage(by: UsageKey | None = None, *, notify: Notify = warn) -> Usage:
    """What the jobs of the store held and cost: accelerator and core hours, and USD where run files give a price.

    `by` is the month (UTC) in which it was held, the user or the team; all three when None. `notify` receives warnings
    of backends that do not answer.

    Examples:
        >>> import trainworks
        >>> trainworks.usage("team").to_json().keys()
        dict_keys(['held'])
    """
    if not is_there_a_store():
        return Usage(())
    store = open_store(store_url())
    refresh_jobs(store, notify)
    return summed(store.billed_attempts(), (by,) if by else get_args(UsageKey), SystemClock().now())


def summed(attempts: Iterable[BilledAttempt], by: Sequence[UsageKey], now: float) -> Usage:
    """Sums over attempts, one for each value of `by`: time counts in the month (UTC) in which it was held, up to `now`,
    and a job in that of its first start.
    """
    sums: dict[tuple[str, str, str], HeldTime] = {}
    for attempt in attempts:
        for month, one in _split_by_month(attempt, now) if "month" in by else [("", attempt)]:
            key = (month, one.owner if "user" in by else "", one.billing.team if "team" in by else "")
            sums[key] = sums.get(key, HeldTime(*key)) + _held(one, now)
    return Usage(tuple(sums[key] for key in sorted(sums, reverse=True)))


def _split_by_month(attempt: BilledAttempt, now: float) -> Iterator[tuple[str, BilledAttempt]]:
    """The parts of an attempt in each month; the first one has its number."""
    ended_at = now if attempt.ended_at is None else attempt.ended_at
    while True:
        month = month_of(attempt.started_at)
        if ended_at <= month.ends_at:
            yield month.name, attempt
            return
        yield month.name, replace(attempt, ended_at=month.ends_at)
        attempt = replace(attempt, number=0, started_at=month.ends_at)


def _held(one: BilledAttempt, now: float) -> HeldTime:
    hours, usd = one.hours(now), usd_of(one.cost(now))
    return HeldTime(
        jobs=int(one.number == 1),
        accelerator_hours=hours * one.accelerators,
        core_hours=hours * one.cores,
        usd=usd or 0.0,
        unpriced_hours=hours * one.accelerators if usd is None else 0.0,
    )


def array_states(listed: Sequence[Job]) -> dict[str, dict[JobState, int]]:
    """Jobs by state of each array that one of these jobs belongs to."""
    arrays = {job.row.spec.array for job in listed if job.row.spec.array}
    return open_store(store_url()).array_states(arrays) if arrays else {}


def costs_so_far(listed: Sequence[Job], now: float, arrays: Collection[str] = ()) -> dict[int, Money]:
    """Cost of each of these jobs whose run file gives a price, in its currency, by number of the job.

    A job that is listed stands for all jobs of its array, if that is among `arrays`: its cost is their sum.
    """
    if not any(job.row.hour_price for job in listed):
        return {}
    costs: dict[int, Money] = {}
    shown_as = {job.row.spec.array: job.id for job in listed if job.row.spec.array in arrays}
    for one in open_store(store_url()).billed_attempts([job.id for job in listed], arrays=arrays):
        if (cost := one.cost(now)) is not None:
            line = shown_as.get(one.array, one.job_id)
            before = costs.get(line)
            costs[line] = cost if before is None else replace(cost, amount=before.amount + cost.amount)
    return costs


def missing_runs(folder: Path) -> list[str]:
    """Ids of submitted runs of a folder that are not in the job store."""
    submitted = submitted_runs(folder)
    known = open_store(store_url()).run_dirs() if submitted else ()
    return [run.run_id for run in submitted if str(run.path.resolve()) not in known]


def first_failure_lines(job: Job, tail_lines: int = 10) -> list[str]:
    """The first failed rank of a job and the end of its log; empty if no rank failed."""
    events = read_events(job.run_dir.events_file)
    failure = first_failure(events)
    rank = failure.get("rank") if failure else None
    if failure is None or rank is None:
        return []
    host = failure.get("host", "an unknown host")
    lines = [f"first failure: rank {rank} on {host}: {describe_failure(failure, events)}"]
    file = job.run_dir.rank_log(rank)
    try:
        log = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return lines
    return [*lines, f"end of {file}:", *(f"    {line}" for line in log[-tail_lines:])]
