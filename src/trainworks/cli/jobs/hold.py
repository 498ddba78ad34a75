"""`trainworks hold`."""

from __future__ import annotations

import trainworks
from trainworks.cli.options import JobArgument, warn
from trainworks.report.rendering.printable import say


def command(job: JobArgument) -> None:
    """Keep a waiting job from starting; it keeps its place in the queue."""
    say(f"{trainworks.hold(job, notify=warn).run_id} held")
