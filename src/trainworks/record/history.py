"""The history of a run, put together from its events and metrics: launches, recorded steps, which of them count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import E, Event, of_kind, read_events
from trainworks.record.events.training import MetricsSourceEvent
from trainworks.record.metric_columns import Mask, MetricColumns, Steps, read_columns
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import END_STATES, RunStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaunch:
    """One stretch of holding the machines: from `submitted` to the end of the job."""

    start_at: float
    end_at: float
    """Seconds since the epoch; `now` of a launch that is still going."""
    ended: bool
    events: tuple[Event, ...]
    steps: Steps
    """In the order in which they were done."""
    lost: Mask
    """True for each of them whose work was thrown away: a later row, attempt or rollback went back before it."""

    @property
    def duration_s(self) -> float:
        """Time from its start to its end."""
        return self.end_at - self.start_at

    @property
    def last_callbacks_s(self) -> tuple[float, ...]:
        """Time of each of the user's callbacks after the last step; empty without callbacks, or without an end."""
        ends = (event for event in self.events if event["kind"] in ("finished", "stopped"))
        return next((tuple(event["callbacks_s"]) for event in ends if "callbacks_s" in event), ())


@dataclass(frozen=True, kw_only=True)
class History:
    """Every launch of a run, oldest first; there is always at least one."""

    launches: tuple[RecordedLaunch, ...]

    @property
    def start_at(self) -> float:
        """When the run was launched for the first time."""
        return self.launches[0].start_at

    @property
    def end_at(self) -> float:
        """When the last launch ended, or `now`."""
        return self.launches[-1].end_at

    @property
    def idle_s(self) -> float:
        """Time between the end of a launch and the next one."""
        gaps = zip(self.launches, self.launches[1:], strict=False)
        return sum(after.start_at - before.end_at for before, after in gaps)

    @property
    def held_s(self) -> float:
        """Time for which the run has held its machines: the sum of its launches."""
        return sum(launch.duration_s for launch in self.launches)

    @property
    def events(self) -> list[Event]:
        """All events in the order in which they were written."""
        return [event for launch in self.launches for event in launch.events]

    @cached_property
    def effective(self) -> Steps:
        """The steps that led to the present weights, in order."""
        first, *others = [launch.steps.where(~launch.lost) for launch in self.launches]
        return first.joined(others)

    @cached_property
    def lost(self) -> Steps:
        """The steps whose work was thrown away, in the order in which they were done."""
        first, *others = [launch.steps.where(launch.lost) for launch in self.launches]
        return first.joined(others)

    def of_kind(self, kind: type[E]) -> list[E]:
        """All events of one kind."""
        return of_kind(self.events, kind)


def read_history(
    run_dir: RunDir, *, created_at: float, now: float, state: str | None = None, metrics: MetricColumns | None = None
) -> History:
    """The history of a run as its record has it now.

    `now` is the end of a run that is still going. `state` is as seen from outside, where the record cannot know it:
    `LOST` ends a run with its last sign of life. `metrics` are given where they were read already; a million steps take
    seconds.
    """
    status = run_dir.read_status()
    status = status.model_copy(update={"state": state}) if state else status
    events = read_events(run_dir.events_file)
    metrics = read_columns(run_dir.metrics_file) if metrics is None else metrics
    return build_history(events, metrics, created_at=created_at, status=status, now=now)


def build_history(
    events: Sequence[Event], metrics: MetricColumns, *, created_at: float, status: RunStatus, now: float
) -> History:
    """Divide the record into launches and tell lost steps from effective ones.

    A run without `submitted` counts as launched at `created_at`. The status ends a run whose supervisor left no final
    event, and `now` one that is still going.
    """
    events, steps = _with_attempts(events), metrics.steps()
    lost, done_at = steps.is_lost(returns_of(events)), steps["t"]
    groups: list[list[Event]] = [[]]
    for event in events:
        if event["kind"] == "submitted" and of_kind(groups[-1], SubmittedEvent):
            groups.append([])
        groups[-1].append(event)
    # A clock that was set back between launches must not make one begin before the other.
    times = (next((float(each["t"]) for each in of_kind(group, SubmittedEvent)), created_at) for group in groups)
    starts = list(accumulate(times, max))
    launches: list[RecordedLaunch] = []
    for group, start_at, next_at in zip(groups, starts, [*starts[1:], None], strict=True):
        until = float("inf") if next_at is None else next_at
        own = (done_at < until) & ((done_at >= start_at) if launches else True)
        last_at = float(done_at[own].max()) if own.any() else start_at
        end_at, ended = _end(group, last_at, start_at=start_at, until=until, status=status, now=now)
        launches.append(
            RecordedLaunch(
                start_at=start_at,
                end_at=end_at,
                ended=ended,
                events=tuple(group),
                steps=steps.where(own),
                lost=lost[own],
            )
        )
    return History(launches=tuple(launches))


def known_steps(resolved: ResolvedRun, events: Iterable[Event]) -> int | None:
    """Steps of the whole run: planned, or as the run file or the output of a command says them; None if unknown."""
    if resolved.plan is not None:
        return resolved.plan.num_steps
    counted = (each["num_steps"] for each in of_kind(events, MetricsSourceEvent) if "num_steps" in each)
    return resolved.run_file.metrics.steps or next(counted, None)


def returns_of(events: Iterable[Event]) -> list[tuple[float, int]]:
    """Time of every restart and rollback, and the step from which training continued."""
    found = []
    for event in events:
        if event["kind"] == "attempt" and "resumed_from_step" in event:
            found.append((float(event["t"]), event["resumed_from_step"] or 0))
        elif event["kind"] == "rollback":
            found.append((float(event["t"]), event.get("to_step") or 0))
    return found


def _with_attempts(events: Sequence[Event]) -> list[Event]:
    """Failures belong to the attempt that began last."""
    attempt: int | None = None
    placed: list[Event] = []
    for event in events:
        if event["kind"] == "submitted":
            attempt = None
        elif event["kind"] == "attempt":
            attempt = event.get("attempt")
        elif event["kind"] == "failure" and event.get("attempt") is None and attempt is not None:
            placed.append(event | {"attempt": attempt})
            continue
        placed.append(event)
    return placed


def _end(
    events: Sequence[Event], last_at: float, *, start_at: float, until: float, status: RunStatus, now: float
) -> tuple[float, bool]:
    """When a launch ended, and whether it did; without a final event the last sign of life stands in.

    `last_at` is the end of its last step, or `start_at` without any.
    """
    final = [
        float(event["t"])
        for event in events
        if event["kind"] in ("finished", "stopped") or (event["kind"] == "state" and event["state"] in END_STATES)
    ]
    alive = max([start_at, last_at, *(float(event["t"]) for event in events)])
    if final:
        return min(max(start_at, final[-1], last_at), until), True
    if until != float("inf"):
        return min(alive, until), True
    if status.state in END_STATES:
        return max(alive, status.updated_at), True
    return max(alive, now), False
