"""What a job's batch script runs on its first node: `... scheduler.slurm.batch RUN_DIR [STEP...] [-- PYTHON...]`.

It is the job's supervisor. STEP are options for `srun`, PYTHON is how Python starts on the nodes (in a container).
SIGINT is a person's wish to stop; SIGTERM comes from Slurm, before the time limit or when another job takes the place.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.job.request import JobRequest, job_request
from trainworks.job.state import CAUSES, Cause, JobState, parse_cause
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.scheduler.nodes import CommandNodes, TrainingNodes
from trainworks.scheduler.slurm.allocation import Allocation, Step, StepHosts, allocation, processes_in
from trainworks.scheduler.slurm.client import SlurmClient
from trainworks.scheduler.slurm.states import JOB_STATES
from trainworks.scheduler.supervisor import Supervisor, supervise

__all__ = ["main", "starts_that_count", "why_it_left"]

_MEMORY_OF_THE_JOB = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
"""srun takes no second word about memory beside `--mem=0`."""
_SIGNAL_COMES_EARLY_S = 90.0
"""Slurm may send a signal up to a minute before its time."""


def main(run_folder: str, *step: str) -> int:
    """Run the job in a run directory to its end, or to its next turn in the queue."""
    process.adopt_orphans()
    for name in _MEMORY_OF_THE_JOB:
        os.environ.pop(name, None)
    batch = _Batch(RunDir(Path(run_folder)), _step(list(step)), SlurmClient())
    signals: list[int] = []
    code = supervise(batch.run_dir, batch.supervisor, heard=signals.append)
    return batch.leave(code, signals)


def _step(arguments: list[str]) -> Step:
    options, python = arguments, [sys.executable]
    if "--" in arguments:
        cut = arguments.index("--")
        options, python = arguments[:cut], arguments[cut + 1 :]
    return Step(tuple(options), tuple(python))


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

    def supervisor(self, lock: int) -> Supervisor:
        """The supervisor of the nodes that Slurm gave."""
        self._got = allocation(os.environ, self._client)
        self._note_the_launch(self._got)
        resolved = self.run_dir.read_resolved()
        resolved = resolved.model_copy(update={"processes": processes_in(resolved, self._got)})
        self.run_dir.write_resolved(resolved)
        self._request = request = job_request(resolved)
        kind = TrainingNodes if request.kind == "training" else CommandNodes
        in_place = replace(request, max_restarts=self._restarts_in_place(request))
        nodes = kind(self.run_dir, in_place, (lock,), StepHosts(self._got, self._step))
        return Supervisor(self.run_dir, in_place, nodes, self._clock, resolved.run_file.job.grace)

    def _restarts_in_place(self, request: JobRequest) -> int:
        """Those of a command are counted together with its turns in the queue, and the last of them is such a turn.

        A workload goes on from its checkpoint: every turn has all of them.
        """
        if request.kind == "training":
            return request.max_restarts
        before = self._starts(request) - 1
        return max(0, request.max_restarts - before - 1)

    def _starts(self, request: JobRequest) -> int:
        return starts_that_count(read_events(self.run_dir.events_file), in_place=request.kind == "command")

    def _note_the_launch(self, got: Allocation) -> None:
        """Write down how the last stretch ended, if it could not, and that this one begins."""
        events = self.run_dir.events_file
        last = self.run_dir.read_status()
        if got.restarts and not _has_ended(last):
            self._enter(JobState.QUEUED, Cause.NODE_LOST, "its nodes were taken away or lost")
        self.run_dir.stop_file.unlink(missing_ok=True)
        self.run_dir.make_reserve()
        each = {"processes_per_node": 1, "job": got.job, "restarts": got.restarts}
        append_event(events, "submitted", nodes=len(got.nodes), hosts=list(got.nodes), **each)

    def leave(self, code: int, signals: list[int]) -> int:
        """Put the job back into the queue if that can help; returns the exit code of the batch script."""
        status = self.run_dir.read_status()
        if self._request is None or self._got is None or status.state == JobState.SUCCEEDED:
            return code
        cause = parse_cause(status.cause) or Cause.UNKNOWN
        if status.state == JobState.STOPPED:
            if signal.SIGINT in signals:
                return 0
            found = self._why_it_left(self._got)
            if found is None:
                return code
            cause = found
        if cause is Cause.PREEMPTED:
            self._enter(JobState.PREEMPTED, cause, CAUSES[cause].words)
            return code  # Slurm itself puts it back
        if not self._another_start_may_help(cause):
            if status.state == JobState.STOPPED:
                self._enter(JobState.FAILED, cause, CAUSES[cause].words)
            return status.exit_code or code
        return self._requeue(self._got, cause, status.message)

    def _why_it_left(self, got: Allocation) -> Cause | None:
        """Why Slurm asked for an end; None if a person cancelled the job, or nobody can say."""
        with contextlib.suppress(TrainworksError):
            said = self._client.call("squeue", "--noheader", "--states=all", f"--jobs={got.job}", "--Format=State:20")
            limit_s = self.run_dir.read_resolved().run_file.job.time_limit
            return why_it_left(said.strip(), self._clock.now() - self._started_at, limit_s, self._grace_s())
        return None

    def _grace_s(self) -> float:
        return self.run_dir.read_resolved().run_file.job.grace

    def _another_start_may_help(self, cause: Cause) -> bool:
        assert self._request is not None
        return CAUSES[cause].another_start_helps and self._starts(self._request) <= self._request.max_restarts

    def _requeue(self, got: Allocation, cause: Cause, message: str | None) -> int:
        """The job waits again, under the same number; Slurm ends this script."""
        self._enter(JobState.QUEUED, cause, message)
        try:
            self._client.call("scontrol", "requeue", got.job)
        except TrainworksError as error:
            self._enter(JobState.FAILED, cause, f"{message}; it could not be put back into the queue: {error.message}")
            return 1
        self._clock.sleep(60.0)  # until Slurm ends us: an end of our own could be taken for the job's
        return 1

    def _enter(self, state: JobState, cause: Cause, message: str | None) -> None:
        pid, started_at = process.identity()
        status = RunStatus(
            state=state,
            cause=cause,
            message=message,
            exit_code=None if state.waits else 1,
            supervisor_pid=None if state.waits else pid,
            supervisor_started_at=None if state.waits else started_at,
            updated_at=self._clock.now(),
        )
        self.run_dir.write_status(status)
        append_event(self.run_dir.events_file, "state", state=state, cause=cause, message=message)


def _has_ended(status: RunStatus) -> bool:
    return status.state in (JobState.QUEUED, JobState.PREEMPTED, JobState.CREATED) or JobState(status.state).is_final


def starts_that_count(events: list[Event], *, in_place: bool) -> int:
    """Starts of a job so far, without those that ended because another job took the place.

    Args:
        events: of the run, which may have been a job before; Slurm's restart count tells them apart.
        in_place: whether every start of the ranks counts, or every stretch of holding the nodes.
    """
    stretches: list[list[Event]] = [[]]
    for event in events:
        if event["kind"] == "submitted":
            stretches = [[]] if not event.get("restarts") else [*stretches, []]
        stretches[-1].append(event)
    return sum(_starts_in(stretch) if in_place else 1 for stretch in stretches if not _was_free(stretch))


def _starts_in(stretch: list[Event]) -> int:
    return max(1, [event["kind"] for event in stretch].count("attempt"))


def _was_free(stretch: list[Event]) -> bool:
    states = [event for event in stretch if event["kind"] == "state"]
    cause = parse_cause(states[-1]["cause"]) if states else None
    return cause is not None and not CAUSES[cause].counts_as_restart


def why_it_left(word: str, ran_s: float, limit_s: float | None, grace_s: float) -> Cause | None:
    """Why Slurm sent SIGTERM.

    Args:
        word: Slurm's word for the job's state now.
        ran_s: how long it has run.
        limit_s: its time limit, if the run file has one.
        grace_s: how long before that Slurm sends its signal.
    """
    if word.startswith("CANCELLED"):
        return None
    if JOB_STATES.get(word) is JobState.RUNNING and word != "COMPLETING":
        near = limit_s is None or ran_s > limit_s - grace_s - _SIGNAL_COMES_EARLY_S
        return Cause.TIME_LIMIT if near else Cause.PREEMPTED
    return Cause.PREEMPTED


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
