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
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal, final

import psutil

from trainworks.agent.allocation import unhealthy_nodes
from trainworks.agent.command_nodes import nodes_of
from trainworks.agent.node_agents import Hosts, ThisMachine
from trainworks.agent.supervisor import Supervisor
from trainworks.agent.turn import ClusterTurn
from trainworks.backends.slurm import allocation
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.states import ENDING, FORWARDED, cause_of_the_kill, controller_times
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import record_waits

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
_ENDS = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)
_ELSEWHERE = (Cause.NODE_UNHEALTHY, Cause.NODE_RECLAIMED)
"""Causes after which a job needs other nodes."""
_ENDING = {received: number for received, number in _SIGNALS.items() if number in ENDING}


def main(run_folder: str, *step: str) -> int:
    """Run the job in a run directory to its end, or until it waits in the queue again."""
    process.adopt_orphans()
    for name in _MEMORY_OF_THE_JOB:
        os.environ.pop(name, None)
    for number in (*FORWARDED, *_SIGNALS):
        signal.signal(number, _ignore)
    return BatchScript(RunDir(Path(run_folder)), _step(list(step)), SlurmClient()).run()


def _step(arguments: list[str]) -> allocation.StepCommand:
    options, python = arguments, [sys.executable]
    if "--" in arguments:
        cut = arguments.index("--")
        options, python = arguments[:cut], arguments[cut + 1 :]
    return allocation.StepCommand(tuple(options), tuple(python), is_container="--" in arguments)


