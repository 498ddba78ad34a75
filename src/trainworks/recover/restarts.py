"""Restarts used by a job: one count for all levels and backends, taken from the run's record.

A restart begins a new life of a job: ranks start again in place, a supervisor starts a lost agent again, or the job
gets its nodes another time. `recover.max_restarts` limits them within `recover.restart_window`. The events of a run are
the only counter, so no process can forget it.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainworks.record.events.job import (
    AcceleratorDrainedEvent,
    AgentLostEvent,
    AgentStartedEvent,
    FailureEvent,
    RestartEvent,
    StateEvent,
    SubmittedEvent,
)
from trainworks.record.events.log import Event, of_kind
from trainworks.record.events.training import AttemptEvent, RanksStartedEvent
from trainworks.recover.accelerator_faults import drained_accelerator
from trainworks.recover.failures import first_failure, latest_launch_events

if TYPE_CHECKING:
    from trainworks.config.run_file import RunFile

FREE_CAUSES = frozenset({"preempted", "requeued", "no_capacity", "node_unhealthy", "node_reclaimed", "scheduler_lost"})
"""Causes of `job.state` after which another turn costs no restart."""
BEGUN_STATES = frozenset({"STARTING", "RUNNING", "RECOVERING"})
WAITING_STATES = frozenset({"QUEUED", "PREEMPTED"})
"""States of `job.state`, read here from the record as text."""

RANK_RESTART = RanksStartedEvent(kind="ranks_started")
"""The ranks of a workload start, together."""
AGENT_RESTART = RestartEvent(kind="restart", node=None)
"""The supervisor starts an agent again: the one of `node`, or all of them."""
NEXT_TURN = SubmittedEvent(kind="submitted", nodes=0, processes_per_node=0, restarts=1)
"""The job gets its nodes another time; how many does not matter to the count."""


LONGEST_BACKOFF_S = 300.0
"""Longest wait before a restart."""
_USUAL_RESTART_S = 60.0
"""Time of a restart before the record shows one: an assumption."""


@dataclass(frozen=True, slots=True)
class RestartLimit:
    """How often a job may restart, and how long it waits before that."""

    most: int
    """Restarts within the window."""
    window_s: float = math.inf
    """Restarts that lie further back do not count."""
    backoff_s: float = 0.0
    """Wait before the second restart without a checkpoint between; each further one waits twice as long."""

    @classmethod
    def of(cls, run_file: RunFile) -> RestartLimit:
        """The limit that a run file sets."""
        recover = run_file.recover
        return cls(run_file.max_restarts, recover.restart_window, recover.backoff)


class _Count:
    """Times of the restarts since a user submitted the job last."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self._now = -math.inf
        self._began = False
        self._is_free = False
        self._ranks_started = False
        self._starting_again: set[int | None] = set()
        """Nodes whose agents were started again, until the ranks start; None stands for all nodes."""

    def take(self, event: Event) -> None:
        """Count one event; one without a time is of now."""
        self._now = event.get("t", self._now)
        match event["kind"]:
            case "submitted":
                self._take_turn(is_next=bool(event.get("restarts")))
            case "restart" if "role" not in event:  # a role has restarts of its own
                self._take_agent(event.get("node"))
            case "ranks_started":
                self._count(self._ranks_started)
                self._ranks_started, self._starting_again = True, set()
            case "attempt":  # the ranks of a command
                self._starting_again = set()
            case "resized":  # the job continues on other nodes: what led to it has been counted
                self._ranks_started, self._starting_again = False, set()
            case "state":
                self._began |= event["state"] in BEGUN_STATES
                self._is_free = event.get("cause") in FREE_CAUSES

    def _count(self, is_restart: bool) -> None:
        if is_restart:
            self.at.append(self._now)

    def _take_turn(self, *, is_next: bool) -> None:
        if not is_next:
            self.at = []
        else:  # its nodes may be taken away while an agent starts again: both answer one loss
            self._count(self._began and not self._is_free and not self._starting_again)
        self._began = self._is_free = self._ranks_started = False
        self._starting_again = set()

    def _take_agent(self, node: int | None) -> None:
        """Agents that are lost together are one restart: their ranks start once."""
        if node is not None and self._starting_again and self._starting_again.isdisjoint({node, None}):
            self._starting_again.add(node)
            return
        self._count(True)
        self._ranks_started = False
        self._starting_again = {node}


