"""Attempts and failures: every start of the ranks, what it did, and why it ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainworks.record.events import Event
from trainworks.record.history import History, RecordedLaunch
from trainworks.recover.failures import describe_failure, first_failure
from trainworks.report.runs.part import ReportPart, printable


class Failure(ReportPart):
    """What went wrong with one rank, as it or its node agent saw it."""

    launch: int
    """1-based; a resume after a stop is a new launch."""
    attempt: int | None
    """None if it failed outside any attempt."""
    is_root: bool
    """The others of its attempt followed from it."""
    after_s: float
    """Since the first launch."""
    rank: int | None
    node: int | None
    cause: str
    message: str
    exit_code: int | None
    signal: str | None
    traceback: str


class ReportedAttempt(ReportPart):
    """One start of all ranks."""

    number: int
    launch: int
    after_s: float | None
    """When training was about to start, since the first launch; None if the ranks never met."""
    world_size: int | None
    resumed_from_step: int
    """0 is from scratch."""
    first_step: int | None
    last_step: int | None
    """Recorded; None before the first step."""
    lost_steps: int
    """Number of its steps that were thrown away later."""


def build_failures(history: History) -> tuple[Failure, ...]:
    """Every failure in the order in which they were seen; one of each attempt is the root of the others."""
    return tuple(
        _failure(event, launch, index, history.start_at)
        for index, launch in enumerate(history.launches, start=1)
        for event in launch.events
        if event.get("kind") == "failure"
    )


def _root(launch: RecordedLaunch, failure: Event) -> Event | None:
    """What the failure, and all others of the same start of the ranks, followed from."""
    failures = [event for event in launch.events if event.get("kind") == "failure" and _same_start(event, failure)]
    return first_failure(failures)


def _same_start(one: Event, other: Event) -> bool:
    return all(one.get(key) == other.get(key) for key in ("attempt", "rendezvous"))


def build_attempts(history: History) -> tuple[ReportedAttempt, ...]:
    """Every attempt that left a trace: an event, a failure or a recorded step."""
    return tuple(
        _attempt(launch, number, index, history.start_at)
        for index, launch in enumerate(history.launches, start=1)
        for number in _numbers(launch)
    )


def _numbers(launch: RecordedLaunch) -> list[int]:
    traced = [event.get("attempt") for event in launch.events if event.get("kind") in ("attempt", "failure")]
    recorded = np.unique(launch.steps["attempt"])
    return sorted({int(number) for number in [*traced, *recorded[np.isfinite(recorded)]] if number is not None})


def _attempt(launch: RecordedLaunch, number: int, index: int, start_at: float) -> ReportedAttempt:
    started = _first(launch.events, "attempt", number)
    is_own = launch.steps["attempt"] == number
    steps = launch.steps["step"][is_own]
    told = [event for event in launch.events if event.get("kind") == "attempt" and event.get("attempt") == number]
    return ReportedAttempt(
        number=number,
        launch=index,
        after_s=float(started["t"]) - start_at if started else None,
        world_size=started.get("world_size"),
        resumed_from_step=max((int(event.get("resumed_from_step") or 0) for event in told), default=0),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        lost_steps=int(launch.lost[is_own].sum()),
    )


def _first(events: Sequence[Event], kind: str, attempt: int) -> Event:
    return next((e for e in events if e.get("kind") == kind and e.get("attempt") == attempt), {})


def _failure(event: Event, launch: RecordedLaunch, index: int, start_at: float) -> Failure:
    signal = event.get("signal")
    return Failure(
        launch=index,
        attempt=event.get("attempt"),
        is_root=event is _root(launch, event),
        after_s=float(event["t"]) - start_at,
        rank=event.get("rank"),
        node=event.get("node"),
        cause=printable(event.get("cause")) or "unknown",
        message=printable(describe_failure(event, launch.events)),
        exit_code=event.get("exit_code"),
        signal=None if signal is None else printable(signal),
        traceback=printable(event.get("traceback")),
    )
