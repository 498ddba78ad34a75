"""What a job's batch script runs on its first node: `... backends.slurm.batch RUN_DIR [STEP...] [-- PYTHON...]`.

It is the job's supervisor. STEP are options for `srun`, PYTHON starts Python on the nodes (in a container).
SIGINT is a user's request to stop; SIGTERM comes from Slurm, before the time limit or when another job takes the place.
The batch script passes both on under other numbers (`FORWARDED`): Slurm signals the script alone, or all its processes.
If the supervisor is killed, the script starts this module again, which requeues the job while a restart is left.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from trainworks.agent.allocation import (
    back_in_the_queue,
    no_restart_left,
    plan,
    planner_of,
    take_lock_from_before,
)
from trainworks.agent.node_agents import CommandNodes, Hosts, ThisMachine, TrainingNodes
from trainworks.agent.observers import await_observers
from trainworks.agent.supervisor import Supervisor, supervise
from trainworks.backends.slurm.allocation import (
    PATIENCE_S,
    Allocation,
    StepCommand,
    StepHosts,
    allocation,
    ending_of_turn,
    log_of,
    processes_in,
    state_query,
    unhealthy_nodes,
)
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.states import ENDING, FORWARDED, cause_of_the_kill, controller_times
from trainworks.backends.slurm.step_watch import start_step_watch
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.host.probe import probe_host
from trainworks.jobs.state import CAUSES, Cause, JobState, parse_cause, parse_state
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, may_restart, record_waits

_MEMORY_OF_THE_JOB = ("SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_PER_NODE")
"""Variables that srun would read as options, and refuse beside `--mem=0`."""
_SIGNAL_COMES_EARLY_S = 90.0
"""Slurm may send a signal up to a minute before its time."""
_UNTIL_SLURM_ENDS_US_S = 60.0
_UNTIL_QUEUED_S = 20.0
_LOOK_S = 0.1
_MOST_REFUSALS = 3
"""Refusals of one node by its check, before the job fails."""
_SIGNALS: dict[int, int] = {signal.SIGRTMIN + offset: number for offset, number in enumerate(FORWARDED, start=1)}
_ENDING = {received: number for received, number in _SIGNALS.items() if number in ENDING}


def main(run_folder: str, *step: str) -> int:
    """Run the job in a run directory to its end, or until it waits in the queue again."""
    process.adopt_orphans()
    for name in _MEMORY_OF_THE_JOB:
        os.environ.pop(name, None)
    for number in (*FORWARDED, *_SIGNALS):
        signal.signal(number, _ignore)
    return _Batch(RunDir(Path(run_folder)), _step(list(step)), SlurmClient()).run()


def _step(arguments: list[str]) -> StepCommand:
    options, python = arguments, [sys.executable]
    if "--" in arguments:
        cut = arguments.index("--")
        options, python = arguments[:cut], arguments[cut + 1 :]
    return StepCommand(tuple(options), tuple(python), is_container="--" in arguments)


class _Batch:
    """Supervises one allocation of the job."""

    def __init__(self, run_dir: RunDir, step: StepCommand, client: SlurmClient) -> None:
        self.run_dir = run_dir
        self._step = step
        self._client = client
        self._clock = SystemClock()
        self._started_at = self._clock.now()
        self._got: Allocation | None = None
        self._resolved: ResolvedRun | None = None
        self._signals: list[int] = []
        self._is_next_turn = False

    def run(self) -> int:
        """Supervise the job for one allocation, unless it has ended; returns the exit code of the script."""
        turn = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        begun = self._launches()[-1:]
        if begun and (begun[0].get("job"), begun[0].get("turn")) == (os.environ.get("SLURM_JOB_ID"), turn):
            return self._after_a_kill()
        if (lock := take_lock_from_before(self.run_dir, self._clock)) is None:
            sys.stderr.write("another supervisor still holds the run\n")
            return ExitCode.ENVIRONMENT
        status = self.run_dir.read_status()
        if (ended := self._code_of_end(status, turn)) is not None:
            return ended
        has_ended = parse_state(status.state) is JobState.FAILED  # a user has requeued it, as `retry` does
        was_lost = status.cause is not None and record_waits(read_events(self.run_dir.events_file))  # by Slurm itself
        self._is_next_turn = (turn > 0 or was_lost) and not has_ended
        if self._is_next_turn and not self._note_the_last_turn():
            return 1
        code = supervise(self.run_dir, self.supervisor, lock=lock, heard=self.hear, signals=_ENDING)
        if code == ExitCode.SUPERSEDED:
            return code
        code = self.leave(code)
        await_observers(self._clock)
        return code

    def _code_of_end(self, status: RunStatus, turn: int) -> int | None:
        """Exit code of the script of a job that has ended and does not run again; None if it runs."""
        state = parse_state(status.state)
        if state is JobState.SUCCEEDED or (state.is_final and not turn):
            return 0  # submitted twice, and another job has run it; or a slurmctld that crashed forgot its success
        if state not in (JobState.FAILED, JobState.STOPPED) or not self._is_forgotten(status):
            return None
        return status.exit_code or 1 if state is JobState.FAILED else self._cancelled(os.environ["SLURM_JOB_ID"])

    def _is_forgotten(self, end: RunStatus) -> bool:
        """Whether slurmctld has started since the end on record: it requeues a job whose end it lost in a crash."""
        if not self._controller_started_at() >= int(end.updated_at):  # also if Slurm does not say it: NaN
            return False
        how = "has failed" if end.state == JobState.FAILED else "was stopped"
        sys.stderr.write(f"not started: the run {how}, and slurmctld has started since; see `trainworks retry`\n")
        return True

    def _controller_started_at(self) -> float:
        """Start of slurmctld; NaN if it does not say it."""
        try:
            config = self._client.call_patiently(PATIENCE_S, self._clock, "scontrol", "show", "config")
        except TrainworksError:
            return math.nan
        return controller_times(config)[0]

    def _launches(self) -> list[Event]:
        return [event for event in read_events(self.run_dir.events_file) if event["kind"] == "submitted"]

    def _after_a_kill(self) -> int:
        """Requeue the job if a restart is left; Slurm ends the processes that the killed supervisor left behind."""
        self._got = allocation(os.environ, self._client, self._clock)
        self._resolved = self.run_dir.read_resolved()
        status = self.run_dir.read_status()
        if parse_state(status.state).is_final:
            return self.leave(status.exit_code or 0)
        cause, message = Cause.AGENT_LOST, "its supervisor was killed, and all that it had started with it"
        begun_at = float(self._launches()[-1]["t"])
        is_second_start = psutil.Process(os.getppid()).create_time() > begun_at  # not by the script of the first
        if is_second_start and self._controller_started_at() >= int(begun_at):
            cause, message = Cause.SCHEDULER_LOST, "slurmctld crashed and started the job a second time"
        if not self._another_start_may_help(cause):
            self._enter(JobState.FAILED, cause, message)
            return 1
        return self._requeue(self._got, cause, message)

    def _note_the_last_turn(self) -> bool:
        """Record how the last allocation ended, if it could not; False if no restart is left."""
        job = os.environ.get("SLURM_JOB_ID", "")
        if parse_state(self.run_dir.read_status().state) not in (JobState.QUEUED, JobState.PREEMPTED):
            cause, ended_at = ending_of_turn(self.run_dir, job, self._controller_started_at())
            self._enter(*back_in_the_queue(cause), ended_at=ended_at)
        resolved = self.run_dir.read_resolved()
        most = resolved.run_file.max_restarts
        if "--requeue" in resolved.run_file.cluster.slurm.options:  # the user's own option: no limit
            return True
        if may_restart(read_events(self.run_dir.events_file), RestartLimit.of(resolved.run_file), NEXT_TURN):
            return True
        cause = parse_cause(self.run_dir.read_status().cause) or Cause.NODE_LOST
        self._enter(JobState.FAILED, cause, no_restart_left(cause, most))
        return False

    def hear(self, number: int) -> None:
        """Record a signal."""
        if number == signal.SIGTERM and not self._signals:
            append_event(self.run_dir.events_file, "stop_requested", reason="Slurm asked for an end")
        self._signals.append(number)

    def supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for the allocated nodes."""
        self._got = got = allocation(os.environ, self._client, self._clock)
        self._begin_turn()
        steps = StepHosts(got, self._step, self._client)
        resolved = self._resolve_run(got, steps)
        size = {"nodes": len(got.nodes), "processes_per_node": resolved.processes.processes_per_node}
        append_event(
            self.run_dir.events_file,
            "submitted",
            **size,
            hosts=list(got.nodes),
            job=got.job,
            turn=got.restarts,
            restarts=(got.restarts or 1) if self._is_next_turn else 0,
            started_at=self._started_at,
        )
        self._resolved = resolved
        hosts: Hosts = steps
        if resolved.run_file.framework == "slurm":  # the script starts once, here, as sbatch would start it
            resolved = resolved.model_copy(update={"processes": resolved.processes.model_copy(update={"nodes": 1})})
            hosts = steps if self._step.is_container else ThisMachine(1)
            for number in _SIGNALS.keys() - _ENDING.keys():
                signal.signal(number, _pass_on)
        start_step_watch(self._client, self._clock)
        kind = TrainingNodes if resolved.is_workload else CommandNodes
        return Supervisor(self.run_dir, resolved, kind(self.run_dir, resolved, (lock,), hosts), self._clock, steps)

    def _resolve_run(self, got: Allocation, hosts: StepHosts) -> ResolvedRun:
        """Complete the resolved run with facts of these nodes; a workload is planned on them first."""
        resolved = self.run_dir.read_resolved()
        if resolved.run_file.workload is not None and resolved.plan is None:
            planner = planner_of(self.run_dir)
            plan(self.run_dir, hosts.command(0, planner) if self._step.is_container else planner)
            resolved = self.run_dir.read_resolved()
        changes: dict[str, Any] = {"processes": processes_in(resolved, got)}
        if resolved.plan is None:
            changes["host"] = probe_host(self.run_dir.path)
        resolved = resolved.model_copy(update=changes)
        self.run_dir.write_resolved(resolved)
        return resolved

    def _begin_turn(self) -> None:
        """Clear the stop request of an earlier allocation, and record the start of this one."""
        self.run_dir.stop_file.unlink(missing_ok=True)
        self.run_dir.make_reserve()
        self.run_dir.write_status(self._status(JobState.STARTING, None, None))

    def leave(self, code: int) -> int:
        """Requeue the job if a restart may help; returns the exit code of the batch script."""
        status = self.run_dir.read_status()
        if self._resolved is None or self._got is None or status.state == JobState.SUCCEEDED:
            return code
        cause = parse_cause(status.cause) or Cause.UNKNOWN
        if status.state == JobState.STOPPED:
            by_itself = signal.SIGINT in self._signals or cause is Cause.IDLE
            found = None if by_itself else self._why_it_left(self._got)
            if found is None:
                return self._cancelled(self._got.job)
            cause = found
            if cause is not Cause.TIME_LIMIT:  # Slurm itself requeues or ends it
                self._leave_to_slurm(self._resolved, cause)
                return code
        if cause in (Cause.NODE_UNHEALTHY, Cause.NODE_RECLAIMED):
            return self._requeue_elsewhere(self._got, self._resolved, cause, status.message) or code
        if not self._another_start_may_help(cause):
            if status.state == JobState.STOPPED:
                self._enter(JobState.FAILED, cause, CAUSES[cause].words)
            return status.exit_code or code
        return self._requeue(self._got, cause, status.message)

    def _leave_to_slurm(self, resolved: ResolvedRun, cause: Cause) -> None:
        if self.run_dir.read_resolved().run_file.cluster.slurm.allows_requeue:
            self._enter(*back_in_the_queue(cause))
        else:
            self._enter(JobState.FAILED, cause, no_restart_left(cause, resolved.run_file.max_restarts))

    def _cancelled(self, job: str) -> int:
        """Cancel the job in Slurm too, which would otherwise report a success or a failure."""
        with contextlib.suppress(TrainworksError):
            self._end_with("scancel", job)
        return 0

    def _end_with(self, program: Literal["scancel", "scontrol"], *arguments: str, update: Sequence[str] = ()) -> None:
        """Let Slurm end this turn of the job, and wait for its SIGTERM.

        If this script ended first, Slurm would take that for the end of the job. Slurm signals all processes of the
        script: also the program that has just made the request, which would then seem to have failed.

        Args:
            program: makes the request.
            arguments: of the program.
            update: change of the job by `scontrol update` after that; Slurm makes some in waiting jobs alone.

        Raises:
            TrainworksError: Slurm refuses it, or does not answer.
        """
        heard: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # programs that start now inherit it
        try:
            self._client.call_patiently(PATIENCE_S, self._clock, program, *arguments)
            if update:
                self._update_soon(*update)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        deadline = self._clock.now() + _UNTIL_SLURM_ENDS_US_S
        while not heard and self._clock.now() < deadline:
            self._clock.sleep(_LOOK_S)

    def _why_it_left(self, got: Allocation) -> Cause | None:
        """Why Slurm requested the end; None if a user cancelled the job, or the reason is unknown."""
        with contextlib.suppress(TrainworksError):
            said = self._client.call_patiently(_UNTIL_QUEUED_S, self._clock, "squeue", *state_query(got.job))
            if said.strip() != "RUNNING":
                found = cause_of_the_kill(log_of(self.run_dir), got.job, self._started_at)
                return found[0] if found else None
            asked = self.run_dir.read_resolved().run_file.job
            end_s = asked.time_limit - asked.grace - _SIGNAL_COMES_EARLY_S if asked.time_limit else 0.0
            return Cause.TIME_LIMIT if self._clock.now() - self._started_at > end_s else Cause.PREEMPTED
        return None

    def _another_start_may_help(self, cause: Cause) -> bool:
        assert self._resolved is not None
        events = read_events(self.run_dir.events_file)
        return CAUSES[cause].another_start_helps and may_restart(
            events, RestartLimit.of(self._resolved.run_file), NEXT_TURN
        )

    def _requeue_elsewhere(self, got: Allocation, resolved: ResolvedRun, cause: Cause, message: str | None) -> int:
        """Requeue the job without the nodes that failed their check or that go; 0 if Slurm or the user does not let it.

        The job stays FAILED if it got a node again and again that its check refuses.
        """
        excluded = dict.fromkeys(resolved.run_file.job.exclude)
        unfit = unhealthy_nodes(read_events(self.run_dir.events_file))
        repeated = any(unfit.count(node) > _MOST_REFUSALS for node in unfit)
        if repeated or not unfit or not resolved.run_file.cluster.slurm.allows_requeue:
            return 0
        names = ",".join(excluded | dict.fromkeys(unfit))
        self._enter(JobState.QUEUED, cause, f"{message}; the job waits for other nodes")
        try:
            self._end_with("scontrol", "requeue", got.job, update=[f"JobId={got.job}", f"ExcNodeList={names}"])
        except TrainworksError as error:
            self._enter(JobState.FAILED, cause, f"{message}; no other nodes: {error.message}")
            return 0
        return 1

    def _update_soon(self, *arguments: str) -> None:
        """Change a job that is on its way back into the queue.

        Raises:
            TrainworksError: Slurm refuses it for `_UNTIL_QUEUED_S`.
        """
        deadline = self._clock.now() + _UNTIL_QUEUED_S
        while True:
            try:
                self._client.call("scontrol", "update", *arguments)
                return
            except TrainworksError:
                if self._clock.now() > deadline:
                    raise
                self._clock.sleep(0.2)

    def _requeue(self, got: Allocation, cause: Cause, message: str | None) -> int:
        """Requeue the job under the same number; Slurm ends this script."""
        self._enter(JobState.QUEUED, cause, message)
        try:
            self._end_with("scontrol", "requeue", got.job)
        except TrainworksError as error:
            is_lost = isinstance(error, SlurmRefusedError) and error.is_of_unknown_job
            if not is_lost:  # else the next poll submits it again
                why = f"{message}; it could not be put back into the queue: {error.message}"
                self._enter(JobState.FAILED, cause, why)
        return 1

    def _enter(self, state: JobState, cause: Cause, message: str | None, **details: float) -> None:
        self.run_dir.enter(self._status(state, cause, message), **details)

    def _status(self, state: JobState, cause: Cause | None, message: str | None) -> RunStatus:
        """The status of a job in this state; one that waits again keeps the exit code of the turn that has failed."""
        pid, started_at = process.identity()
        last = self.run_dir.read_status()
        return RunStatus(
            state=state,
            cause=cause,
            message=message,
            hint=last.hint if last.cause == cause else None,
            exit_code=1 if state.is_final else last.exit_code if state.waits and last.cause == cause else None,
            supervisor_pid=None if state.waits else pid,
            supervisor_started_at=None if state.waits else started_at,
            supervisor_host=None if state.waits else socket.gethostname(),
            updated_at=self._clock.now(),
        )


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal that comes too early, or a second time; unlike SIG_IGN, child processes do not inherit this."""


def _pass_on(number: int, frame: object) -> None:
    """Pass a signal that the user requested from Slurm on to the user's script."""
    for agent in psutil.Process().children():
        for script in agent.children():
            script.send_signal(_SIGNALS[number])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
