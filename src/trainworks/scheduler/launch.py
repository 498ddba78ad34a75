"""The first moments of a job on this machine: its run directory is made ready while nobody else can have it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from trainworks.errors import EnvironmentProblem
from trainworks.files import naming_full_disk, take_lock
from trainworks.host import process
from trainworks.job.request import JobRequest
from trainworks.record.events import append_event
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

__all__ = ["end_left_over", "keep_environment", "make_ready", "run_mark", "take_environment", "take_run"]


def take_run(run_dir: RunDir) -> int:
    """The lock of a run that nobody has: whoever inherits it keeps everybody else from the run.

    Raises:
        EnvironmentProblem: somebody has it, if only the rest of an earlier launch.
    """
    lock = take_lock(run_dir.lock_file)
    if lock is None:
        raise EnvironmentProblem(
            f"run {run_dir.run_id} still has processes", hint=f"trainworks stop {run_dir.run_id}, or wait a moment"
        )
    return lock


def make_ready(run_dir: RunDir, request: JobRequest, now: float, *, restarts: int = 0) -> None:
    """Forget how an earlier launch was stopped, set some disk aside, and say that the job is submitted.

    Args:
        run_dir: of the run.
        request: the job.
        now: the time.
        restarts: turns of the job before this one; 0 for a job that a user submits, which has all its restarts.
    """
    processes = request.processes
    run_dir.stop_file.unlink(missing_ok=True)
    run_dir.make_reserve()
    run_dir.write_status(RunStatus(state="CREATED", updated_at=now))
    append_event(
        run_dir.events_file,
        "submitted",
        nodes=processes.nodes,
        processes_per_node=processes.processes_per_node,
        restarts=restarts,
    )


def run_mark(run_dir: RunDir) -> dict[str, str]:
    """The variable that every process of a run has, so that none is overlooked."""
    return {"TRAINWORKS_RUN_DIR": str(run_dir.path.resolve())}


def end_left_over(run_dir: RunDir) -> int:
    """Kill what still runs of a job whose supervisor and agents are gone; returns how many processes that were."""
    left = process.processes_with(run_mark(run_dir))
    for one in left:
        process.kill(one.pid)
    return len(left)


def keep_environment(run_dir: RunDir, environment: Mapping[str, str]) -> None:
    """Keep the variables of whoever submits, for the job alone and for nobody else to read."""
    with naming_full_disk(run_dir.path):
        handle = os.open(run_dir.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dict(environment), file)


def take_environment(run_dir: RunDir, besides: Mapping[str, str]) -> None:
    """Take on those variables, where somebody kept them, and some besides."""
    try:
        kept = json.loads(run_dir.environment_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kept = None
    if kept is not None:
        os.environ.clear()
        os.environ.update(kept)
    os.environ.update(besides)