def restarts_used(events: Sequence[Event], window_s: float = math.inf) -> int:
    """Restarts since a user submitted or retried the job; a turn that was preempted or found no capacity costs none.

    Restarts that lie further back than `window_s` from the last event do not count.
    """
    count = _Count()
    for event in events:
        count.take(event)
    last = max((event["t"] for event in events if "t" in event), default=-math.inf)
    return sum(not at < last - window_s for at in count.at)


def failures_survived(events: Sequence[Event]) -> int:
    """Failures of a run over all its submissions: the restarts of each, and its end if it failed and a user resumed it.

    A turn that was preempted, found no capacity or left an unfit node costs no restart, and does not count here.
    """
    count, total, state = _Count(), 0, ""
    for event in events:
        if event["kind"] == "state":
            state = event["state"]
        elif event["kind"] == "submitted" and not event.get("restarts"):
            total += len(count.at) + (state == "FAILED")
        count.take(event)
    return total + len(count.at)


def restarts_counted(events: Sequence[Event], *, waits: bool, cause: str | None = None) -> int:
    """Restarts of a job as its row counts them: those used, and the one that it waits for in the queue.

    `cause` is why it lost its nodes, if its backend knows and the record does not say so yet.
    """
    if not waits:
        return restarts_used(events)
    lost = StateEvent(kind="state", state="QUEUED", cause=cause, message=None)
    return restarts_used([*events, *([lost] if cause is not None else []), NEXT_TURN])


def may_restart(events: Sequence[Event], limit: RestartLimit, then: Event) -> bool:
    """Check whether the restart budget allows the event `then`: RANK_RESTART, AGENT_RESTART or NEXT_TURN."""
    return restarts_used([*events, then], limit.window_s) <= limit.most


def role_restarts(events: Sequence[Event], role: str, window_s: float = math.inf) -> int:
    """Restarts of a role alone since a user submitted the job, or since all roles last started again together."""
    count, last = list[float](), -math.inf
    for event in latest_launch_events(events):
        last = max(last, event.get("t", last))
        if event["kind"] == "restart":
            count = [*count, event["t"]] if event.get("role") == role else count if "role" in event else []
    return sum(not at < last - window_s for at in count)


def role_backoff_s(restarts: int, limit: RestartLimit) -> float:
    """Seconds before the next restart of a role after so many: 0 for the first, then as `backoff_s`."""
    return min(LONGEST_BACKOFF_S, limit.backoff_s * 2.0 ** min(restarts - 1, 30)) if restarts else 0.0


def backoff_s(events: Sequence[Event], limit: RestartLimit) -> float:
    """Seconds to wait before the next restart.

    With n restarts since the newest checkpoint, wait = 0 for n = 0, else backoff * 2^(n - 1), five minutes at most. A
    job that makes progress between two failures never waits; one that fails in a loop spares its nodes and its storage.
    """
    launch = latest_launch_events(events)
    saved = max((number + 1 for number, event in enumerate(launch) if event["kind"] == "checkpoint"), default=0)
    fruitless = restarts_used(launch) - restarts_used(launch[:saved])
    return min(LONGEST_BACKOFF_S, limit.backoff_s * 2.0 ** min(fruitless - 1, 30)) if fruitless > 0 else 0.0


def restart_time_s(events: Sequence[Event]) -> float:
    """Time from the start of the first agent until all ranks met, in this run; an assumption before they have."""
    started = [event["t"] for event in of_kind(events, AgentStartedEvent)]
    met = [event["t"] for event in of_kind(events, AttemptEvent)]
    return met[0] - started[0] if started and met else _USUAL_RESTART_S


def record_waits(events: Sequence[Event]) -> bool:
    """True if the last recorded state is one of a job that waits for its nodes."""
    states = [event["state"] for event in of_kind(events, StateEvent)]
    return bool(states) and states[-1] in WAITING_STATES


def earlier_turns(events: Sequence[Event]) -> int:
    """Turns of a job that waits for another one; 0 for a job that a user submits or retries."""
    if not record_waits(events):
        return 0
    turns = 0
    for event in of_kind(events, SubmittedEvent):
        turns = turns + 1 if event.get("restarts") else 1
    return turns


