"""One turn of a job on a cluster: it gets nodes, a supervisor runs it there, and a verdict says what follows."""

from __future__ import annotations

import abc
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from trainworks.agent.allocation import Allocation, plan, plan_on, processes_on
from trainworks.agent.observers import LEAVE_WITHIN_S, await_observers
from trainworks.agent.supervisor import SIGNALS, Supervisor, own_status, supervise
from trainworks.files import take_lock
from trainworks.host.clock import Clock
from trainworks.host.probe import command_host
from trainworks.jobs.state import Cause, JobState, parse_cause, parse_state
from trainworks.record.environment import HostFacts
from trainworks.record.events.job import StopRequestedEvent, SubmittedEvent
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, earlier_turns, may_restart

_LOCK_WAIT_S = 60.0
"""A file server may keep the lock of a node that it cannot reach for some time."""
_LOOK_S = 0.2


class ClusterTurn(abc.ABC):
    """One turn of a job; a subclass says what its engine alone knows.

    `signals` maps numbers by which the engine asks for an end to the signal that each of them stands for.
    """

    engine: ClassVar[str]
    exit_code_if_held: ClassVar[int]
    """Exit code if another supervisor does not release the run."""
    observers_leave_s: ClassVar[float] = LEAVE_WITHIN_S
    """Longest wait for what still copies and reports the run, after its end."""
    signals: Mapping[int, int] = SIGNALS

    def __init__(self, run_dir: RunDir, clock: Clock) -> None:
        self.run_dir = run_dir
        self.clock = clock
        self.began_at = clock.now()
        self.heard: list[int] = []
        """Signals of the engine and of the user, in their order."""
        self.resolved: ResolvedRun | None = None
        """The run on its nodes; None before it has them."""
        self._is_next = False

    @abc.abstractmethod
    def last_end(self, last: RunStatus) -> End | None:
        """How the turn before this one ended; None if this one is the first. The job runs on unless that is final."""

    @abc.abstractmethod
    def supervisor(self, lock: int) -> Supervisor:
        """Find the nodes, `begin` there, and build the supervisor, whose agents keep the lock of the run open."""

    @abc.abstractmethod
    def taken(self) -> End | None:
        """How the engine ends the turn that it has asked to stop; None if a user has stopped the job."""

    @abc.abstractmethod
    def requeue(self, end: End) -> int:
        """Give the nodes back and let the job wait for others; returns the exit code of this process."""

    @abc.abstractmethod
    def finish(self, end: End) -> int:
        """Let the engine know an end that it has caused or that is final; returns the exit code of this process."""

    @property
    def is_limited(self) -> bool:
        """Whether `recover.max_restarts` limits the turns that the engine itself gives to the job."""
        return True

    def next_end(self, end: End) -> End | None:
        """How a job that has failed waits for another turn; None if that cannot help, or no restart is left."""
        if end.cause == Cause.TIME_LIMIT and not self.run_dir.read_resolved().is_workload:
            return None  # a workload has saved, and continues; a command would begin anew
        if not ((parse_cause(end.cause) or Cause.UNKNOWN).another_start_helps and self._may_start_again()):
            return None
        return replace(end, state=JobState.QUEUED, at=None)

    def take(self) -> int:
        """Run the job to its end or to its next turn; returns the exit code by which the engine learns which it is."""
        deadline = self.clock.now() + _LOCK_WAIT_S
        while (lock := take_lock(self.run_dir.lock_file)) is None and self.clock.now() < deadline:
            self.clock.sleep(_LOOK_S)
        if lock is None:
            sys.stderr.write("another supervisor still holds the run\n")
            return self.exit_code_if_held
        last = self.run_dir.read_status()
        if (before := self.last_end(last)) is not None:
            if parse_state(before.state).is_final:
                return self.finish(before)
            if not parse_state(last.state).waits:  # that turn could not record its end
                self.enter(before)
            if self.is_limited and not self._may_start_again():
                return self.finish(self.enter(self.no_restart_left(parse_cause(before.cause) or Cause.UNKNOWN)))
        return self._supervised(lock, is_next=before is not None)

    def _supervised(self, lock: int, *, is_next: bool) -> int:
        """Run the job under the lock of the run; `is_next` says whether it is not the first turn."""
        self._is_next = is_next
        code = supervise(self.run_dir, self.supervisor, lock=lock, heard=self._hear, signals=self.signals)
        if code != ExitCode.SUPERSEDED:
            code = self.conclude(self.run_dir.read_status().end)
            await_observers(self.clock, self.observers_leave_s)
        return code

    def begin(
        self,
        got: Allocation,
        on_first_node: Callable[[list[str]], list[str]] = lambda command: command,
        folder: Path | None = None,
        host: HostFacts | None = None,
    ) -> ResolvedRun:
        """Record that the job has its nodes, and resolve the run for them; a workload is planned there first.

        `on_first_node` gives the command that runs another one there; the job runs in `folder`, if it is another;
        `host` is the first node, if that is not this machine.
        """
        self.run_dir.stop_file.unlink(missing_ok=True)  # of an earlier turn
        self.run_dir.make_reserve()
        self.run_dir.write_status(own_status(End(JobState.STARTING), self.clock.now()))
        resolved = self.run_dir.read_resolved()
        if resolved.run_file.workload is not None and resolved.plan is None:
            resolved = plan(self.run_dir, on_first_node)
        changes: dict[str, Any] = {
            "processes": processes_on(resolved, got, self.engine),
            "plan": plan_on(resolved, got),
        }
        if not resolved.is_workload:
            here = command_host(self.run_dir.path, has_environment=resolved.environment is not None)
            changes["host"] = host or here
        if folder is not None:
            changes["working_folder"] = str(folder)
        self.resolved = resolved = resolved.model_copy(update=changes)
        self.run_dir.write_resolved(resolved)
        event = SubmittedEvent(
            kind="submitted",
            nodes=len(got.nodes),
            processes_per_node=resolved.processes.processes_per_node,
            hosts=list(got.nodes),
            job=got.job,
            restarts=max(1, earlier_turns(read_events(self.run_dir.events_file))) if self._is_next else 0,
        )
        self.run_dir.note(event if got.turn is None else event | {"turn": got.turn, "started_at": self.began_at})
        return resolved

    def conclude(self, end: End) -> int:
        """The verdict on a turn that has ended: the job waits for another, or that was its end."""
        state, recorded = parse_state(end.state), self.run_dir.read_status().end
        if self.resolved is not None and state is not JobState.SUCCEEDED:
            by_itself = signal.SIGINT in self.heard or end.cause == Cause.IDLE
            if state is JobState.STOPPED and not by_itself:
                end = self.taken() or end
            if parse_state(end.state) in (JobState.FAILED, JobState.LOST) and (then := self.next_end(end)) is not None:
                return self.requeue(self.enter(then))
        return self.finish(end if end == recorded else self.enter(end))

    def back_in_the_queue(self, cause: Cause, at: float | None = None) -> End:
        """End of a turn whose nodes the engine takes, and whose job it queues again."""
        state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
        return End(state, cause, cause.words, at=at)

    def no_restart_left(self, cause: Cause) -> End:
        """End of a job that lost its nodes and has no restart left."""
        most = self.run_dir.read_resolved().run_file.max_restarts
        message = f"{cause.words}, and no restart is left of `recover.max_restarts: {most}`"
        return End(JobState.FAILED, cause, message)

    def enter(self, end: End) -> End:
        """Record an end, with the hint and the exit code of the last one if both have the same cause; returns it."""
        entered = end.after(self.run_dir.read_status().end)
        if parse_state(end.state).is_final:
            entered = replace(entered, exit_code=entered.exit_code or 1)
        self.run_dir.enter(RunStatus.of(entered, updated_at=self.clock.now()), ended_at=end.at)
        return entered

    def _may_start_again(self) -> bool:
        limit = RestartLimit.of(self.run_dir.read_resolved().run_file)
        return may_restart(read_events(self.run_dir.events_file), limit, NEXT_TURN)

    def _hear(self, number: int) -> None:
        if number != signal.SIGINT and not self.heard:
            self.run_dir.note(StopRequestedEvent(kind="stop_requested", reason=f"{self.engine} requested the end"))
        self.heard.append(number)
