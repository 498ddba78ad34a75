"""`trainworks wait`."""

from __future__ import annotations

from trainworks.cli.options import Runs, RunsOption, find_each
from trainworks.cli.runs.report import say_pending_copies
from trainworks.report.rendering.printable import say


def command(names: Runs = None, runs: RunsOption = None) -> None:
    """Prints each run as it ends, in the order of the arguments. The exit code is that of the first that failed.

    An interrupt ends the waiting, not the runs.
    """
    found = find_each(names, runs)
    for run in found:
        say(f"{run.id} {run.wait()}")
        say_pending_copies(run)
    for run in found:
        run.check()