class Begin(enum.StrEnum):
    """How a life of a job began."""

    SUBMIT = "submitted"
    RESUME = "resumed by a user"
    REQUEUE = "got nodes again"
    AGENT = "agent started again in place"
    ROLE = "role started again alone"
    RANKS = "ranks started again in place"
    RESIZE = "continued on other nodes"


@dataclass(slots=True, kw_only=True)
class Life:
    """One life of a job: from a start of its ranks to the next."""

    begin: Begin
    began_at: float
    """Seconds since the epoch."""
    cause: str | None
    """Why the life before ended; None for the first, and where the record does not say so."""
    message: str | None
    part: str | None
    """What failed then: a rank, an agent, a step, a node, the controller; None after a preemption or a request."""
    attempt: int
    """1-based number of the allocation."""
    resumed_from_step: int | None = None
    """0 is from scratch; None if the ranks have not met, or where the program of a command alone knows."""


def lives_of(events: Sequence[Event]) -> list[Life]:
    """Every life of a job, oldest first: its allocations, changes of its nodes, and every restart that counts."""
    lives: list[Life] = []
    since: list[Event] = []  # events of the present life, which say why it ended
    count = _Count()
    for event in events:
        used = len(count.at)
        count.take(event)
        is_role = event["kind"] == "restart" and "role" in event
        if event["kind"] in ("submitted", "resized") or is_role or len(count.at) > used:
            lives.append(_life(event, since, lives))
            since = []
        if event["kind"] == "attempt" and lives:
            lives[-1].resumed_from_step = event.get("resumed_from_step")
        since.append(event)
    return lives


def _life(event: Event, since: Sequence[Event], lives: Sequence[Life]) -> Life:
    """A life that begins with an event, after those of the life before; a user needs no reason for a new one."""
    attempt, began_at = lives[-1].attempt if lives else 0, float(event.get("t", math.nan))
    if event["kind"] == "submitted" and not event.get("restarts"):
        begin = Begin.RESUME if lives else Begin.SUBMIT
        return Life(begin=begin, began_at=began_at, cause=None, message=None, part=None, attempt=attempt + 1)
    cause, message, part = _why_ended(since)
    if event["kind"] == "submitted":
        waits = [one for one in of_kind(since, StateEvent) if one["state"] in WAITING_STATES][-1:]
        if waits and waits[0]["cause"] != cause:  # a failure is that cause, or came of it
            cause, message, part = waits[0]["cause"], waits[0]["message"], _PARTS.get(waits[0]["cause"] or "")
        begin, attempt = Begin.REQUEUE, attempt + 1
    elif event["kind"] == "resized":
        begin, message = Begin.RESIZE, message or event["message"]
    else:
        begin = Begin.AGENT if event.get("node") is not None else Begin.ROLE if event.get("role") else Begin.RANKS
    return Life(begin=begin, began_at=began_at, cause=cause, message=message, part=part, attempt=attempt)


def _why_ended(since: Sequence[Event]) -> tuple[str | None, str | None, str | None]:
    """Cause, message and failed part of the end of a life."""
    for out in of_kind(since, AcceleratorDrainedEvent):
        text = drained_accelerator(out["accelerator"], out["message"])
        return "gpu_fault", text, f"accelerator {out['accelerator']}"
    if (failure := first_failure(since)) is not None:
        return failure["cause"], failure["message"], _part_of(failure)
    for lost in of_kind(since, AgentLostEvent):
        return "agent_lost", f"it ended with code {lost['exit_code']}", f"agent of node {lost['node']}"
    return None, None, None


_PARTS = {
    "agent_lost": "agent",
    "step_lost": "step",
    "scheduler_lost": "controller",
    **dict.fromkeys(("node_lost", "node_unhealthy", "node_reclaimed"), "node"),
}
"""Part of a job or of its cluster that fails with a cause."""


def _part_of(failure: FailureEvent) -> str:
    """`rank 3 on node 1`, `agent of node 1` or `node 1`."""
    rank, node, part = failure.get("rank"), failure.get("node"), _PARTS.get(failure["cause"])
    role = f"`{failure['role']}`: " if "role" in failure else ""
    if rank is not None:
        return f"{role}rank {rank} on node {node}"
    return role + (f"{part} of node {node}" if part in ("agent", "step") else f"node {node}")
