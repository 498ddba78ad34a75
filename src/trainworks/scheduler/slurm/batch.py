"""What a job's batch script runs on its first node: `... scheduler.slurm.batch RUN_DIR [STEP...] [-- PYTHON...]`.

It is the job's supervisor. STEP are options for `srun`, PYTHON is how Python starts on the nodes (in a container).
SIGINT is a person's wish to stop; SIGTERM comes from Slurm, before the time limit or when another job takes the place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import psutil

from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.host.probe import probe_host
from trainworks.job.request import JobRequest, job_request
from trainworks.job.state import CAUSES, Cause, JobState, parse_cause, parse_state
from trainworks.record.events import append_event, read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.scheduler.nodes import CommandNodes, Hosts, ThisMachine, TrainingNodes
from trainworks.scheduler.slurm.allocation import Allocation, Step, StepHosts, allocation, processes_in
from trainworks.scheduler.slurm.client import SlurmClient
from trainworks.scheduler.slurm.states import cause_of_the_kill
from trainworks.scheduler.supervisor import Supervisor, supervise
from trainworks.scheduler.turn import back_in_the_queue, plan, planner_of, starts_that_count

__all__ = ["main", "starts_that_count"]

_MEMORY_OF_THE_JOB = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
"""srun takes no second word about memory beside `--mem=0`."""
_SIGNAL_COMES_EARLY_S = 90.0
"""Slurm may send a signal up to a minute before its time."""
_UNTIL_SLURM_ENDS_US_S = 60.0
_OF_THE_USER = (signal.SIGUSR1, signal.SIGUSR2)


def main(run_folder: str, *step: str) -> int:
    """Run the job in a run directory to its end, or to its next turn in the queue."""
    process.adopt_orphans()
    for name in _MEMORY_OF_THE_JOB:
        os.environ.pop(name, None)
    run_dir = RunDir(Path(run_folder))
    if parse_state(run_dir.read_status().state).is_final and not os.environ.get("SLURM_RESTART_COUNT"):
        return 0  # submitted twice: another job has done it
    batch = _Batch(run_dir, _step(list(step)), SlurmClient())
    code = supervise(batch.run_dir, batch.supervisor, heard=batch.hear)
    return batch.leave(code)


def _step(arguments: list[str]) -> Step:
    options, python = arguments, [sys.executable]
    if "--" in arguments:
        cut = arguments.index("--")
        options, python = arguments[:cut], arguments[cut + 1 :]
    return Step(tuple(options), tuple(python), is_container="--" in arguments)


class _Batch:
    """One stretch in which the job holds its nodes."""

    def __init__(self, run_dir: RunDir, step: Step, client: SlurmClient) -> None:
        self.run_dir = run_dir
        self._step = step
        self._client = client
        self._clock = SystemClock()
        self._started_at = self._clock.now()
        self._got: Allocation | None = None
        self._request: JobRequest | None = None
        self._signals: list[int] = []

    def hear(self, number: int) -> None:
        """A signal has come."""
        if number == signal.SIGTERM and not self._signals:
            append_event(self.run_dir.events_file, "stop_requested", reason="Slurm asked for an end")
        self._signals.append(number)

    def supervisor(self, lock: int) -> Supervisor:
        """The supervisor of the nodes that Slurm gave."""
        self._got = got = allocation(os.environ, self._client)
        self._note_the_launch(got)
        steps = StepHosts(got, self._step, self._client)
        resolved = self._resolved(got, steps)
        size = {"nodes": len(got.nodes), "processes_per_node": resolved.processes.processes_per_node}
        append_event(
            self.run_dir.events_file, "submitted", **size, hosts=list(got.nodes), job=got.job, restarts=got.restarts
        )
        self._request = request = job_request(resolved)
        hosts: Hosts = steps
        if request.framework == "slurm":  # the script starts once, here, as a batch script of its own would
            request = replace(request, processes=request.processes.model_copy(update={"nodes": 1}))
            hosts = ThisMachine(1)
            for number in _OF_THE_USER:
                signal.signal(number, _pass_on)
        kind = TrainingNodes if request.kind == "training" else CommandNodes
        in_place = replace(request, max_restarts=self._restarts_in_place(request))
        return Supervisor(self.run_dir, in_place, kind(self.run_dir, in_place, (lock,), hosts), self._clock)

    def _resolved(self, got: Allocation, hosts: StepHosts) -> ResolvedRun:
        """The run as it is on these nodes; a workload is planned there before its first start."""
        resolved = self.run_dir.read_resolved()
        if resolved.run_file.workload is not None and resolved.plan is None:
            planner = planner_of(self.run_dir)
            plan(hosts.command(0, planner) if self._step.is_container else planner)
            resolved = self.run_dir.read_resolved()
        changes: dict[str, Any] = {"processes": processes_in(resolved, got)}
        if resolved.plan is None:
            changes["host"] = probe_host(self.run_dir.path)
        resolved = resolved.model_copy(update=changes)
        self.run_dir.write_resolved(resolved)
        return resolved

    def _restarts_in_place(self, request: JobRequest) -> int:
        """Those of a command are counted together with its turns in the queue; a workload, which goes on from its
        checkpoint, has all of them in every turn.
        """
        before = self._starts(request) - 1 if request.kind == "command" else 0
        return max(0, request.max_restarts - before)

    def _starts(self, request: JobRequest) -> int:
        return starts_that_count(read_events(self.run_dir.events_file), in_place=request.kind == "command")

    def _note_the_launch(self, got: Allocation) -> None:
        """Write down how the last stretch ended, if it could not, and that this one begins."""
        last = self.run_dir.read_status()
        if got.restarts and last.state not in (JobState.QUEUED, JobState.PREEMPTED):
            cause = cause_of_the_kill(self._log(), got.job) or Cause.NODE_LOST
            self._enter(*back_in_the_queue(cause))
        self.run_dir.stop_file.unlink(missing_ok=True)
        self.run_dir.make_reserve()
        self._say(JobState.STARTING, None, None)

    def leave(self, code: int) -> int:
        """Put the job back into the queue if that can help; returns the exit code of the batch script."""
        status = self.run_dir.read_status()
        if self._request is None or self._got is None or status.state == JobState.SUCCEEDED:
            return code
        cause = parse_cause(status.cause) or Cause.UNKNOWN
        if status.state == JobState.STOPPED:
            by_itself = signal.SIGINT in self._signals or cause is Cause.IDLE
            found = None if by_itself else self._why_it_left(self._got)
            if found is None:
                return self._cancelled(self._got)
            cause = found
            if cause is not Cause.TIME_LIMIT:  # Slurm itself puts it back
                self._enter(*back_in_the_queue(cause))
                return code
        if not self._another_start_may_help(cause):
            if status.state == JobState.STOPPED:
                self._enter(JobState.FAILED, cause, CAUSES[cause].words)
            return status.exit_code or code
        return self._requeue(self._got, cause, status.message)

    def _cancelled(self, got: Allocation) -> int:
        """Slurm shall say so, too; it would take this end for a success or for a failure."""
        with contextlib.suppress(TrainworksError):
            self._end_with("scancel", got.job)
        return 0

    def _end_with(self, program: Literal["scancel", "scontrol"], *arguments: str) -> None:
        """Have Slurm end this job: an end of our own could come first, and be taken for the job's."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._client.call(program, *arguments)
        self._clock.sleep(_UNTIL_SLURM_ENDS_US_S)

    def _why_it_left(self, got: Allocation) -> Cause | None:
        """Why Slurm asked for an end; None if a person cancelled the job, or nobody can say."""
        with contextlib.suppress(TrainworksError):
            said = self._client.call("squeue", "--noheader", "--states=all", f"--jobs={got.job}", "--Format=State:20")
            if said.strip() != "RUNNING":
                return cause_of_the_kill(self._log(), got.job)
            asked = self.run_dir.read_resolved().run_file.job
            end_s = asked.time_limit - asked.grace - _SIGNAL_COMES_EARLY_S if asked.time_limit else 0.0
            return Cause.TIME_LIMIT if self._clock.now() - self._started_at > end_s else Cause.PREEMPTED
        return None

    def _log(self) -> str:
        with contextlib.suppress(OSError):
            return self.run_dir.supervisor_log.read_text(encoding="utf-8", errors="replace")
        return ""

    def _another_start_may_help(self, cause: Cause) -> bool:
        assert self._request is not None
        return CAUSES[cause].another_start_helps and self._starts(self._request) <= self._request.max_restarts

    def _requeue(self, got: Allocation, cause: Cause, message: str | None) -> int:
        """The job waits again, under the same number; Slurm ends this script."""
        self._enter(JobState.QUEUED, cause, message)
        try:
            self._end_with("scontrol", "requeue", got.job)
        except TrainworksError as error:
            self._enter(JobState.FAILED, cause, f"{message}; it could not be put back into the queue: {error.message}")
        return 1

    def _enter(self, state: JobState, cause: Cause, message: str | None) -> None:
        self._say(state, cause, message)
        append_event(self.run_dir.events_file, "state", state=state, cause=cause, message=message)

    def _say(self, state: JobState, cause: Cause | None, message: str | None) -> None:
        pid, started_at = process.identity()
        status = RunStatus(
            state=state,
            cause=cause,
            message=message,
            exit_code=1 if state.is_final else None,
            supervisor_pid=None if state.waits else pid,
            supervisor_started_at=None if state.waits else started_at,
            supervisor_host=None if state.waits else socket.gethostname(),
            updated_at=self._clock.now(),
        )
        self.run_dir.write_status(status)


def _pass_on(number: int, frame: object) -> None:
    """A signal that the user has asked Slurm for goes to his script, as it would without us."""
    for agent in psutil.Process().children():
        for script in agent.children():
            script.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
