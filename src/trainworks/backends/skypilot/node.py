"""`python -m trainworks.backends.skypilot.node`: what every rented node of a workload runs.

The first node brings the run from its store, its record and its newest checkpoint, runs the supervisor, and sends the
record back; the others run an agent server. SkyPilot reads the exit code: 0 means that the job has succeeded, 75 that
it needs other nodes, any other that it has failed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import final

from trainworks.agent.allocation import Allocation, signs_of_life
from trainworks.agent.command_nodes import nodes_of
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.remote_agent import TOKEN_FILE, AgentServer, RemoteHosts, dismiss
from trainworks.agent.supervisor import Supervisor
from trainworks.agent.turn import ClusterTurn
from trainworks.backends.skypilot.rented import RentedNode, held_seconds, most_seconds, rented_node
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.copies.bringing import bring_newest, places
from trainworks.host.copies.record_copy import RecordCopy
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.exit_code import End, ExitCode
from trainworks.record.resolved import ResolvedRun
from trainworks.record.status import RunStatus

_DISMISS_S = 30.0
_TERMINATED = 128 + signal.SIGTERM
_NOT_FINAL = (0, ExitCode.PEER_LOST)
"""Exit codes with another meaning than "failed"."""


@final
class RentedTurn(ClusterTurn):
    """One allocation of a job: the nodes that SkyPilot has rented, until it has to rent others."""

    engine = "SkyPilot"
    exit_code_if_held = ExitCode.PEER_LOST
    observers_leave_s = 3600.0
    """The nodes take what is not copied along; a store that is down is given up after a minute."""

    def __init__(self, node: RentedNode, clock: Clock | None = None) -> None:
        super().__init__(node.run_dir, clock or SystemClock())
        self._node = node
        self._got: Allocation | None = None
        self._spent: str | None = None
        """Sentence on the budget that has ended the turn; None before."""
        self._open = contextlib.ExitStack()

    @property
    def _is_spot(self) -> bool:
        return self.run_dir.read_resolved().run_file.cluster.skypilot.use_spot

    @property
    def is_limited(self) -> bool:
        """Whether restarts count: the loss of spot nodes, which a cloud takes back at any time, costs none."""
        return not self._is_spot

    def run(self) -> int:
        """Run the job to its end or to its next allocation; returns the exit code of the node."""
        for folder in (self.run_dir.logs, self.run_dir.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        code = self.take()
        self._open.close()
        others = self._got.addresses[1:] if self._got is not None else ()
        dismiss(others, self._node.token, self.clock, patience_s=0.0 if code else _DISMISS_S)
        return code

    def last_end(self, last: RunStatus) -> End | None:
        """SkyPilot starts the job again on new nodes after it has lost some, even at the end of the job."""
        submitted = of_kind(read_events(self.run_dir.events_file), SubmittedEvent)
        if not any(event.get("job") == self._node.job for event in submitted):
            return None
        state = parse_state(last.state)
        if state.waits or last.cause == Cause.IDLE or (state.is_final and state is not JobState.STOPPED):
            return last.end
        cause = Cause.PREEMPTED if state is JobState.STOPPED else Cause.NODE_LOST
        return self.back_in_the_queue(cause, signs_of_life(self.run_dir))

    def supervisor(self, lock: int) -> Supervisor:
        """Build the supervisor for all nodes."""
        self._node.secrets.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(self._node.secrets / TOKEN_FILE, self._node.token, mode=0o600)
        self._got = got = self._node.wait_for_all(self.clock)
        resolved = self.begin(got, folder=Path.cwd())
        self._limit_cost(resolved)
        hosts = RemoteHosts(got, self._node.secrets)
        nodes = nodes_of(self.run_dir, resolved, (lock,), hosts)
        self._open.enter_context(LogEcho(self.run_dir, 0))
        return Supervisor(self.run_dir, resolved, nodes, self.clock, hosts)

    def _limit_cost(self, resolved: ResolvedRun) -> None:
        """End the turn when the budget of the run is spent.

        Raises:
            EnvironmentProblem: earlier turns have spent it.
        """
        most_s = most_seconds(resolved)
        if most_s is None:
            return
        budget = resolved.run_file.goal.budget
        assert budget is not None, "only a budget limits the time"
        spent = f"the budget of {budget.text} is spent"
        left_s = most_s - held_seconds(read_events(self.run_dir.events_file))
        if left_s <= 0:
            raise EnvironmentProblem(spent, hint=f"trainworks resume {self.run_dir.run_id} --set goal.budget=...")

        def end() -> None:
            self._spent = spent
            os.kill(os.getpid(), signal.SIGTERM)

        limit = threading.Timer(left_s, end)
        limit.daemon = True
        limit.start()
        self._open.callback(limit.cancel)

    def next_end(self, end: End) -> End | None:
        """No further turn after the budget is spent."""
        return None if self._spent is not None else super().next_end(end)

    def taken(self) -> End | None:
        """A cloud that takes spot nodes back ends their programs first, as a stop does: both send SIGTERM."""
        if self._spent is not None:
            return End(JobState.FAILED, Cause.TIME_LIMIT, self._spent, exit_code=ExitCode.USER_ERROR)
        return self.back_in_the_queue(Cause.PREEMPTED) if signal.SIGTERM in self.heard and self._is_spot else None

    def requeue(self, end: End) -> int:
        """Let SkyPilot rent other nodes."""
        return ExitCode.PEER_LOST

    def finish(self, end: End) -> int:
        """Let the exit code of this node say the end."""
        state = parse_state(end.state)
        if state is JobState.SUCCEEDED:
            return 0
        if state.waits:
            return ExitCode.PEER_LOST
        if state is JobState.STOPPED:
            return _TERMINATED if self.heard else 0
        code = end.exit_code or 0
        return code if code not in _NOT_FINAL else int(ExitCode.USER_ERROR)


def bring(node: RentedNode, record: RecordCopy) -> None:
    """Bring the run to a node that may be new: its record, as far as it was sent, and its newest checkpoint.

    Raises:
        EnvironmentProblem: the store has no record of the run, refuses, or does not answer.
        UsageError: the run directory is of another run.
    """
    run_dir = node.run_dir
    run_dir.path.mkdir(parents=True, exist_ok=True)
    # a volume outlives the nodes, and has a later state than the store
    if not record.fetch(run_dir, without=("status.json",) if run_dir.status_file.exists() else ()):
        hint = f"retry the run, which sends it there: trainworks retry {run_dir.run_id}"
        raise EnvironmentProblem(f"`{record.address}` has no record of the run", hint=hint)
    bring_newest(run_dir, places(run_dir))


def first_node(node: RentedNode) -> int:
    """Bring the run, supervise it, and send its record back; returns the exit code of the node.

    Raises: as `bring`.
    """
    record = RecordCopy.of(node.store, node.run_dir.run_id)
    bring(node, record)
    code = RentedTurn(node).run()
    try:
        record.send(node.run_dir)
    except TrainworksError as problem:
        sys.stderr.write(f"the end of the record is not in the store: {problem.render()}\n")
    return code


def main() -> int:
    """Supervise the job on the first node; serve the supervisor on all others."""
    process.adopt_orphans()
    try:
        node = rented_node(os.environ)
        if node.index == 0:
            return first_node(node)
        address = node.addresses[node.index]
        return AgentServer(
            node.run_dir, node=node.index, name=socket.gethostname(), address=address, token=node.token
        ).run()
    except TrainworksError as error:
        sys.stderr.write(error.render() + "\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
