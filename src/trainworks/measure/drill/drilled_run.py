"""A run that a drill starts as a user does, and its processes: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, final

import psutil

from trainworks.agent.enter import newest_pids
from trainworks.agent.launch import run_mark
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.jobs.state import JobState, parse_state
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drill_report import UsageSample
from trainworks.measure.drill.victims import Victim, agents_of, hit, slow_down, supervisor_of, victim_of
from trainworks.record.events.log import Event, read_events_from, read_lines_from
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir


class DrillPlace(Protocol):
    """How a drill reaches a run, and what it can do to it there."""

    is_here: bool
    """Whether all processes of the run are on this machine, so that the drill can end and measure them itself."""

    def why_not(self, fault: DrillFault) -> str | None:
        """Why the fault cannot be injected there; None if it can."""

    def hit(self, run_dir: RunDir, kind: Victim, index: int, number: int) -> float:
        """Send a signal to a rank, the agent of a node, or the supervisor; returns the time.

        Raises:
            EnvironmentProblem: it cannot be reached.
        """

    def slow(self, run_dir: RunDir, rank: int, seconds: float) -> Callable[[], None]:
        """Start to give a rank half of its time; the returned function waits for the end."""

    def preempt(self, run_dir: RunDir) -> float:
        """Take the nodes of the run, as another job would; returns the time."""

    def lose_node(self, run_dir: RunDir, node: int) -> Callable[[], None]:
        """Lose a node of the run; the returned function gives it back."""

    def end(self, run_dir: RunDir) -> None:
        """End the run at once, if it has not ended."""


@final
class OnThisMachine:
    """Every node is a node agent on this machine."""

    is_here = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def why_not(self, fault: DrillFault) -> str | None:
        """Faults that need root, and the loss of the only machine."""
        if fault is DrillFault.LOSE_NODE:
            return "this machine is the only one: see kill-agent, which takes the ranks of its node along"
        if fault is DrillFault.FULL_DISK and os.geteuid() != 0:
            return "needs root, to mount a small file system"
        if fault is DrillFault.CUT_NETWORK and os.geteuid() != 0:
            return "needs root, for a network namespace"
        if fault is DrillFault.CUT_NETWORK and shutil.which("ip") is None:
            return "needs the program `ip` (package iproute2)"
        return None

    def hit(self, run_dir: RunDir, kind: Victim, index: int, number: int) -> float:
        """A signal from here."""
        return hit(victim_of(run_dir, kind, index), number, self._clock)

    def slow(self, run_dir: RunDir, rank: int, seconds: float) -> Callable[[], None]:
        """A thread stops and continues the rank."""
        pid = victim_of(run_dir, Victim.RANK, rank)
        thread = threading.Thread(target=slow_down, args=(pid, seconds, self._clock), daemon=True)
        thread.start()
        return thread.join

    def preempt(self, run_dir: RunDir) -> float:
        """SIGTERM to the supervisor."""
        return hit(supervisor_of(run_dir), signal.SIGTERM, self._clock)

    def lose_node(self, run_dir: RunDir, node: int) -> Callable[[], None]:
        """Refused by `why_not`."""
        raise NotImplementedError

    def end(self, run_dir: RunDir) -> None:
        """The drill kills what is left of the run."""


_LOOK_S = 0.02
Row = TypeVar("Row")


class DrilledRun:
    """One run in the folder `runs`, from its start to the end of a drill. The arguments `prefix` in front of its
    command start it in a namespace.
    """

    def __init__(
        self, run_file: Path, *, name: str, runs: Path, clock: Clock, place: DrillPlace, prefix: Sequence[str] = ()
    ) -> None:
        self._run_file = run_file
        self._name = name
        self._runs = runs
        self.clock = clock
        self.place = place
        self._prefix = prefix
        self._command: process.Child | None = None
        self.run_dir: RunDir = RunDir(runs / f"{name}-1")
        self.resumed_at: list[float] = []
        """Times at which the drill resumed the run."""
        self._events = _Lines(read_events_from)
        self._rows = _Lines(read_lines_from)

    def start(self) -> None:
        """Start the run, and return at once."""
        self._launch("run", str(self._run_file), "--name", self._name)

    def resume(self) -> None:
        """Resume the run, as its user or its queue would."""
        self.resumed_at.append(self.clock.now())
        self._launch("resume", self.run_dir.run_id)

    def _launch(self, *arguments: str) -> None:
        command = [*self._prefix, *process.python_module("trainworks", *arguments, "--runs", str(self._runs))]
        env = os.environ | {"TRAINWORKS_DATA": str(self._runs / ".data")}  # its queue and its memory are its own
        self._command = process.spawn(command, log=self._runs / f"{self._name}.log", env=env, new_session=True)

    @property
    def has_ended(self) -> bool:
        """True once the command that started or resumed the run has ended."""
        return self._command is None or self._command.exit_code() is not None

    @property
    def state(self) -> JobState:
        """The last state that the run wrote; LOST if its supervisor here could not write its end."""
        if not self.run_dir.status_file.exists():
            return JobState.CREATED
        status = self.run_dir.read_status()
        pid, started_at = status.supervisor_pid, status.supervisor_started_at
        state = parse_state(status.state)
        if not self.place.is_here:
            return state
        is_gone = pid is not None and started_at is not None and not process.is_running(pid, started_at)
        return JobState.LOST if is_gone and not state.is_final else state

    def events(self) -> list[Event]:
        """Its record so far."""
        return self._events.read(self.run_dir.events_file)

    def rows(self) -> list[dict[str, Any]]:
        """Its steps so far, those that were repeated too."""
        return self._rows.read(self.run_dir.metrics_file)

    def last_step(self) -> int:
        """Last step of its newest attempt that it has written down; 0 before the first."""
        rows = self.rows()
        return int(rows[-1]["step"]) if rows else 0

    def wait(self, until: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition; False if the run ended before, or the time is over."""
        deadline = self.clock.now() + timeout_s
        while not until():
            if self.has_ended or self.clock.now() > deadline:
                return until()
            self.clock.sleep(_LOOK_S)
        return True

    @property
    def nodes(self) -> list[int]:
        """Numbers of the nodes of the newest attempt."""
        return list(range(len(self.ranks) // self.run_dir.read_resolved().processes.processes_per_node))

    @property
    def ranks(self) -> list[int]:
        """Numbers of the ranks of the newest attempt."""
        return list(range(len(newest_pids(self.run_dir))))

    def checkpoint(self) -> Path:
        """Folder of its newest complete checkpoint."""
        found = complete_checkpoints(self.run_dir)
        if not found:
            raise EnvironmentProblem(f"run {self.run_dir.run_id} has no complete checkpoint yet")
        return max(found, key=lambda each: each[0].step)[1]

    def usage(self) -> UsageSample:
        """Open files and memory of its supervisor and its agents, and all its processes."""
        files = resident = 0
        for pid in [supervisor_of(self.run_dir), *agents_of(self.run_dir).values()]:
            with contextlib.suppress(psutil.Error):
                one = psutil.Process(pid)
                files, resident = files + one.num_fds(), resident + one.memory_info().rss
        processes = len(process.processes_with(run_mark(self.run_dir)))
        return UsageSample(self.clock.now(), processes, files, resident)

    def end(self) -> None:
        """End the job and all processes that are left of the run here."""
        self.place.end(self.run_dir)
        for one in process.processes_with(run_mark(self.run_dir)):
            process.kill(one.pid)
        if self._command is not None and self._command.exit_code() is None:
            self._command.signal_group(signal.SIGKILL)
            self._command.wait(5.0)


class _Lines(Generic[Row]):
    """A JSON-lines file that grows: each look reads the new lines alone."""

    def __init__(self, read_from: Callable[[Path, int], tuple[list[Row], int]]) -> None:
        self._read_from = read_from
        self._found: list[Row] = []
        self._read_bytes = 0

    def read(self, path: Path) -> list[Row]:
        """All its lines so far."""
        new, self._read_bytes = self._read_from(path, self._read_bytes)
        self._found += new
        return self._found
