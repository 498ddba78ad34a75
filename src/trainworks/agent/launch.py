"""Prepare the run directory of a job on this machine, under the lock of the run."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import naming_full_disk, take_lock
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import JobState
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.verbosity import inherit_log

if TYPE_CHECKING:
    from trainworks.record.processes import Processes

_HANDOVER_S = 5.0
_LEAVES_WITHIN_S = 60.0
"""Time from the end of a run to that of its supervisor, on a machine that is busy."""
_LOOK_S = 0.05


def take_run(run_dir: RunDir, *, handover_s: float = _HANDOVER_S) -> int:
    """Take the lock of a run; a process that inherits it keeps all others from the run.

    A supervisor that just started, or that the holder of the lock will start, gets `handover_s` to write its status,
    and one whose run has ended gets time to leave.

    Raises:
        UsageError: a supervisor has the run.
        EnvironmentProblem: processes of an earlier launch have it.
    """
    clock = SystemClock()
    begun = clock.now()
    while (lock := take_lock(run_dir.lock_file)) is None:
        status = run_dir.read_status()
        pid, started_at = status.supervisor_pid, status.supervisor_started_at
        is_supervised = pid is not None and started_at is not None and process.is_running(pid, started_at)
        is_late = clock.now() >= begun + (_LEAVES_WITHIN_S if is_supervised else handover_s)
        if is_supervised and (is_late or not JobState(status.state).is_final):
            raise supervised(run_dir, status)
        if is_late:
            hint = f"trainworks stop {run_dir.run_id}, or wait a moment"
            raise EnvironmentProblem(f"run {run_dir.run_id} still has processes", hint=hint)
        clock.sleep(_LOOK_S)
    return lock


def supervised(run_dir: RunDir, status: RunStatus) -> UsageError:
    """The error for starting a live run: the process that supervises it, and since when."""
    problem = f"run {run_dir.run_id} is already {status.state}"
    if status.supervisor_pid is not None:
        submitted = [event["t"] for event in of_kind(read_events(run_dir.events_file), SubmittedEvent)]
        since = time.strftime(" since %Y-%m-%d %H:%M:%S", time.localtime(submitted[-1])) if submitted else ""
        problem += f": process {status.supervisor_pid} on {status.supervisor_host} supervises it{since}"
    hint = f"watch it with: trainworks logs -f {run_dir.run_id}; end it with: trainworks stop {run_dir.run_id}"
    return UsageError(problem, hint=hint)


def make_ready(run_dir: RunDir, processes: Processes, now: float, *, restarts: int = 0) -> None:
    """Remove the stop request of an earlier launch, reserve disk space, and record the submission.

    `restarts` counts earlier allocations of the job; a new submission has 0, and all its restarts.
    """
    run_dir.stop_file.unlink(missing_ok=True)
    run_dir.make_reserve()
    run_dir.write_status(RunStatus(state="CREATED", updated_at=now))
    run_dir.note(
        SubmittedEvent(
            kind="submitted", nodes=processes.nodes, processes_per_node=processes.processes_per_node, restarts=restarts
        )
    )


def run_mark(run_dir: RunDir) -> dict[str, str]:
    """The environment variable that identifies every process of a run."""
    return {"TRAINWORKS_RUN_DIR": str(run_dir.path.resolve())}


def end_left_over(run_dir: RunDir) -> int:
    """Kill the remaining processes of a job whose supervisor and agents are gone; returns their number."""
    left = process.processes_with(run_mark(run_dir))
    for one in left:
        process.kill(one.pid)
    return len(left)


def keep_environment(run_dir: RunDir, environment: Mapping[str, str]) -> None:
    """Save the environment of the submitting shell for the job, readable by its user only."""
    with naming_full_disk(run_dir.path):
        handle = os.open(run_dir.environment_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(dict(environment), file)


def take_environment(run_dir: RunDir, besides: Mapping[str, str]) -> None:
    """Replace this process's environment by the saved one, if there is one, and add variables."""
    try:
        kept = json.loads(run_dir.environment_file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        kept = None
    if kept is not None:
        os.environ.clear()
        os.environ.update(kept)
    os.environ.update(besides)
    inherit_log()
