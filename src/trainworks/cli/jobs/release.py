"""`trainworks release`."""

from __future__ import annotations

from trainworks.api import jobs
from trainworks.cli.options import JobArgument, warn
from trainworks.report.rendering.printable import say

__all__ = ["command"]


def command(job: JobArgument) -> None:
    """Let a held job start."""
    say(f"{jobs.release(job, notify=warn).run_id} released")
