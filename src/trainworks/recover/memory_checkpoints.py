"""Checkpoints in the shared memory of a node: they outlive ranks and agents, and end with the run or the machine."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.files import take_lock, write_atomic
from trainworks.record.events.job import ResizedEvent
from trainworks.record.events.log import Event, of_kind
from trainworks.record.run_dir import RunDir

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 # the file system in memory that Linux gives everyone
_OWNER_FILE = "run"
"""Holds the path of the run directory."""


def memory_folder(run_dir: RunDir) -> Path:
    """Folder of a run's checkpoints in memory; it need not exist."""
    name = hashlib.sha256(str(run_dir.path.resolve()).encode()).hexdigest()[:16]
    return _user_folder() / name


def place_of_node(node: int, events: Sequence[Event]) -> int:
    """Number among all nodes of the job of the node that has this number among those in use."""
    places = next((event["places"] for event in reversed(of_kind(events, ResizedEvent))), None)
    return node if places is None else int(places[node])


def make_memory_folder(run_dir: RunDir, place: int) -> Path | None:
    """Make the part of that folder that belongs to one node, for this user alone.

    `place` is the number of the node among all nodes of the job; several may stand on one machine. None without shared
    memory, or if another user made a folder on the way to it.
    """
    folder = memory_folder(run_dir)
    own = folder / f"node-{place}"
    try:
        for each in (folder.parent, folder):
            each.mkdir(mode=0o700, exist_ok=True)
            found = each.lstat()
            if each.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                return None
        own.mkdir(exist_ok=True)
        write_atomic(folder / _OWNER_FILE, str(run_dir.path.resolve()), durable=False)
    except (OSError, TrainworksError):
        return None
    return own


def forget_memory(run_dir: RunDir) -> None:
    """Free the memory of a run that has ended, and of all others whose supervisor is gone."""
    shutil.rmtree(memory_folder(run_dir), ignore_errors=True)
    forget_ended()


def forget_ended() -> None:
    """Free the memory of every run whose supervisor is gone: a node of a cluster may have kept that of a failed one."""
    with suppress(OSError):
        for folder in _user_folder().iterdir():
            if not _is_alive(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(folder: Path) -> bool:
    """Whether a process holds the lock of the run; a folder without a name is just being made."""
    try:
        lock_file = RunDir(Path((folder / _OWNER_FILE).read_text(encoding="utf-8"))).lock_file
    except OSError:
        return True
    if not lock_file.exists():
        return False
    if (lock := take_lock(lock_file)) is None:
        return True
    os.close(lock)
    return False


def _user_folder() -> Path:
    return SHARED_MEMORY / f"trainworks-{os.geteuid()}"


LONGEST_S = 3600.0
_LEAST_STALL_S = 1e-6


def daly_interval_s(*, stall_s: float, mttf_s: float, write_s: float, shortest_s: float) -> float:
    """Training time between two checkpoints that loses least to saving and to failures.

    >>> round(daly_interval_s(stall_s=2.0, mttf_s=3600.0, write_s=0.0, shortest_s=0.0), 1)
    118.7
    """
    stall = max(stall_s, _LEAST_STALL_S)
    daly = mttf_s
    if stall < 2 * mttf_s and math.isfinite(mttf_s):
        ratio = stall / mttf_s
        daly = math.sqrt(2 * stall * mttf_s) * (1 + math.sqrt(ratio / 2) / 3 + ratio / 18) - stall
    return max(min(daly, LONGEST_S), write_s - stall, shortest_s)
