"""Start the processes that report a run: to trackers and, by messages, to people."""

from __future__ import annotations

from contextlib import suppress

from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

LEAVE_WITHIN_S = 30.0
_started: list[process.Child] = []
"""Observers of this process, kept until they have ended, so that they are reaped."""


def start_observers(run_dir: RunDir, resolved: ResolvedRun) -> None:
    """Start the observers that the resolved run names.

    They only read the record, so an observer that hangs or dies does not affect the run. The supervisor neither waits
    for them nor ends them: each sends the end of the run and leaves. What could not be sent is sent by the next one.
    """
    for module, name in resolved.observers:
        command = process.python_module(module, str(run_dir.path.resolve()), name)
        with suppress(OSError):  # no process or no disk space left: the run goes without
            _started.append(process.spawn(command, log=run_dir.observer_log(name), new_session=True))


def running_observers() -> list[int]:
    """Process ids of the observers that this process has started and that still run."""
    _started[:] = [one for one in _started if one.exit_code() is None]
    return [one.pid for one in _started]


def await_observers(clock: Clock, most_s: float = LEAVE_WITHIN_S) -> None:
    """Wait for the observers that this process has started, for half a minute at most, or `most_s`.

    On a cluster they end with the allocation, which they need for the end of the run.
    """
    deadline = clock.now() + most_s
    while running_observers() and clock.now() < deadline:
        process.wait_any(_started, deadline - clock.now())