@final
class BatchScript(ClusterTurn):
    """One allocation of a job."""

    engine = "Slurm"
    exit_code_if_held = ExitCode.ENVIRONMENT
    signals = _ENDING

    def __init__(self, run_dir: RunDir, step: allocation.StepCommand, client: SlurmClient) -> None:
        super().__init__(run_dir, SystemClock())
        self._step = step
        self._client = client
        self._job = os.environ.get("SLURM_JOB_ID", "")
        self._turn = int(os.environ.get("SLURM_RESTART_COUNT") or 0)

    def run(self) -> int:
        """Supervise the job for one allocation, unless it has ended; returns the exit code of the script."""
        begun = of_kind(read_events(self.run_dir.events_file), SubmittedEvent)[-1:]
        if begun and (begun[0].get("job"), begun[0].get("turn")) == (self._job, self._turn):
            return self._conclude_after_kill(begun[0])
        return self.take()

    def _conclude_after_kill(self, begun: SubmittedEvent) -> int:
        """Slurm ends the processes that the killed supervisor left behind."""
        self.resolved, end = self.run_dir.read_resolved(), self.run_dir.read_status().end
        if parse_state(end.state) not in _ENDS:
            cause, message = Cause.AGENT_LOST, "its supervisor was killed, and all that it had started with it"
            is_second_start = psutil.Process(os.getppid()).create_time() > begun["t"]  # not by the script of the first
            if is_second_start and self._controller_started_at() >= int(begun.get("started_at") or begun["t"]):
                cause, message = Cause.SCHEDULER_LOST, "slurmctld crashed and started the job a second time"
            end = End(JobState.FAILED, cause, message)
        return self.conclude(end)

    @property
    def is_limited(self) -> bool:
        """Not if `--requeue` is an option of the user's own."""
        return "--requeue" not in self.run_dir.read_resolved().run_file.cluster.slurm.options

    def last_end(self, last: RunStatus) -> End | None:
        """Read it from the record, or ask Slurm. A slurmctld that crashed may have forgotten the end of a job."""
        state = parse_state(last.state)
        if state is JobState.SUCCEEDED or (state in _ENDS and not self._turn):
            return last.end  # submitted twice, and another job has run it
        if state in _ENDS and self._is_forgotten(last):
            return last.end
        was_lost = last.cause is not None and record_waits(read_events(self.run_dir.events_file))  # by Slurm itself
        if state is JobState.FAILED or not (self._turn or was_lost):  # a user has requeued it, as `retry` does
            return None
        if state.waits:
            return last.end
        ended = allocation.ending_of_turn(self.run_dir, self._job, self._controller_started_at())
        return self.back_in_the_queue(*ended)

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
            config = self._client.call_patiently(allocation.PATIENCE_S, self.clock, "scontrol", "show", "config")
        except TrainworksError:
            return math.nan
        return controller_times(config)[0]

    def supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for the allocated nodes."""
        got = allocation.allocation(os.environ, self._client, self.clock)
        steps = allocation.StepHosts(got, self._step, self._client, allocation.het_groups(os.environ))
        resolved = self.begin(got, partial(steps.command, 0) if self._step.is_container else list)
        hosts: Hosts = steps
        if resolved.run_file.framework == "slurm":  # the script starts once, here, as sbatch would start it
            resolved = resolved.model_copy(update={"processes": resolved.processes.model_copy(update={"nodes": 1})})
            hosts = steps if self._step.is_container else ThisMachine(1)
            for number in _SIGNALS.keys() - _ENDING.keys():
                signal.signal(number, _pass_on)
        allocation.start_step_watch(self._client, self.clock)
        return Supervisor(self.run_dir, resolved, nodes_of(self.run_dir, resolved, (lock,), hosts), self.clock, steps)

    def taken(self) -> End | None:
        """Slurm itself requeues the job, except at its time limit and after a signal; None if the job was cancelled."""
        cause = self._why_it_left()
        if cause is None:
            return None
        if cause in (Cause.TIME_LIMIT, Cause.KILLED):
            return End(JobState.FAILED, cause, cause.words)
        return self.back_in_the_queue(cause) if self._allows_requeue() else self.no_restart_left(cause)

    def _allows_requeue(self) -> bool:
        return self.run_dir.read_resolved().run_file.cluster.slurm.allows_requeue

    def _why_it_left(self) -> Cause | None:
        """Why the job has to end; None if a user cancelled it, or Slurm does not answer."""
        with contextlib.suppress(TrainworksError):
            query = allocation.state_query(self._job)
            said = self._client.call_patiently(_UNTIL_QUEUED_S, self.clock, "squeue", *query)
            parts = allocation.turn_states(said)
            if {state for state, _, _ in parts} != {"RUNNING"}:
                found = cause_of_the_kill(allocation.log_of(self.run_dir), self._job, self.began_at)
                return found[0] if found else None
            if any(preempted_at.isdecimal() for _, preempted_at, _ in parts):
                return Cause.PREEMPTED
            run_file = self.run_dir.read_resolved().run_file
            asks_itself = any(option.startswith("--signal") for option in run_file.cluster.slurm.options)
            early_s = math.inf if asks_itself else run_file.job.grace + _SIGNAL_COMES_EARLY_S
            ends = [float(ends_at) for _, _, ends_at in parts if ends_at.isdecimal()]
            is_limited = any(end - self.clock.now() <= early_s for end in ends)
            return Cause.TIME_LIMIT if is_limited else Cause.KILLED
        return None

    def finish(self, end: End) -> int:
        """A stopped job is cancelled in Slurm too, which would otherwise report a success or a failure."""
        if end.state == JobState.STOPPED:
            with contextlib.suppress(TrainworksError):
                self._end_with("scancel", self._job)
        return 0 if end.state in (JobState.SUCCEEDED, JobState.STOPPED) else end.exit_code or 1

    def next_end(self, end: End) -> End | None:
        """Also for other nodes after some that failed their check or that go, unless one comes again and again."""
        if end.cause == Cause.AGENT_LOST and self._allows_requeue() and self._lost_its_steps():
            return self.back_in_the_queue(Cause.SCHEDULER_LOST)
        if end.cause not in _ELSEWHERE:
            return super().next_end(end)
        unfit = unhealthy_nodes(read_events(self.run_dir.events_file))
        repeated = any(unfit.count(node) > _MOST_REFUSALS for node in unfit)
        if repeated or not unfit or not self._allows_requeue():
            return None
        return End(JobState.QUEUED, end.cause, f"{end.message}; the job waits for other nodes")

    def _lost_its_steps(self) -> bool:
        """Whether slurmctld has come back in a turn whose ranks never met: it refuses steps before it knows nodes."""
        kinds = [event["kind"] for event in read_events(self.run_dir.events_file)]
        has_met = "attempt" in kinds and kinds[::-1].index("attempt") < kinds[::-1].index("submitted")
        return not has_met and self._controller_started_at() >= int(self.began_at)

    def requeue(self, end: End) -> int:
        """Requeue the job under the same number, without nodes that do not fit; Slurm ends this script."""
        update, failed = [], "it could not be put back into the queue"
        if end.cause in _ELSEWHERE:
            unfit = unhealthy_nodes(read_events(self.run_dir.events_file))
            names = dict.fromkeys([*self.run_dir.read_resolved().run_file.job.exclude, *unfit])
            update, failed = [f"JobId={self._job}", f"ExcNodeList={','.join(names)}"], "no other nodes"
        try:
            self._end_with("scontrol", "requeue", self._job, update=update)
        except TrainworksError as error:
            is_lost = isinstance(error, SlurmRefusedError) and "invalid job id" in error.message.lower()
            if update or not is_lost:  # slurmctld lost it in a crash: the next poll submits it again
                why = f"{end.message}; {failed}: {error.message}"
                self.enter(End(JobState.FAILED, end.cause, why, hint=error.hint))
        return 1

    def _end_with(self, program: Literal["scancel", "scontrol"], *arguments: str, update: Sequence[str] = ()) -> None:
        """Let Slurm end this turn of the job, and wait for its SIGTERM.

        If this script ended first, Slurm would take that for the end of the job. Slurm signals all processes of the
        script: also the program that has just made the request, which would then seem to have failed.

        `update` changes the job after that; Slurm makes some changes in waiting jobs alone.
        """
        heard: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # programs that start now inherit it
        try:
            self._client.call_patiently(allocation.PATIENCE_S, self.clock, program, *arguments)
            if update:
                self._update_soon(*update)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        deadline = self.clock.now() + _UNTIL_SLURM_ENDS_US_S
        while not heard and self.clock.now() < deadline:
            self.clock.sleep(_LOOK_S)

    def _update_soon(self, *arguments: str) -> None:
        """Change a job that is on its way back into the queue."""
        deadline = self.clock.now() + _UNTIL_QUEUED_S
        while True:
            try:
                self._client.call("scontrol", "update", *arguments)
                return
            except TrainworksError:
                if self.clock.now() > deadline:
                    raise
                self.clock.sleep(0.2)


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal that comes too early, or a second time; unlike SIG_IGN, child processes do not inherit this."""


def _pass_on(number: int, frame: object) -> None:
    """Pass a signal that the user requested from Slurm on to the user's script."""
    for agent in psutil.Process().children():
        for script in agent.children():
            script.send_signal(_SIGNALS[number])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
