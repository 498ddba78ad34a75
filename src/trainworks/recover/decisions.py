"""Decides what follows a failure: tables over its cause, over what failed before, and over what is left to run on.

`decide_restart` judges how a rank ended, `decide` says what follows for ranks and nodes, `decide_after_skip` what
follows a faulty optimizer step, and `decide_resume` what follows a damaged checkpoint.

`going_on_pays` compares the price of fewer nodes with that of a wait, and `answer_notice` says whether a checkpoint
still fits before a cloud takes a node back.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.config.recovery import Guard
from trainworks.record.events.job import (
    AgentLostEvent,
    FailureEvent,
    NoticeAnsweredEvent,
    NoticeEvent,
    RestartRefusedEvent,
)
from trainworks.record.events.log import Event, of_kind
from trainworks.record.events.training import AttemptEvent, CheckpointEvent
from trainworks.recover.failures import cannot_start, latest_launch_events
from trainworks.units import format_duration

TRANSIENT = frozenset(
    {
        *("gpu_fault", "storage_fault", "hang", "nccl_timeout"),
        *("node_lost", "agent_lost", "step_lost", "peer_lost", "killed"),
    }
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
    OTHER_ACCELERATOR = "restart without the bad accelerator"
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
    INCOMPLETE = "one of its accelerators is out of service"


@dataclass(frozen=True, slots=True)
class Options:
    """What a job has left when a node or a rank fails."""

    has_restart: bool
    """Whether `recover.max_restarts` allows another one within its window."""
    other_nodes: bool = False
    """Whether the backend gives the job other nodes if it leaves these."""
    fewer_nodes: bool = False
    """Whether a plan for the nodes that are left exists, and continuing costs less than waiting."""
    other_accelerators: bool = False
    """Whether the job gets accelerators in place of those that it leaves, or waits for them in its queue."""


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
    """True if its program misses a module or a GPU, has a syntax error, or refuses its arguments."""


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

    `earlier` are failures of earlier attempts since a user started the run. The first step is done if an earlier
    attempt trained, or this one finished a step.
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
    | a node lacks an accelerator        | other nodes and a restart     | restart without the bad      |
    |                                    |                               | accelerator                  |
    | the same                           | fewer nodes pay               | continue on fewer nodes      |
    | the same                           | other accelerators and a      | restart without the bad      |
    |                                    | restart                       | accelerator                  |
    | the same                           | none of these                 | stop                         |
    | node is slow                       | neither                       | continue as before           |
    | node is unfit                      | neither                       | stop                         |
    | any other                          | a restart                     | restart in place             |
    | any other                          | nothing                       | stop                         |

    A failed health check costs no restart: the node failed, and not the job. The verdict is on the failure itself:
    RESTART for a node whose ranks have not failed.
    """
    if verdict is not Verdict.RESTART:
        return RecoveryDecision(Action.STOP, str(verdict))
    if node is NodeStanding.INCOMPLETE:
        return _decide_without_accelerator(options)
    is_free = node is NodeStanding.UNFIT
    if node in _LEFT_OUT and options.other_nodes and (options.has_restart or is_free):
        return RecoveryDecision(Action.ELSEWHERE, str(node))
    if options.fewer_nodes and (node in _LEFT_OUT or (node is NodeStanding.LOST and not options.has_restart)):
        return RecoveryDecision(Action.SMALLER, str(node))
    if node is NodeStanding.SLOW:
        return RecoveryDecision(Action.CARRY_ON, "no other node is to be had")
    if_stopped = RecoveryDecision(Action.STOP, str(node) if is_free else NO_RESTART_LEFT)
    may_stay = options.has_restart and not is_free
    return RecoveryDecision(Action.IN_PLACE, "another start may succeed") if may_stay else if_stopped


