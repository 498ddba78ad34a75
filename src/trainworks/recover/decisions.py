"""Decides what follows a failure: tables over its cause, over what failed before, and over what is left to run on.

`decide_restart` judges how a rank ended, `decide` says what follows for ranks and nodes, `decide_after_skip` what
follows a faulty optimizer step, and `decide_resume` what follows a damaged checkpoint.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.config.recovery import Guard
from trainworks.record.events import Event
from trainworks.recover.failures import cannot_start, since_user_start

TRANSIENT = frozenset(
    {"gpu_fault", "storage_fault", "hang", "nccl_timeout", "node_lost", "agent_lost", "peer_lost", "killed"}
)
"""Causes of `job.state` that come from outside the program: another start may succeed, however often they repeat."""
UNPROVEN = frozenset({"user_error", "environment", "unknown"})
"""Causes after which another start may succeed, until the failure proves to be deterministic."""


class Verdict(enum.StrEnum):
    """Decision after a failure, with the reason if it is final."""

    RESTART = "restart"
    CANNOT_START = "its program cannot start as it is written"
    FINAL_CAUSE = "a restart does not help after this cause"
    BEFORE_FIRST_STEP = "it failed before its first step was done"
    REPEATED = "the same failure ended an earlier attempt at the same step"


class Action(enum.StrEnum):
    """What follows a failure; the text is what the record and the drill show."""

    IN_PLACE = "restart in place"
    ELSEWHERE = "restart without the bad node"
    SMALLER = "continue on fewer nodes"
    CARRY_ON = "continue as before"
    ROLL_BACK = "roll back"
    STOP = "stop"


class NodeStanding(enum.StrEnum):
    """What is known of the node of a failure."""

    FIT = "fit"
    LOST = "its agent was lost"
    LOST_AGAIN = "its agent was lost again without a step between"
    SLOW = "it is slower than its peers, and is to be replaced"
    UNFIT = "it failed its health check"


@dataclass(frozen=True, slots=True)
class Options:
    """What a job has left when a node or a rank fails."""

    has_restart: bool
    """Whether `recover.max_restarts` allows another one within its window."""
    other_nodes: bool = False
    """Whether the backend gives the job other nodes if it leaves these."""
    fewer_nodes: bool = False
    """Whether a plan for the nodes that are left exists, and continuing costs less than waiting."""


@dataclass(frozen=True, slots=True)
class RecoveryDecision:
    """What follows a failure, and why."""

    action: Action
    reason: str


_LEFT_OUT = (NodeStanding.LOST_AGAIN, NodeStanding.SLOW, NodeStanding.UNFIT)
"""Nodes that a job does without, if it can."""
NO_RESTART_LEFT = "no restart is left of `recover.max_restarts` within its window"


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failure of one rank."""

    cause: str
    fingerprint: str | None = None
    """Equal for the same failure in any process; None where the rank could not tell."""
    step: int | None = None
    by_signal: bool = False
    """True if a signal ended the rank, which then raised no exception."""
    cannot_start: bool = False
    """True if its program misses a module, has a syntax error, or refuses its arguments."""


