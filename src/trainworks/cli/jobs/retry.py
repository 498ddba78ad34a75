"""`trainworks retry`."""

from __future__ import annotations

import trainworks
from trainworks.cli.options import JobArgument, warn
from trainworks.report.rendering.printable import say


def command(job: JobArgument) -> None:
    """A workload resumes from its newest checkpoint; a command starts from its beginning."""
    say(f"{trainworks.retry(job, notify=warn).run_id} queued again")
