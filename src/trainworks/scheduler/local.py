"""This machine: one supervisor process per job, one agent process per node, nothing to install."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from typing import final

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.job.request import JobRequest
from trainworks.record.events import append_event
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.scheduler.base import Rendered, Scheduler
from trainworks.scheduler.launch import make_ready, take_run

__all__ = ["LocalScheduler"]

_START_TIMEOUT_S = 20.0
_STARTS: dict[str, list[str]] = {
    "per_rank": [],
    "per_node": ["# the command starts once per node; more ranks are its own"],
    "once": ["# the command starts once, and starts the ranks"],
}


@final
class LocalScheduler(Scheduler):
    """Runs jobs as processes of this user."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def render(self, request: JobRequest, run_dir: RunDir) -> Rendered:
        """The supervisor's command line and what it starts."""
        processes = request.processes
        lines = [
            shlex.join(["python", "-m", "trainworks.scheduler.supervisor", str(run_dir.path)]),
            f"# {processes.nodes} node agent(s), {processes.processes_per_node} rank(s) each, "
            f"{processes.threads_per_process} thread(s) per rank, {processes.device}",
            *_STARTS[processes.starts],
            f"# restarts after a failure: {request.max_restarts}",
        ]
        return Rendered(request, "\n".join(lines) + "\n")

    def submit(self, rendered: Rendered, run_dir: RunDir, *, attached: bool) -> None:
        """Start the supervisor and wait until it has written its first status."""
        os.close(take_run(run_dir))
        make_ready(run_dir, rendered.request, self._clock.now())
        parent = str(os.getpid()) if attached else "0"
        child = process.spawn(
            process.python_module("trainworks.scheduler.supervisor", str(run_dir.path), parent),
            log=run_dir.supervisor_log,
            new_session=True,
        )
        self._await_start(child, run_dir)

    def _await_start(self, child: process.Child, run_dir: RunDir) -> None:
        deadline = self._clock.now() + _START_TIMEOUT_S
        while run_dir.read_status().state == "CREATED":
            if (code := child.exit_code()) is not None:
                raise self._not_started(run_dir, f"the supervisor ended with code {code}")
            if self._clock.now() > deadline:
                child.signal_group(signal.SIGKILL)
                raise self._not_started(run_dir, f"the supervisor did not start within {_START_TIMEOUT_S:.0f} s")
            self._clock.sleep(0.01)

    def _not_started(self, run_dir: RunDir, message: str) -> EnvironmentProblem:
        run_dir.write_status(
            RunStatus(state="FAILED", cause="environment", message=message, exit_code=3, updated_at=self._clock.now())
        )
        return EnvironmentProblem(message, hint=f"see {run_dir.supervisor_log}")

    def stop(self, run_dir: RunDir, reason: str) -> bool:
        """Signal the supervisor, if it is still that process."""
        status = run_dir.read_status()
        if status.supervisor_pid is None or status.supervisor_started_at is None:
            return False
        if not process.is_running(status.supervisor_pid, status.supervisor_started_at):
            return False
        append_event(run_dir.events_file, "stop_requested", reason=reason)
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.supervisor_pid, signal.SIGTERM)
        return True
