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
from typing import NoReturn, final

from trainworks.agent.allocation import Allocation, signs_of_life
from trainworks.agent.command_nodes import nodes_of
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.node_agents import Nodes
from trainworks.agent.remote_agent import AgentServer, RemoteHosts, dismiss
from trainworks.agent.supervisor import Supervisor
from trainworks.agent.turn import ClusterTurn
from trainworks.backends.kubernetes.pod import (
    CODE,
    RESOLVED,
    SECRETS,
    Pod,
    pod_of,
    private_variables,
    wait_for_pods,
    write_termination_message,
)
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.decisions import lost_since_ranks_met
from trainworks.recover.failures import first_failure
from trainworks.recover.restarts import restarts_used
from trainworks.system import LinuxSignal

_DISMISS_S = 30.0
_OTHER_LEAVES_S = 30.0
_POLL_S = 0.2
_TERMINATED = 128 + signal.SIGTERM
_NOT_FINAL = (0, ExitCode.PEER_LOST, 128 + LinuxSignal.SIGKILL, _TERMINATED)
"""Exit codes with another meaning than "failed"."""


@final
class FirstPod(ClusterTurn):
    """One allocation of a job."""

    engine = "Kubernetes"
    exit_code_if_held = ExitCode.PEER_LOST

    def __init__(self, pod: Pod, run_dir: RunDir, secrets: Path, clock: Clock | None = None) -> None:
        super().__init__(run_dir, clock or SystemClock())
        self._pod = pod
        self._secrets = secrets
        self._pods: Allocation | None = None
        self._nodes: Nodes | None = None
        self._open = contextlib.ExitStack()

    def run(self) -> int:
        """Run the job to its end or to its next allocation; returns the exit code of the pod."""
        signal.signal(signal.SIGTERM, _exit_before_start)
        for folder in (self.run_dir.logs, self.run_dir.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if not self.run_dir.resolved_file.exists():  # an earlier allocation creates it on the volume
            self.run_dir.write_resolved(ResolvedRun.model_validate_json((self._secrets / RESOLVED).read_bytes()))
        code = self.take()
        if code == ExitCode.SUPERSEDED:
            return code
        self._open.close()
        if self.heard and code != 0:
            until = self.clock.now() + _OTHER_LEAVES_S  # a preempted pod ends first, which decides what counts
            while signal.SIGTERM not in self.heard and self.clock.now() < until:
                self.clock.sleep(_POLL_S)
        elif self._pods is not None or code == 0:
            pods = self._pods or wait_for_pods(self._pod, self.clock)
            dismiss(pods.addresses[1:], self._pod.token, self.clock, patience_s=0.0 if code else _DISMISS_S)
        return code

    def last_end(self, last: RunStatus) -> End | None:
        """Kubernetes creates all pods anew when one is lost, also after the end of the job."""
        submitted = of_kind(read_events(self.run_dir.events_file), SubmittedEvent)
        if not any(event.get("job") == self._pod.job for event in submitted):
            return None
        if parse_state(last.state).waits or last.state == JobState.SUCCEEDED or last.cause == Cause.IDLE:
            return last.end
        cause = Cause.PREEMPTED if last.state == JobState.STOPPED else Cause.NODE_LOST
        return self.back_in_the_queue(cause, signs_of_life(self.run_dir))

    def supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for all pods."""
        if (code_file := self._secrets / CODE).exists():  # under the lock of the run: no other pod does so meanwhile
            from trainworks.record.code_archive import unpack  # noqa: PLC0415 - few runs need tarfile and pathspec

            unpack(code_file.read_bytes(), self.run_dir.code_folder)
        self._pods = pods = wait_for_pods(self._pod, self.clock)
        resolved = self.run_dir.read_resolved()
        folder = self.run_dir.code_folder if resolved.code is not None else Path(resolved.working_folder)
        resolved = self.begin(pods, folder=folder if folder.is_dir() else Path.cwd())
        hosts = RemoteHosts(pods, self._secrets, self._pod.starts_alone, gets_new_pods=True)
        self._nodes = nodes_of(self.run_dir, resolved, (lock,), hosts)
        self._open.enter_context(LogEcho(self.run_dir, self._pod.index))
        return Supervisor(self.run_dir, resolved, self._nodes, self.clock, hosts)

    def taken(self) -> End | None:
        """Kubernetes ends all other pods after one is lost, whose agent may be about to start again.

        It does not say why else it ends pods; the next turn knows that it was not for good.
        """
        codes = self._nodes.exit_codes() if self._nodes is not None else []
        is_lost = ExitCode.PEER_LOST in codes or lost_since_ranks_met(read_events(self.run_dir.events_file))
        return self.back_in_the_queue(Cause.NODE_LOST) if self.heard and is_lost else None

    def requeue(self, end: End) -> int:
        """Let the JobSet create new pods."""
        self._leave_message(end)
        return ExitCode.PEER_LOST

    def finish(self, end: End) -> int:
        """Let the exit code of this pod say the end."""
        self._leave_message(end)
        if end.state == JobState.SUCCEEDED:
            return 0
        if end.state == JobState.STOPPED or parse_state(end.state).waits:
            return _TERMINATED if self.heard else 0
        code = end.exit_code or 0
        return code if code not in _NOT_FINAL else int(ExitCode.USER_ERROR)

    def _leave_message(self, end: End) -> None:
        events = read_events(self.run_dir.events_file)
        failure = first_failure(events) if end.cause else None
        rank, node = (failure.get("rank"), failure.get("node")) if failure else (None, None)
        write_termination_message(end, rank=rank, node=node, restarts=restarts_used(events))


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
        returns = pod.index in pod.starts_alone
        return AgentServer(
            run_dir, node=pod.index, name=pod.node, address=pod.address, token=pod.token, returns=returns
        ).run()
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        end = End(JobState.FAILED, Cause.ENVIRONMENT, error.message, hint=error.hint, exit_code=error.exit_code)
        write_termination_message(end)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
