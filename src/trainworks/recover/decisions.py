"""Decides whether ranks start again after a failure: a table over its cause, and over what failed before."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.record.events import Event
from trainworks.recover.failures import since_user_start

TRANSIENT = frozenset(
    {"gpu_fault", "storage_fault", "hang", "nccl_timeout", "node_lost", "agent_lost", "peer_lost", "killed"}
)
"""Causes of `job.state` that come from outside the program: another start may succeed, however often they repeat."""
UNPROVEN = frozenset({"user_error", "environment", "unknown"})
"""Causes after which another start may succeed, until the failure proves to be deterministic."""


class Verdict(enum.StrEnum):
    """Decision after a failure, with the reason if it is final."""

    RESTART = "restart"
    FINAL_CAUSE = "a restart does not help after this cause"
    BEFORE_FIRST_STEP = "it failed before its first step was done"
    REPEATED = "the same failure ended an earlier attempt at the same step"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failure of one rank."""

    cause: str
    fingerprint: str | None = None
    """Equal for the same failure in any process; None where the rank could not tell."""
    step: int | None = None
    by_signal: bool = False
    """True if a signal ended the rank, which then raised no exception."""


def decide_restart(failure: FailureRecord, earlier: Sequence[FailureRecord], *, first_step_done: bool) -> Verdict:
    """Decide on a restart; `recover.max_restarts` bounds how many there are.

    | failure                                                          | verdict           |
    |------------------------------------------------------------------|-------------------|
    | a signal, a lost node or peer, a hang                            | restart           |
    | an accelerator or the storage failed                             | restart           |
    | out of memory, diverged, disk full                               | final             |
    | an exception or exit code, before the first step is done         | final             |
    | an exception or exit code that ended an earlier attempt          |                   |
    | at the same step                                                 | final             |
    | any other exception or exit code                                 | restart           |

    Args:
        failure: of a rank.
        earlier: failures of earlier attempts, since a user started the run.
        first_step_done: whether an earlier attempt trained, or this one finished a step.
    """
    if failure.by_signal or failure.cause in TRANSIENT:
        return Verdict.RESTART
    if failure.cause not in UNPROVEN:
        return Verdict.FINAL_CAUSE
    if not first_step_done:
        return Verdict.BEFORE_FIRST_STEP
    repeated = any((failure.fingerprint, failure.step) == (seen.fingerprint, seen.step) for seen in earlier)
    return Verdict.REPEATED if repeated and failure.fingerprint else Verdict.RESTART


def restart_verdict(failure: Event, before: Sequence[Event], since: Sequence[Event]) -> Verdict:
    """Decide from the record.

    Args:
        failure: the event of the rank's failure.
        before: events of the run until its ranks started last.
        since: events after that.
    """
    launch = since_user_start(before)
    return decide_restart(
        _rank_failure(failure),
        [_rank_failure(event) for event in launch if event["kind"] == "failure"],
        first_step_done=any(event["kind"] == "attempt" for event in launch) or _finished_a_step(failure, since),
    )


def _finished_a_step(failure: Event, since: Sequence[Event]) -> bool:
    """True if the attempt completed its first step before it failed."""
    resumed_from = [event["resumed_from_step"] for event in since if event["kind"] == "attempt"]
    return bool(resumed_from) and (failure.get("step") or 0) > resumed_from[-1] + 1


def _rank_failure(event: Event) -> FailureRecord:
    return FailureRecord(
        event.get("cause") or "unknown",
        event.get("fingerprint"),
        event.get("step"),
        by_signal=event.get("signal") is not None,
    )
