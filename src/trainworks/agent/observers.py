"""Start the processes that report a run: to trackers and, by messages, to people."""

from __future__ import annotations

from contextlib import suppress

from trainworks.host import process
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir


def start_observers(run_dir: RunDir, resolved: ResolvedRun) -> list[process.Child]:
    """Start the observers that the resolved run names.

    They only read the record, so an observer that hangs or dies does not affect the run. The supervisor neither waits
    for them nor ends them: each sends the end of the run and leaves. What could not be sent is sent by the next one.
    """
    started = []
    for module, name in resolved.observers:
        command = process.python_module(module, str(run_dir.path.resolve()), name)
        with suppress(OSError):  # no process or no disk space left: the run goes without
            started.append(process.spawn(command, log=run_dir.observer_log(name), new_session=True))
    return started
