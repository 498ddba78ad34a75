"""The first moments of a job on this machine: its run directory is made ready while nobody else can have it."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.job.request import JobRequest
from trainworks.record.events import append_event
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

__all__ = ["end_left_over", "make_ready", "run_mark", "take_run"]


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


def make_ready(run_dir: RunDir, request: JobRequest, now: float) -> None:
    """Forget how an earlier launch was stopped, set some disk aside, and say that the job is submitted."""
    processes = request.processes
    run_dir.stop_file.unlink(missing_ok=True)
    run_dir.make_reserve()
    run_dir.write_status(RunStatus(state="CREATED", updated_at=now))
    append_event(
        run_dir.events_file, "submitted", nodes=processes.nodes, processes_per_node=processes.processes_per_node
    )


def run_mark(run_dir: RunDir) -> dict[str, str]:
    """The variable that every process of a run has, so that none is overlooked."""
    return {"TRAINWORKS_RUN_DIR": str(run_dir.path.resolve())}


def end_left_over(run_dir: RunDir) -> int:
    """Kill what still runs of a job whose supervisor and agents are gone; returns how many processes that were."""
    mark = "=".join(*run_mark(run_dir).items()).encode()
    left = [pid for pid in map(_as_pid, Path("/proc").iterdir()) if pid and mark in _environment_of(pid)]
    for pid in left:
        process.kill(pid)
    return len(left)


def _as_pid(folder: Path) -> int:
    return int(folder.name) if folder.name.isdecimal() and int(folder.name) != os.getpid() else 0


def _environment_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is somebody else's
        return []
