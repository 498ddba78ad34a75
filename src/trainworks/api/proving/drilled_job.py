"""The job of a drilled run on a cluster, and how a drill hits it through the backend."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import final

from trainworks.backends.backend import Backend
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.victims import Victim
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import of_kind, read_events
from trainworks.record.run_dir import RunDir

_HIT_S = 60.0
_NOT_THERE = {
    DrillFault.CUT_NETWORK: "needs the network of the nodes, which is not the job's",
    DrillFault.FULL_DISK: "needs the file system of the run, which is not the job's",
    DrillFault.FAIL_STORE: "needs a proxy that the nodes reach; it listens on this machine alone",
}


@final
class DrilledJob:
    """A run on the nodes of a cluster that share its directory with this machine.

    Its processes are hit by a command that enters the job, beside the ranks.
    """

    is_here = False

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock

    def why_not(self, fault: DrillFault) -> str | None:
        """What needs more than the job has; the backend refuses what this user may not do."""
        return _NOT_THERE.get(fault)

    def hit(self, run_dir: RunDir, kind: Victim, index: int, number: int) -> float:
        """Send a signal on the node itself; returns the time of its clock."""
        done = process.run(self._command(run_dir, kind, index, int(number), 0.0), timeout_s=_HIT_S)
        with suppress(ValueError):
            return float(done.stdout)
        problem = done.stderr.strip() or f"exit code {done.exit_code}"
        raise EnvironmentProblem(f"cannot reach the {kind} of run {run_dir.run_id}: {problem}")

    def slow(self, run_dir: RunDir, rank: int, seconds: float) -> Callable[[], None]:
        """Start a command on the node that stops and continues the rank."""
        command = self._command(run_dir, Victim.RANK, rank, 0, seconds)
        log = run_dir.path.parent / "slow-rank.log"
        child = process.spawn(command, log=log)

        def wait() -> None:
            if child.wait(seconds + _HIT_S) != 0:
                raise EnvironmentProblem(f"cannot slow rank {rank} of run {run_dir.run_id} down", hint=f"read {log}")

        return wait

    def _command(self, run_dir: RunDir, kind: Victim, index: int, number: int, slow_s: float) -> list[str]:
        per_node = run_dir.read_resolved().processes.processes_per_node
        node = {Victim.RANK: index // per_node, Victim.AGENT: index, Victim.SUPERVISOR: 0}[kind]
        words = ["-m", "trainworks.measure.drill.victims", str(run_dir.path), kind]
        words += [str(index), str(number), str(slow_s)]
        return self._backend.enter(run_dir, self._handle(run_dir), words, node=node)

    def preempt(self, run_dir: RunDir) -> float:
        """Take the nodes of the job."""
        now = self._clock.now()
        self._backend.preempt(self._handle(run_dir))
        return now

    def lose_node(self, run_dir: RunDir, node: int) -> Callable[[], None]:
        """Declare a node down."""
        name = str(of_kind(read_events(run_dir.events_file), SubmittedEvent)[-1]["hosts"][node])
        self._backend.set_down(name, f"drill of {run_dir.run_id}")

        def give_back() -> None:
            with suppress(UsageError):  # a cluster may have taken it back by itself
                self._backend.undrain(name)

        return give_back

    def end(self, run_dir: RunDir) -> None:
        """Cancel the job, if it has not ended."""
        if run_dir.path.exists() and (handle := self._backend.find(run_dir)) is not None:
            self._backend.stop(handle, at_once=True)

    def _handle(self, run_dir: RunDir) -> str:
        if (handle := self._backend.find(run_dir)) is None:
            raise EnvironmentProblem(f"{self._backend.name} has no job of run {run_dir.run_id}")
        return handle
