"""Restarts used by a job: one count for all levels and backends, taken from the run's record.

`recover.max_restarts` is the number of lives of a job minus one. A life begins when a user submits the job, when ranks
start again in place, when a supervisor starts a lost agent again, and when the job gets its nodes another time. The
events of a run are the only counter, so no process can forget it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.record.events import Event

FREE_CAUSES = frozenset({"preempted", "no_capacity", "node_unhealthy", "node_reclaimed"})
"""Causes of `job.state` after which another turn costs no restart."""
BEGUN_STATES = frozenset({"STARTING", "RUNNING", "RECOVERING"})
WAITING_STATES = frozenset({"QUEUED", "PREEMPTED"})
"""States of `job.state`, read here from the record as text."""

RANK_RESTART: Event = {"kind": "ranks_started"}
"""The ranks of a workload start, together."""
AGENT_RESTART: Event = {"kind": "restart", "node": None}
"""The supervisor starts an agent again: the one of `node`, or all of them."""
NEXT_TURN: Event = {"kind": "submitted", "restarts": 1}
"""The job gets its nodes another time."""


class _Count:
    """Restarts since a user submitted the job last."""

    def __init__(self) -> None:
        self.used = 0
        self._began = False
        self._is_free = False
        self._ranks_started = False
        self._started_again: set[int] | None = None
        """Nodes whose agents were started again in this life, before its ranks started; None where all started."""

    def take(self, event: Event) -> None:
        """Count one event."""
        match event["kind"]:
            case "submitted":
                self._take_turn(is_next=bool(event.get("restarts")))
            case "restart":
                self._take_agent(event.get("node"))
            case "ranks_started":
                self.used += self._ranks_started
                self._ranks_started, self._started_again = True, None
            case "state":
                self._began |= event["state"] in BEGUN_STATES
                self._is_free = event.get("cause") in FREE_CAUSES

    def _take_turn(self, *, is_next: bool) -> None:
        if not is_next:
            self.used = 0
        elif self._began and not self._is_free:
            self.used += 1
        self._began = self._is_free = self._ranks_started = False
        self._started_again = None

    def _take_agent(self, node: int | None) -> None:
        """Agents that are lost together are one restart: their ranks start once."""
        if node is not None and self._started_again is not None and node not in self._started_again:
            self._started_again.add(node)
            return
        self.used += 1
        self._ranks_started = False
        self._started_again = {node} if node is not None else None


def restarts_used(events: Sequence[Event]) -> int:
    """Restarts since a user submitted or retried the job; a turn that was preempted or found no capacity costs none."""
    count = _Count()
    for event in events:
        count.take(event)
    return count.used


def may_restart(events: Sequence[Event], max_restarts: int, then: Event) -> bool:
    """Check whether the restart budget allows the event `then`: RANK_RESTART, AGENT_RESTART or NEXT_TURN."""
    return restarts_used([*events, then]) <= max_restarts


def record_waits(events: Sequence[Event]) -> bool:
    """True if the last recorded state is one of a job that waits for its nodes."""
    states = [event["state"] for event in events if event["kind"] == "state"]
    return bool(states) and states[-1] in WAITING_STATES


def earlier_turns(events: Sequence[Event]) -> int:
    """Turns of a job that waits for another one; 0 for a job that a user submits or retries."""
    if not record_waits(events):
        return 0
    turns = 0
    for event in events:
        if event["kind"] == "submitted":
            turns = turns + 1 if event.get("restarts") else 1
    return turns