def _decide_without_accelerator(options: Options) -> RecoveryDecision:
    """A queue of other nodes has the choice between them and fewer; one machine has fewer nodes, or waits."""
    reason = str(NodeStanding.INCOMPLETE)
    moves = options.has_restart and options.other_accelerators
    if options.fewer_nodes and not (moves and options.other_nodes):
        return RecoveryDecision(Action.SMALLER, reason)
    if moves:
        return RecoveryDecision(Action.OTHER_ACCELERATOR, reason)
    return RecoveryDecision(Action.STOP, NO_RESTART_LEFT if options.other_accelerators else reason)


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

    `in_a_row` counts skipped steps without a good one between, this one included, and `rollbacks` those of all
    attempts.
    """
    policy = guard.spike if reason is SkipReason.SPIKE else guard.nonfinite
    if policy == "stop":
        return RecoveryDecision(Action.STOP, f"and `guard.{reason}` is `stop`")
    if policy == "rollback":
        if rollbacks >= guard.max_rollbacks:
            return RecoveryDecision(Action.STOP, f"after {rollbacks} rollbacks (`guard.max_rollbacks`)")
        return RecoveryDecision(Action.ROLL_BACK, "the newest checkpoint is from before the faulty step")
    if policy == "skip" and in_a_row > guard.max_skips:
        last = in_a_row % 10
        suffix = "th" if in_a_row % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(last, "th")
        return RecoveryDecision(Action.STOP, f"the {in_a_row}{suffix} in a row (`guard.max_skips`)")
    return RecoveryDecision(Action.CARRY_ON, "the step did not touch the weights")


def decide_resume(*, damaged: int, has_loadable: bool) -> RecoveryDecision:
    """Decide from where a run resumes. A run with checkpoints never starts again at step 0: that would hide their loss.

    | newer checkpoints that are damaged | one that loads | decision           |
    |------------------------------------|----------------|--------------------|
    | none                               | any            | continue as before |
    | at least one                       | yes            | roll back          |
    | at least one                       | no             | stop               |

    `damaged` counts complete checkpoints that cannot be loaded, newer than any that can.
    """
    if not damaged:
        reason = "the newest checkpoint can be loaded" if has_loadable else "no checkpoint was completed"
        return RecoveryDecision(Action.CARRY_ON, reason)
    if has_loadable:
        return RecoveryDecision(Action.ROLL_BACK, "the newest checkpoint is damaged")
    return RecoveryDecision(Action.STOP, "no checkpoint can be loaded")


def lost_since_ranks_met(events: Sequence[Event]) -> list[AgentLostEvent]:
    """Losses of agents since the ranks of a workload met last, or since the job got its nodes."""
    met = max((number for number, event in enumerate(events) if event["kind"] in _MET), default=-1)
    return of_kind(events[met + 1 :], AgentLostEvent)


def standing_of_lost(node: int, events: Sequence[Event]) -> NodeStanding:
    """What the record tells of a node whose agent was just lost: lost again if the job has not trained between."""
    lost = [event for event in lost_since_ranks_met(events) if event["node"] == node]
    return NodeStanding.LOST_AGAIN if len(lost) > 1 else NodeStanding.LOST


_MET = ("attempt", "submitted", "resized")
"""Events after which losses of agents are counted anew."""


def restart_verdict(failure: FailureEvent, before: Sequence[Event], since: Sequence[Event]) -> Verdict:
    """Decide on the failure of a rank from the record: events `before` its ranks started last, and `since` then."""
    launch = latest_launch_events(before)
    resumed_from = [event.get("resumed_from_step", 0) for event in of_kind(since, AttemptEvent)]
    finished_a_step = bool(resumed_from) and (failure.get("step") or 0) > resumed_from[-1] + 1
    return decide_restart(
        _rank_failure(failure),
        [_rank_failure(event) for event in of_kind(launch, FailureEvent)],
        first_step_done=bool(of_kind(launch, AttemptEvent)) or finished_a_step,
    )


def _rank_failure(event: FailureEvent) -> FailureRecord:
    return FailureRecord(
        event.get("cause") or "unknown",
        event.get("fingerprint"),
        event.get("step"),
        by_signal=event.get("signal") is not None,
        cannot_start=cannot_start(event),
    )


def command_verdict(failure: FailureEvent) -> Verdict:
    """Decide from the failure of a command, of which no steps are known: a restart, unless it cannot help.

    How often is up to the user, who has set `recover.max_restarts`.
    """
    return decide_restart(_rank_failure(failure), (), first_step_done=True)


def refusal(failure: FailureEvent, verdict: Verdict) -> RestartRefusedEvent:
    """The event that says why a failure is final."""
    return RestartRefusedEvent(
        kind="restart_refused",
        node=failure.get("node"),
        rank=failure.get("rank"),
        cause=failure["cause"],
        rendezvous=failure.get("rendezvous"),
        message=str(verdict),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingNode:
    """A job that misses nodes."""

    nodes: int
    """Nodes of the whole job."""
    fewer: int
    """Nodes that are left."""
    step_s: float
    """Predicted step time with all nodes."""
    fewer_step_s: float
    """Predicted step time with those that are left."""
    steps_left: int
    """Steps from the newest checkpoint to the end."""
    repair_s: float
    """Expected time until all nodes are there again."""
    restart_s: float
    """Time from the start of the ranks to their first step."""


@dataclass(frozen=True, slots=True)
class Price:
    """What one way to the end of a job costs."""

    seconds: float
    """Until the last step."""
    node_seconds: float
    """Time for which nodes are held: the price of the job per price of a node."""


def price_of_waiting(job: MissingNode) -> Price:
    """The nodes that are left are held until all are there; then the job restarts.

    seconds = repair + restart + steps * step
    """
    training_s = job.restart_s + job.steps_left * job.step_s
    return Price(job.repair_s + training_s, job.fewer * job.repair_s + job.nodes * training_s)


def price_of_going_on(job: MissingNode) -> Price:
    """The job restarts on the nodes that are left, trains until all are there, and restarts once more.

    done = (repair - restart) / fewer_step;  seconds = repair + restart + (steps - done) * step

    A job that ends before needs only its own steps: restart + steps * fewer_step.
    """
    done = max(0.0, job.repair_s - job.restart_s) / job.fewer_step_s
    if done >= job.steps_left:
        seconds = job.restart_s + job.steps_left * job.fewer_step_s
        return Price(seconds, job.fewer * seconds)
    small_s = max(job.repair_s, job.restart_s)
    large_s = job.restart_s + (job.steps_left - done) * job.step_s
    return Price(small_s + large_s, job.fewer * small_s + job.nodes * large_s)


def going_on_pays(job: MissingNode) -> bool:
    """True if the job ends sooner by continuing on fewer nodes, and costs no more; ties wait."""
    waiting, going_on = price_of_waiting(job), price_of_going_on(job)
    return going_on.seconds < waiting.seconds and going_on.node_seconds <= waiting.node_seconds


_SAFETY = 1.25
"""A save may take this many times the longest of the last ones: other jobs are saving, too."""
_RECENT = 3
_REACT_S = 1.0
"""Time until a rank knows that it has to stop, beside a logging interval."""


def answer_notice(
    notice: NoticeEvent, events: Sequence[Event], *, now: float, logging_interval_s: float, grace_s: float
) -> NoticeAnsweredEvent:
    """Decide whether to save.

    A save needs a logging interval, in which the ranks agree on a step, and 1.25 times the longest of the last three
    saves, from the first stall to the manifest. Before the first save, it is tried.

    The notice is one that ends the node, and `now` in seconds since the epoch. The logging interval is predicted;
    `grace_s` is the time for a clean end of the job, the limit where the notice has no deadline.
    """
    deadline_at = notice.get("deadline_at")
    left_s = grace_s if deadline_at is None else max(0.0, min(deadline_at - now, grace_s))
    saved = of_kind(events, CheckpointEvent)[-_RECENT:]
    if not saved:
        needed_s, saves, answer = None, True, "saving, though no save was measured yet"
    else:
        needed_s = _REACT_S + logging_interval_s + _SAFETY * max(event["stall_s"] + event["write_s"] for event in saved)
        saves, needs = needed_s <= left_s, f"which needs up to {format_duration(needed_s)}"
        answer = f"saving, {needs}"
        if not saves:
            answer = f"no emergency checkpoint, {needs}: it continues from step {saved[-1]['step']:,}"
    cloud = "AWS" if notice["cloud"] == "aws" else notice["cloud"]
    return NoticeAnsweredEvent(
        kind="notice_answered",
        node=notice["node"],
        cloud=notice["cloud"],
        what=notice["what"],
        saves=saves,
        left_s=left_s,
        needed_s=needed_s,
        message=f"{cloud}: {notice['what']} of node {notice['node']} in {format_duration(left_s)}; {answer}",
    )
