"""`trainworks release`."""

from __future__ import annotations

import trainworks
from trainworks.cli.options import JobArgument, warn
from trainworks.report.rendering.printable import say


def command(job: JobArgument) -> None:
    """Let a held job start."""
    say(f"{trainworks.release(job, notify=warn).run_id} released")
