"""`python -m trainworks.backends.kubernetes.node RUN_DIR`: what every pod of a job runs.

The first pod runs the supervisor, for one allocation of the job; the others run an agent server. The failure policy of
the manifest (`render`) reads the exit code of the first pod: 0 means that the job has succeeded, 75 that new pods may
help, 143 that Kubernetes requested the end, any other that the job has failed. The termination message says why.
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
    take_lock_from_before,
)
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.node_agents import CommandNodes, Nodes, TrainingNodes
from trainworks.agent.observers import await_observers
from trainworks.agent.remote_agent import AgentServer, NodeAddresses, RemoteHosts, dismiss
from trainworks.agent.supervisor import Supervisor, supervise
from trainworks.backends.kubernetes.pod import (
    CODE,
    RESOLVED,
    SECRETS,
    TERMINATION_LOG,
    Pod,
    pod_of,
    private_variables,
    wait_for_pods,
    write_termination_message,
)
from trainworks.errors import TrainworksError
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
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, may_restart

_DISMISS_S = 30.0
_OTHER_LEAVES_S = 30.0
_POLL_S = 0.2
_TERMINATED = 128 + signal.SIGTERM
_NOT_FINAL = (0, ExitCode.PEER_LOST, 128 + signal.SIGKILL, _TERMINATED)
"""Exit codes with another meaning than "failed"."""


@final
class FirstPod:
    """Supervises one allocation of a job."""

    def __init__(
        self,
        pod: Pod,
        run_dir: RunDir,
        secrets: Path,
        clock: Clock | None = None,
        termination_log: Path = TERMINATION_LOG,
    ) -> None:
        self._pod = pod
        self._run_dir = run_dir
        self._secrets = secrets
        self._clock = clock or SystemClock()
        self._termination_log = termination_log
        self._pods: NodeAddresses | None = None
        self._resolved: ResolvedRun | None = None
        self._nodes: Nodes | None = None
        self._open = contextlib.ExitStack()
        self._signals: set[int] = set()

    def run(self) -> int:
        """Run the job to its end or to its next allocation; returns the exit code of the pod."""
        signal.signal(signal.SIGTERM, _exit_before_start)
        self._make_run_dir()
        if (lock := take_lock_from_before(self._run_dir, self._clock)) is None:
            sys.stderr.write("a pod of the previous allocation still holds the run\n")
            return ExitCode.PEER_LOST
        self._unpack_code()
        if not self._record_previous_allocation():
            return self._verdict(int(ExitCode.ENVIRONMENT))
        code = supervise(self._run_dir, self._supervisor, lock=lock, heard=self._on_signal)
        if code == ExitCode.SUPERSEDED:
            return code
        code = self._verdict(code)
        await_observers(self._clock)
        self._open.close()
        if self._signals and code != 0:
            self._wait_for_sigterm()
        elif self._pods is not None:
            others = self._pods.addresses[1:]
            dismiss(others, self._pod.token, self._clock, patience_s=0.0 if code else _DISMISS_S)
        return code

    def _make_run_dir(self) -> None:
        """Create the run directory on the volume, unless an earlier allocation has done so."""
        for folder in (self._run_dir.logs, self._run_dir.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if not self._run_dir.resolved_file.exists():
            self._run_dir.write_resolved(ResolvedRun.model_validate_json((self._secrets / RESOLVED).read_bytes()))

    def _unpack_code(self) -> None:
        """Unpack the kept code on the volume; under the lock of the run, so that no other pod does so meanwhile."""
        if (code := self._secrets / CODE).exists():
            from trainworks.record.code_archive import unpack  # noqa: PLC0415 - few runs need tarfile and pathspec

            unpack(code.read_bytes(), self._run_dir.code_folder)

    def _wait_for_sigterm(self) -> None:
        """Let a preempted pod end first: its end decides whether this restart counts. Kubernetes then ends this pod."""
        deadline = self._clock.now() + _OTHER_LEAVES_S
        while signal.SIGTERM not in self._signals and self._clock.now() < deadline:
            self._clock.sleep(_POLL_S)

    def _on_signal(self, number: int) -> None:
        """Record a signal; SIGHUP means that another pod has to leave its node."""
        if not self._signals:
            append_event(self._run_dir.events_file, "stop_requested", reason="Kubernetes requested the end")
        self._signals.add(number)

    def _supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for the pods of this allocation."""
        self._pods = pods = wait_for_pods(self._pod, self._clock)
        resolved = self._resolve_run()
        self._run_dir.write_resolved(resolved)
        self._begin_allocation(pods, resolved.processes.processes_per_node)
        self._resolved = resolved
        kind = TrainingNodes if resolved.is_workload else CommandNodes
        hosts = RemoteHosts(pods, self._secrets)
        self._nodes = nodes = kind(self._run_dir, resolved, (lock,), hosts)
        self._open.enter_context(LogEcho(self._run_dir, self._pod.index))
        return Supervisor(self._run_dir, resolved, nodes, self._clock, hosts)

    def _resolve_run(self) -> ResolvedRun:
        """Complete the resolved run with facts of these pods; a workload is planned on them first."""
        resolved = self._run_dir.read_resolved()
        if resolved.run_file.workload is not None and resolved.plan is None:
            plan(self._run_dir, planner_of(self._run_dir))
            resolved = self._run_dir.read_resolved()
        processes = processes_on(
            resolved,
            backend="Kubernetes",
            num_nodes=self._pod.num_nodes,
            cores_per_node=self._pod.cores,
            accelerators_per_node=self._pod.accelerators,
        )
        folder = self._run_dir.code_folder if resolved.code is not None else Path(resolved.working_folder)
        folder = folder if folder.is_dir() else Path.cwd()
        changes: dict[str, Any] = {"processes": processes, "working_folder": str(folder)}
        if resolved.plan is None:
            changes["host"] = probe_host(self._run_dir.path)
        return resolved.model_copy(update=changes)

    def _allocations(self) -> int:
        """Number of allocations of this submission so far."""
        launches = [event for event in read_events(self._run_dir.events_file) if event["kind"] == "submitted"]
        return sum(event.get("job") == self._pod.job for event in launches)

    def _record_previous_allocation(self) -> bool:
        """Record how the previous allocation ended, if it could not; False if no restart is left."""
        if self._allocations() == 0:
            return True
        last = self._run_dir.read_status()
        if last.state not in (JobState.QUEUED, JobState.PREEMPTED):
            preempted = last.state == JobState.STOPPED
            ended_at = signs_of_life(self._run_dir)
            self._enter(*back_in_the_queue(Cause.PREEMPTED if preempted else Cause.NODE_LOST), ended_at=ended_at)
        run_file = self._run_dir.read_resolved().run_file
        if may_restart(read_events(self._run_dir.events_file), RestartLimit.of(run_file), NEXT_TURN):
            return True
        cause = parse_cause(self._run_dir.read_status().cause) or Cause.NODE_LOST
        self._enter(JobState.FAILED, cause, no_restart_left(cause, run_file.max_restarts))
        return False

    def _begin_allocation(self, pods: NodeAddresses, processes_per_node: int) -> None:
        """Clear the stop request of an earlier allocation, and record the start of this one."""
        events, restarts = self._run_dir.events_file, self._allocations()
        self._run_dir.stop_file.unlink(missing_ok=True)
        self._run_dir.make_reserve()
        size = {"nodes": len(pods.names), "processes_per_node": processes_per_node, "hosts": list(pods.names)}
        append_event(events, "submitted", **size, job=self._pod.job, restarts=restarts)

    def _verdict(self, code: int) -> int:
        """Write the termination message, and return the exit code of this pod."""
        status = self._run_dir.read_status()
        self._write_message(status)
        if status.state == JobState.SUCCEEDED:
            return 0
        if status.state == JobState.STOPPED:
            if self._signals and self._nodes is not None and ExitCode.PEER_LOST in self._nodes.exit_codes():
                self._enter(*back_in_the_queue(Cause.NODE_LOST))  # Kubernetes ends all other pods after one is lost
            return _TERMINATED if self._signals else 0
        cause = parse_cause(status.cause) or Cause.UNKNOWN
        if self._restart_may_help(cause):
            self._enter(JobState.QUEUED, cause, status.message)
            return ExitCode.PEER_LOST
        final = status.exit_code or code
        return final if final not in _NOT_FINAL else int(ExitCode.USER_ERROR)

    def _restart_may_help(self, cause: Cause) -> bool:
        if self._resolved is None:
            return False
        events = read_events(self._run_dir.events_file)
        return CAUSES[cause].another_start_helps and may_restart(
            events, RestartLimit.of(self._resolved.run_file), NEXT_TURN
        )

    def _write_message(self, status: RunStatus) -> None:
        """Write how this allocation ended."""
        failure = first_failure(read_events(self._run_dir.events_file)) if status.cause else None
        write_termination_message(
            status.state,
            message=status.message,
            cause=status.cause,
            exit_code=status.exit_code,
            rank=failure.get("rank") if failure else None,
            node=failure.get("node") if failure else None,
            path=self._termination_log,
        )

    def _enter(self, state: JobState, cause: Cause, message: str | None, **details: float) -> None:
        last = self._run_dir.read_status()
        status = RunStatus(
            state=state,
            cause=cause,
            message=message,
            hint=last.hint if last.cause == cause else None,
            exit_code=last.exit_code if last.cause == cause else None,
            updated_at=self._clock.now(),
        )
        self._run_dir.enter(status, **details)


def _exit_before_start(number: int, frame: object) -> NoReturn:
    """Signal handler before anything runs; as process 1 of a container, the pod would ignore an unhandled signal."""
    process.end_descendants(0)
    os._exit(_TERMINATED)


def main(run_folder: str, secrets: str = SECRETS) -> int:
    """Supervise the job in the first pod; serve the supervisor in all others."""
    process.adopt_orphans()
    run_dir, folder = RunDir(Path(run_folder)), Path(secrets)
    try:
        pod = pod_of(os.environ, folder)
        os.environ.update(private_variables(folder))
        if pod.index == 0:
            return FirstPod(pod, run_dir, folder).run()
        return AgentServer(run_dir, node=pod.index, name=pod.node, address=pod.address, token=pod.token).run()
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        write_termination_message(
            JobState.FAILED, message=error.message, cause=Cause.ENVIRONMENT, exit_code=error.exit_code
        )
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
