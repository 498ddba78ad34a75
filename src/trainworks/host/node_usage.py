"""What one node of a job uses, measured by its agent beside its work, and left in the run directory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.host.accelerator_use import AcceleratorUse
from trainworks.host.process_tree import ProcessTree
from trainworks.record.run_dir import RunDir
from trainworks.record.usage import NodeUsage

__all__ = ["UsageMeter", "follow_usage", "received_bytes"]


class UsageMeter:
    """Adds up what the processes below this one use.

    Args:
        tree: the processes.
        now_s: the time.
        accelerators: share of the time since its last call in which they computed, None where nobody can say; left out
            for a job without any.
    """

    def __init__(
        self, tree: ProcessTree, now_s: Callable[[], float], accelerators: Callable[[], float | None] | None = None
    ) -> None:
        self._tree = tree
        self._now_s = now_s
        self._accelerators = accelerators
        self._last_s = now_s()
        self._accelerator_s = None if accelerators is None else 0.0
        self._disk_waits = 0

    def look(self) -> NodeUsage:
        """All of it so far."""
        use, now_s = self._tree.look(), self._now_s()
        if self._accelerators is not None and self._accelerator_s is not None:
            share = self._accelerators()
            self._accelerator_s += (1.0 if share is None else share) * (now_s - self._last_s)
        self._disk_waits += use.waits_for_disk
        self._last_s = now_s
        return NodeUsage(
            agent_pid=os.getpid(),
            monotonic_s=now_s,
            cpu_s=use.cpu_s,
            io_bytes=use.io_bytes,
            network_bytes=received_bytes(),
            disk_waits=self._disk_waits,
            accelerator_s=self._accelerator_s,
        )


def received_bytes() -> int | None:
    """What this machine has received so far, by all interfaces but loopback, after proc(5)."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()[2:]
    except OSError:
        return None
    interfaces = (line.split(":", 1) for line in lines)
    return sum(int(figures.split()[0]) for name, figures in interfaces if name.strip() != "lo")


def follow_usage(
    run_dir: RunDir, node: int, *, every_s: float, on_accelerators: bool, marks: Mapping[str, str] | None = None
) -> None:
    """Measure from now on, in a thread that ends with this process.

    Args:
        run_dir: of the run.
        node: whose agent this process is.
        every_s: time between two looks.
        on_accelerators: whether the ranks have any.
        marks: see `ProcessTree`.
    """
    tree = ProcessTree(os.getpid(), marks)

    def measure() -> None:
        meter = UsageMeter(tree, time.monotonic, AcceleratorUse().look if on_accelerators else None)
        never = threading.Event()
        while not never.wait(every_s):
            try:
                run_dir.write_usage(node, meter.look())
            except (OSError, TrainworksError):  # a full disk: nobody says then that the job is idle
                continue

    threading.Thread(target=measure, name="usage", daemon=True).start()
