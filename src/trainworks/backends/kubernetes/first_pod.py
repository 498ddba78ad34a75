"""The first pod of a job: its supervisor, for one turn of the job.

A turn ends by an exit code that the manifest's failure policy reads (`render`): 0 and the job has succeeded, 75 and new
pods may help, 143 and Kubernetes asked for it, anything else and the job has failed. Why, it says in its last message.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn, final

from trainworks.agent.allocation import (
    back_in_the_queue,
    no_restart_left,
    plan,
    planner_of,
    processes_on,
    signs_of_life,
)
from trainworks.agent.node_agents import CommandNodes, Nodes, TrainingNodes
from trainworks.agent.supervisor import Supervisor, supervise
from trainworks.backends.kubernetes.echo import Echo
from trainworks.backends.kubernetes.hosts import Met, PodHosts, dismiss, meet
from trainworks.backends.kubernetes.pod import LAST_WORDS, RESOLVED, Pod, leave_words
from trainworks.files import take_lock, write_atomic
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.probe import probe_host
from trainworks.jobs.state import CAUSES, Cause, JobState, parse_cause
from trainworks.record.events import append_event, read_events
from trainworks.record.exit_code import ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import NEXT_TURN, may_restart

__all__ = ["FirstPod"]

_LOCK_WAIT_S = 60.0
"""For a pod of the turn before, on a node that nobody reaches any more."""
_FAREWELL_S = 30.0
_OTHER_LEAVES_S = 30.0
_LOOK_S = 0.2
_TERMINATED = 128 + signal.SIGTERM
_NOT_FINAL = (0, ExitCode.PEER_LOST, 128 + signal.SIGKILL, _TERMINATED)
"""Exit codes that say something else than "failed"."""


@final
class FirstPod:
    """One turn.

    Args:
        pod: this one.
        run_dir: of the run, where the volume is mounted.
        secrets: where the job's Secret is mounted.
        clock: waits for the other pods.
        last_words: file whose content Kubernetes keeps with the end of the pod.
    """

    def __init__(
        self,
        pod: Pod,
        run_dir: RunDir,
        secrets: Path,
        clock: Clock | None = None,
        last_words: Path = LAST_WORDS,
    ) -> None:
        self._pod = pod
        self._run_dir = run_dir
        self._secrets = secrets
        self._clock = clock or SystemClock()
        self._last_words = last_words
        self._met: Met | None = None
        self._resolved: ResolvedRun | None = None
        self._nodes: Nodes | None = None
        self._open = contextlib.ExitStack()
        self._heard: set[int] = set()

    def run(self) -> int:
        """Run the job to its end, or to its next turn; returns the exit code of the pod."""
        signal.signal(signal.SIGTERM, _leave_before_the_start)
        self._make_run_dir()
        if (lock := self._lock()) is None:
            sys.stderr.write("a pod of the turn before still holds the run\n")
            return ExitCode.PEER_LOST
        if not self._note_the_last_turn():
            return self._verdict(int(ExitCode.ENVIRONMENT))
        code = supervise(self._run_dir, self._supervisor, lock=lock, heard=self._hear)
        code = self._verdict(code)
        self._open.close()
        if self._heard and code != 0:
            self._let_the_other_leave_first()
        elif self._met is not None:
            dismiss(self._pod, self._met, self._clock, patience_s=0.0 if code else _FAREWELL_S)
        return code

    def _make_run_dir(self) -> None:
        """On the volume, unless an earlier turn has made it."""
        for folder in (self._run_dir.logs, self._run_dir.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if not self._run_dir.resolved_file.exists():
            write_atomic(self._run_dir.resolved_file, (self._secrets / RESOLVED).read_bytes())

    def _lock(self) -> int | None:
        deadline = self._clock.now() + _LOCK_WAIT_S
        while (lock := take_lock(self._run_dir.lock_file)) is None and self._clock.now() < deadline:
            self._clock.sleep(_LOOK_S)
        return lock

    def _let_the_other_leave_first(self) -> None:
        """How a pod ends that was preempted decides whether this turn counts; Kubernetes ends this one after it."""
        deadline = self._clock.now() + _OTHER_LEAVES_S
        while signal.SIGTERM not in self._heard and self._clock.now() < deadline:
            self._clock.sleep(_LOOK_S)

    def _hear(self, number: int) -> None:
        """A signal has come; SIGHUP is another pod's, which has to leave its node."""
        if not self._heard:
            append_event(self._run_dir.events_file, "stop_requested", reason="Kubernetes asked for an end")
        self._heard.add(number)

    def _supervisor(self, lock: int) -> Supervisor:
        """The supervisor of the pods that Kubernetes started."""
        self._met = meet(self._pod, self._clock)
        resolved = self._resolve_run()
        self._run_dir.write_resolved(resolved)
        self._begin_turn(self._met, resolved.processes.processes_per_node)
        self._resolved = resolved
        kind = TrainingNodes if resolved.is_workload else CommandNodes
        self._nodes = nodes = kind(self._run_dir, resolved, (lock,), PodHosts(self._met, self._secrets))
        self._open.enter_context(Echo(self._run_dir, self._pod.index))
        return Supervisor(self._run_dir, resolved, nodes, self._clock)

    def _resolve_run(self) -> ResolvedRun:
        """The run on these pods: what stands in its directory, and what only they can say."""
        resolved = self._run_dir.read_resolved()
        if resolved.run_file.workload is not None and resolved.plan is None:
            plan(planner_of(self._run_dir))
            resolved = self._run_dir.read_resolved()
        processes = processes_on(
            resolved,
            backend="Kubernetes",
            num_nodes=self._pod.num_nodes,
            cores_per_node=self._pod.cores,
            accelerators_per_node=self._pod.accelerators,
        )
        folder = resolved.working_folder if Path(resolved.working_folder).is_dir() else str(Path.cwd())
        changes: dict[str, Any] = {"processes": processes, "working_folder": folder}
        if resolved.plan is None:
            changes["host"] = probe_host(self._run_dir.path)
        return resolved.model_copy(update=changes)

    def _turns(self) -> int:
        """Turns of this submission so far."""
        launches = [event for event in read_events(self._run_dir.events_file) if event["kind"] == "submitted"]
        return sum(event.get("job") == self._pod.job for event in launches)

    def _note_the_last_turn(self) -> bool:
        """Write down how the turn before ended, if it could not; False if the job has no restart left."""
        if self._turns() == 0:
            return True
        last = self._run_dir.read_status()
        if last.state not in (JobState.QUEUED, JobState.PREEMPTED):
            left = last.state == JobState.STOPPED
            ended_at = signs_of_life(self._run_dir)
            self._enter(*back_in_the_queue(Cause.PREEMPTED if left else Cause.NODE_LOST), ended_at=ended_at)
        most = self._run_dir.read_resolved().run_file.max_restarts
        if may_restart(read_events(self._run_dir.events_file), most, NEXT_TURN):
            return True
        cause = parse_cause(self._run_dir.read_status().cause) or Cause.NODE_LOST
        self._enter(JobState.FAILED, cause, no_restart_left(cause, most))
        return False

    def _begin_turn(self, met: Met, processes_per_node: int) -> None:
        """Forget how an earlier turn was stopped, and say that this one begins."""
        events, turns = self._run_dir.events_file, self._turns()
        self._run_dir.stop_file.unlink(missing_ok=True)
        self._run_dir.make_reserve()
        size = {"nodes": len(met.nodes), "processes_per_node": processes_per_node, "hosts": list(met.nodes)}
        append_event(events, "submitted", **size, job=self._pod.job, restarts=turns)

    def _verdict(self, code: int) -> int:
        """The exit code of this pod, with the reason beside it."""
        status = self._run_dir.read_status()
        self._say(status)
        if status.state == JobState.SUCCEEDED:
            return 0
        if status.state == JobState.STOPPED:
            if self._heard and self._nodes is not None and ExitCode.PEER_LOST in self._nodes.exit_codes():
                self._enter(*back_in_the_queue(Cause.NODE_LOST))  # Kubernetes ends the other pods for that one
            return _TERMINATED if self._heard else 0
        cause = parse_cause(status.cause) or Cause.UNKNOWN
        if self._another_turn_may_help(cause):
            self._enter(JobState.QUEUED, cause, status.message)
            return ExitCode.PEER_LOST
        final = status.exit_code or code
        return final if final not in _NOT_FINAL else int(ExitCode.USER_ERROR)

    def _another_turn_may_help(self, cause: Cause) -> bool:
        if self._resolved is None:
            return False
        events = read_events(self._run_dir.events_file)
        return CAUSES[cause].another_start_helps and may_restart(
            events, self._resolved.run_file.max_restarts, NEXT_TURN
        )

    def _say(self, status: RunStatus) -> None:
        """The end of this turn."""
        failure = first_failure(read_events(self._run_dir.events_file)) if status.cause else None
        leave_words(
            status.state,
            message=status.message,
            cause=status.cause,
            exit_code=status.exit_code,
            rank=failure.get("rank") if failure else None,
            node=failure.get("node") if failure else None,
            path=self._last_words,
        )

    def _enter(self, state: JobState, cause: Cause, message: str | None, **words: float) -> None:
        status = RunStatus(state=state, cause=cause, message=message, updated_at=self._clock.now())
        self._run_dir.write_status(status)
        append_event(self._run_dir.events_file, "state", state=state, cause=cause, message=message, **words)


def _leave_before_the_start(number: int, frame: object) -> NoReturn:
    """Nothing runs yet; process 1 of a container would not even hear a signal that nobody handles."""
    process.end_descendants(0)
    os._exit(_TERMINATED)
