"""For whoever waits for a run: its backend is asked how it is, where that is not this machine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from trainworks.backends.registry import cluster_of, shares_files
from trainworks.host.clock import SystemClock
from trainworks.record.run_dir import RunDir

__all__ = ["far_output", "following"]

_LOOK_S = 3.0
"""Between two questions."""


def far_output(run_dir: RunDir, *, node: int | None = None, follow: bool = False) -> Iterator[str] | None:
    """What the backend of a run has of its output; None where that is in the run directory.

    Raises:
        UsageError: the backend has not got the job yet.
    """
    cluster = cluster_of(run_dir.path)
    if cluster is None or shares_files(cluster.engine):
        return None
    jobs: Any = importlib.import_module("trainworks.cli.jobs")
    found: Iterator[str] = jobs.output_of(run_dir, node=node, follow=follow)
    return found


def following(run_dir: RunDir) -> Callable[[], None]:
    """A function to call again and again, which asks now and then."""
    cluster = cluster_of(run_dir.path)
    if cluster is None or cluster.engine == "local":
        return lambda: None
    jobs: Any = importlib.import_module("trainworks.cli.jobs")  # opens a database: not before it is needed
    clock, asked_at = SystemClock(), 0.0

    def look() -> None:
        nonlocal asked_at
        if clock.now() - asked_at > _LOOK_S:
            jobs.follow()
            asked_at = clock.now()

    return look
