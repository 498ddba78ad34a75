"""Keeps what was given up from writing the record of a run: a node that was out of reach may come back.

A lock keeps two supervisors of one machine apart, but a file system may not carry it to other nodes. The record itself
does: who starts later has written `submitted`, `agent_started` or `attempt`, and who finds such an event behind its own
stops writing. Between its last look and its write a few milliseconds remain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainworks.errors import SupersededError
from trainworks.record.events.log import Event, read_events_from


class AttemptFence:
    """Tells an attempt of the ranks whether a later start has taken the run over.

    `own` are fields of this attempt's event that no other attempt has, together.
    """

    def __init__(self, events_file: Path, **own: Any) -> None:
        self._events_file = events_file
        self._own = own
        self._read_bytes = 0
        self._has_begun = self._is_superseded = False

    @property
    def is_superseded(self) -> bool:
        """True once another attempt, or another launch of the job, follows this attempt's event."""
        new, self._read_bytes = read_events_from(self._events_file, self._read_bytes)
        for event in new:
            if event["kind"] == "attempt" and self._own.items() <= event.items():
                self._has_begun, self._is_superseded = True, False
            elif event["kind"] in ("attempt", "submitted"):
                self._is_superseded = self._has_begun
        return self._is_superseded

    def check(self) -> None:
        """Refuse to write for an attempt that was given up.

        Raises:
            SupersededError: a later start has the run.
        """
        if self.is_superseded:
            raise SupersededError("a later start of the run has taken its record over")


def agent_is_superseded(since: Sequence[Event], node: int, writer: int) -> bool:
    """True if another launch, or another agent of the same node, has started `since` this agent, whose process id is
    `writer`, started its ranks.
    """
    return any(
        event["kind"] == "submitted"
        or (event["kind"] == "agent_started" and event.get("node") == node and event.get("writer") != writer)
        for event in since
    )
