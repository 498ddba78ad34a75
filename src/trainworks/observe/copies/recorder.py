"""Copies the record of a run into its store, beside the run: a run whose machines are rented has it nowhere else.

The resolved run names this module, and the supervisor of the run starts `python -m
trainworks.observe.copies.recorder RUN_DIR NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from trainworks.agent.current_state import current_state
from trainworks.errors import UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.copies.record_copy import RecordCopy, record_of
from trainworks.jobs.state import JobState
from trainworks.observe.following import report_beside
from trainworks.record.run_dir import RunDir

_EVERY_S = 10.0
"""Time between two copies: a store takes money for each request."""


class Recorder:
    """Sends the record of a run every ten seconds, and once more when the run has ended."""

    def __init__(self, run_dir: RunDir, record: RecordCopy, state: Callable[[], JobState], clock: Clock) -> None:
        self._run_dir = run_dir
        self._record = record
        self._state = state
        self._clock = clock
        self._sent_at = -_EVERY_S

    def send(self) -> JobState:
        """Send the record if that is due; returns the state of the run before."""
        state = self._state()
        has_left = state.is_final or state.waits
        if has_left or self._clock.now() - self._sent_at >= _EVERY_S:
            self._record.send(self._run_dir)
            self._sent_at = self._clock.now()
        return state

    def note(self, problem: str) -> None:
        """The log of this process has the problem, and the record would not arrive."""

    def close(self) -> None:
        """Nothing stays open between two copies."""


def main(run_folder: str, name: str) -> int:
    """Copy until the run ends; returns the exit code, 1 if its end is not copied."""
    run_dir, clock = RunDir(Path(run_folder)), SystemClock()

    def start(state: Callable[[], JobState]) -> Recorder:
        record = record_of(run_dir.read_resolved().run_file, run_dir.run_id)
        if record is None:
            raise UsageError("the run has no store for its record", hint="set `cluster.skypilot.store`")
        return Recorder(run_dir, record, state, clock)

    return report_beside(run_dir, name, lambda: current_state(run_dir.read_status()), clock, start)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
