"""Follows the metrics of a run, and records the rank that holds it up."""

from __future__ import annotations

from collections import deque
from typing import Any

from trainworks.host.clock import Clock
from trainworks.record.events import append_event, read_lines_from
from trainworks.record.run_dir import RunDir
from trainworks.recover.stragglers import INTERVALS, Straggler, find_straggler

_LOOK_EVERY_S = 1.0


class StragglerWatch:
    """Names each straggler of an attempt once.

    Args:
        run_dir: of the run.
        ranks_per_node: to name the node.
        clock: of this machine.
    """

    def __init__(self, run_dir: RunDir, ranks_per_node: int, clock: Clock) -> None:
        self._run_dir = run_dir
        self._ranks_per_node = ranks_per_node
        self._clock = clock
        self._read = run_dir.metrics_file.stat().st_size if run_dir.metrics_file.exists() else 0
        self._rows: deque[Any] = deque(maxlen=INTERVALS)
        """Last rows of the last intervals of this attempt."""
        self._attempt = 0
        self._named: set[int] = set()
        self._next_look = 0.0

    def look(self) -> Straggler | None:
        """A straggler that was not named yet; once a second there is something to do."""
        if self._clock.now() < self._next_look:
            return None
        self._next_look = self._clock.now() + _LOOK_EVERY_S
        rows, self._read = read_lines_from(self._run_dir.metrics_file, self._read)
        for row in rows:
            if row["attempt"] != self._attempt:
                self._attempt = row["attempt"]
                self._rows.clear()
                self._named.clear()
            if "slowest" in row:
                self._rows.append(row)
        found = find_straggler(self._rows, self._ranks_per_node)
        if found is None or found.rank in self._named:
            return None
        self._named.add(found.rank)
        about = {"rank": found.rank, "node": found.node, "extra_s": found.extra_s, "step_s": found.step_s}
        append_event(self._run_dir.events_file, "straggler", **about, message=found.message)
        return found
