"""Where the processes of a drilled run are: on this machine, or on the nodes of a cluster."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Callable
from typing import Protocol, final

from trainworks.host.clock import Clock
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.victims import Victim, hit, slow_down, supervisor_of, victim_of
from trainworks.record.run_dir import RunDir


class DrillPlace(Protocol):
    """How a drill reaches a run, and what it can do to it there."""

    is_here: bool
    """Whether all processes of the run are on this machine, so that the drill can end and measure them itself."""

    def why_not(self, fault: DrillFault) -> str | None:
        """Why the fault cannot be injected there; None if it can."""

    def hit(self, run_dir: RunDir, kind: Victim, index: int, number: signal.Signals) -> float:
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

    def hit(self, run_dir: RunDir, kind: Victim, index: int, number: signal.Signals) -> float:
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
