"""Attempts and failures: every start of the ranks, what it did, and why it ended."""

from __future__ import annotations

import numpy as np

from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import of_kind
from trainworks.record.events.training import AttemptEvent
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

    @property
    def who(self) -> str:
        """`rank 1`, or the node where no rank is known."""
        return f"node {self.node}" if self.rank is None else f"rank {self.rank}"


class ReportedAttempt(ReportPart):
    """One start of all ranks."""

    number: int
    launch: int
    after_s: float | None
    """When training was about to start, since the first launch; None if the ranks never met."""
    world_size: int | None
    resumed_from_step: int | None
    """0 is from scratch; None where the program of a command alone knows."""
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
        for event in of_kind(launch.events, FailureEvent)
    )


def build_attempts(history: History) -> tuple[ReportedAttempt, ...]:
    """Every attempt that left a trace: an event, a failure or a recorded step."""
    attempts = []
    for index, launch in enumerate(history.launches, start=1):
        traced = [event.get("attempt") for event in launch.events if event["kind"] in ("attempt", "failure")]
        recorded = np.unique(launch.steps["attempt"])
        numbers = {int(number) for number in [*traced, *recorded[np.isfinite(recorded)]] if number is not None}
        attempts += [_attempt(launch, number, index, history.start_at) for number in sorted(numbers)]
    return tuple(attempts)


def _attempt(launch: RecordedLaunch, number: int, index: int, start_at: float) -> ReportedAttempt:
    is_own = launch.steps["attempt"] == number
    steps = launch.steps["step"][is_own]
    told = [event for event in of_kind(launch.events, AttemptEvent) if event.get("attempt") == number]
    said = [event["resumed_from_step"] or 0 for event in told if "resumed_from_step" in event]
    return ReportedAttempt(
        number=number,
        launch=index,
        after_s=float(told[0]["t"]) - start_at if told else None,
        world_size=told[0].get("world_size") if told else None,
        resumed_from_step=max(said, default=None if told else 0),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        lost_steps=int(launch.steps.num_steps[is_own & launch.lost].sum()),
    )


def _failure(event: FailureEvent, launch: RecordedLaunch, index: int, start_at: float) -> Failure:
    signal, start = event.get("signal"), (event.get("attempt"), event.get("rendezvous"))
    failures = of_kind(launch.events, FailureEvent)
    same_start = [each for each in failures if (each.get("attempt"), each.get("rendezvous")) == start]
    return Failure(
        launch=index,
        attempt=event.get("attempt"),
        is_root=event is first_failure(same_start),
        after_s=float(event["t"]) - start_at,
        rank=event.get("rank"),
        node=event.get("node"),
        cause=printable(event.get("cause")) or "unknown",
        message=printable(describe_failure(event, launch.events)),
        exit_code=event.get("exit_code"),
        signal=None if signal is None else printable(signal),
        traceback=printable(event.get("traceback")),
    )