def decide_restart(failure: FailureRecord, earlier: Sequence[FailureRecord], *, first_step_done: bool) -> Verdict:
    """Decide on a restart; `recover.max_restarts` bounds how many there are.

    | failure                                                          | verdict           |
    |------------------------------------------------------------------|-------------------|
    | a signal, a lost node or peer, a hang                            | restart           |
    | an accelerator or the storage failed                             | restart           |
    | out of memory, diverged, disk full                               | final             |
    | the program cannot start as it is written                        | final             |
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
    if failure.cannot_start:
        return Verdict.CANNOT_START
    if failure.cause not in UNPROVEN:
        return Verdict.FINAL_CAUSE
    if not first_step_done:
        return Verdict.BEFORE_FIRST_STEP
    repeated = any((failure.fingerprint, failure.step) == (seen.fingerprint, seen.step) for seen in earlier)
    return Verdict.REPEATED if repeated and failure.fingerprint else Verdict.RESTART


def decide(verdict: Verdict, node: NodeStanding, options: Options) -> RecoveryDecision:
    """Decide what follows a failure. The first row that fits decides; every combination has one.

    | failure                            | left                          | decision                     |
    |------------------------------------|-------------------------------|------------------------------|
    | final                              |                               | stop                         |
    | node is unfit, slow, or lost again | other nodes; a restart unless | restart without the bad node |
    |                                    | it is unfit                   |                              |
    | the same                           | fewer nodes pay               | continue on fewer nodes      |
    | a node was lost once               | fewer nodes pay; no restart   | continue on fewer nodes      |
    | node is slow                       | neither                       | continue as before           |
    | node is unfit                      | neither                       | stop                         |
    | any other                          | a restart                     | restart in place             |
    | any other                          | nothing                       | stop                         |

    A failed health check costs no restart: the node failed, and not the job.

    Args:
        verdict: on the failure itself; RESTART for a node whose ranks have not failed.
        node: where it happened.
        options: what the job has left.
    """
    if verdict is not Verdict.RESTART:
        return RecoveryDecision(Action.STOP, str(verdict))
    is_free = node is NodeStanding.UNFIT
    if node in _LEFT_OUT and options.other_nodes and (options.has_restart or is_free):
        return RecoveryDecision(Action.ELSEWHERE, str(node))
    if options.fewer_nodes and (node in _LEFT_OUT or (node is NodeStanding.LOST and not options.has_restart)):
        return RecoveryDecision(Action.SMALLER, str(node))
    if node is NodeStanding.SLOW:
        return RecoveryDecision(Action.CARRY_ON, "no other node is to be had")
    if options.has_restart and not is_free:
        return RecoveryDecision(Action.IN_PLACE, "another start may succeed")
    return RecoveryDecision(Action.STOP, str(node) if is_free else NO_RESTART_LEFT)


class SkipReason(enum.StrEnum):
    """What was wrong with a step that did not touch the weights."""

    NONFINITE = "nonfinite"
    SPIKE = "spike"


def decide_after_skip(reason: SkipReason, guard: Guard, *, in_a_row: int, rollbacks: int) -> RecoveryDecision:
    """Decide what follows a step that was skipped as faulty. The first row that fits decides.

    | `guard.nonfinite` or `guard.spike` | so far                             | decision             |
    |------------------------------------|------------------------------------|----------------------|
    | stop                               |                                    | stop                 |
    | rollback                           | fewer than `max_rollbacks`         | roll back            |
    | rollback                           | `max_rollbacks` rollbacks          | stop                 |
    | skip                               | more than `max_skips` in a row     | stop                 |
    | skip                               | at most `max_skips` in a row       | continue as before   |

    Args:
        reason: what was wrong.
        guard: policies and limits.
        in_a_row: skipped steps without a good one between, this one included.
        rollbacks: of the run, over all attempts.
    """
    policy = guard.spike if reason is SkipReason.SPIKE else guard.nonfinite
    if policy == "stop":
        return RecoveryDecision(Action.STOP, f"and `guard.{reason}` is `stop`")
    if policy == "rollback":
        if rollbacks >= guard.max_rollbacks:
            return RecoveryDecision(Action.STOP, f"after {rollbacks} rollbacks (`guard.max_rollbacks`)")
        return RecoveryDecision(Action.ROLL_BACK, "the newest checkpoint is from before the faulty step")
    if policy == "skip" and in_a_row > guard.max_skips:
        return RecoveryDecision(Action.STOP, f"the {_ordinal(in_a_row)} in a row (`guard.max_skips`)")
    return RecoveryDecision(Action.CARRY_ON, "the step did not touch the weights")


def decide_resume(*, damaged: int, has_loadable: bool) -> RecoveryDecision:
    """Decide from where a run resumes. A run with checkpoints never starts again at step 0: that would hide their loss.

    | newer checkpoints that are damaged | one that loads | decision           |
    |------------------------------------|----------------|--------------------|
    | none                               | any            | continue as before |
    | at least one                       | yes            | roll back          |
    | at least one                       | no             | stop               |

    Args:
        damaged: complete checkpoints that cannot be loaded, newer than any that can.
        has_loadable: whether one can be loaded.
    """
    if not damaged:
        reason = "the newest checkpoint can be loaded" if has_loadable else "no checkpoint was completed"
        return RecoveryDecision(Action.CARRY_ON, reason)
    if has_loadable:
        return RecoveryDecision(Action.ROLL_BACK, "the newest checkpoint is damaged")
    return RecoveryDecision(Action.STOP, "no checkpoint can be loaded")


def _ordinal(number: int) -> str:
    suffix = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def standing_of_lost(node: int, events: Sequence[Event]) -> NodeStanding:
    """What the record tells of a node whose agent was just lost: lost again if the job has not trained between."""
    met = max((number for number, event in enumerate(events) if event["kind"] in _MET), default=-1)
    lost = [event for event in events[met + 1 :] if event["kind"] == "agent_lost" and event["node"] == node]
    return NodeStanding.LOST_AGAIN if len(lost) > 1 else NodeStanding.LOST


_MET = ("attempt", "submitted", "resized")
"""Events after which losses of agents are counted anew."""


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
        cannot_start=cannot_start(event),
    )


def command_verdict(failure: Event) -> Verdict:
    """Decide from the failure of a command, of which no steps are known: a restart, unless it cannot help.

    How often is up to the user, who has set `recover.max_restarts`.
    """
    return decide_restart(_rank_failure(failure), (), first_step_done=True)
