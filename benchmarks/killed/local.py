"""The queue of this machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.killed.queue import Queue, killed
from trainworks.host import process
from trainworks.record.run_dir import RunDir


class LocalQueue(Queue):
    """The queue of this machine; without a dispatcher nothing starts, so a user looks after each of its kills."""

    patience_s, pause_s, most_kills_of_a_job = 600.0, (0.02, 0.3), 6  # the wait before a restart doubles with each
    throttle = "%4"
    shares: ClassVar = {"rank": 1, "agent": 1, "supervisor": 1, "dispatcher": 1}

    def keys(self, number: int) -> dict[str, Any]:
        """A quarter of a core."""
        return {"resources": {"cpus": 0.25}}

    def kill_one(self) -> None:
        """Kill a dispatcher or a process of a job."""
        role = self._draw()
        if role == "dispatcher":
            self._kill_dispatcher()
            return
        holding = self._live(holding=True)
        for job in self._chance.sample(holding, min(1, len(holding))):
            for pid in _pids(role, RunDir(Path(job.run_dir))):
                if killed(pid):
                    self._charge(role, {job.run_dir})

    def mend(self, *, all_of_it: bool = False) -> None:
        """Nothing: it mends itself."""


@contextmanager
def local_queue(folder: Path, chance: random.Random) -> Iterator[LocalQueue]:
    """The queue of this machine, with a ledger of its own."""
    ledger = str(folder / "ledger")
    queue = LocalQueue(folder, chance, {"TRAINWORKS_LEDGER": ledger})
    try:
        yield queue
    finally:
        queue.end_looks()
        while left := process.processes_with({"TRAINWORKS_LEDGER": ledger}):  # one may have started another
            for one in left:
                killed(one.pid)


def _pids(role: str, run_dir: RunDir) -> list[int]:
    """One process of that role of a job, if there is one."""
    mark = {"TRAINWORKS_RUN_DIR": str(run_dir.path)}
    if role == "rank":
        return [one.pid for one in process.processes_with(mark | {"RANK": "0"})][:1]
    status = run_dir.read_status()
    supervisor = status.supervisor_pid
    if supervisor is None or not process.is_running(supervisor, status.supervisor_started_at or 0.0):
        return []  # another process may have its number
    try:
        agents = [one.pid for one in psutil.Process(supervisor).children()]
    except psutil.NoSuchProcess:
        return []
    return [supervisor] if role == "supervisor" else agents[-1:]
