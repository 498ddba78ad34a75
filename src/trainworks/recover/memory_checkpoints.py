"""Checkpoints in the shared memory of a node: they outlive ranks and agents, and end with the run or the machine."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainworks.errors import TrainworksError
from trainworks.files import take_lock, write_atomic
from trainworks.record.events import Event
from trainworks.record.run_dir import RunDir

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 # the file system in memory that Linux gives everyone
_OWNER_FILE = "run"
"""Holds the path of the run directory."""


def memory_folder(run_dir: RunDir, root: Path = SHARED_MEMORY) -> Path:
    """Folder of a run's checkpoints in memory; it need not exist."""
    name = hashlib.sha256(str(run_dir.path.resolve()).encode()).hexdigest()[:16]
    return _of_user(root) / name


def place_of_node(node: int, events: Sequence[Event]) -> int:
    """Number among all nodes of the job of the node that has this number among those in use."""
    places = next((event["places"] for event in reversed(events) if event["kind"] == "resized"), None)
    return node if places is None else int(places[node])


def make_memory_folder(run_dir: RunDir, place: int, root: Path = SHARED_MEMORY) -> Path | None:
    """Make the part of that folder that belongs to one node, for this user alone.

    Args:
        run_dir: of the run.
        place: number of the node among all nodes of the job; several nodes may stand on one machine.
        root: shared memory of this machine.

    Returns:
        The folder; None without shared memory, or if another user made one on the way to it.
    """
    folder = memory_folder(run_dir, root)
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


def forget_memory(run_dir: RunDir, root: Path = SHARED_MEMORY) -> None:
    """Free the memory of a run that has ended, and of all others whose supervisor is gone."""
    shutil.rmtree(memory_folder(run_dir, root), ignore_errors=True)
    forget_ended(root)


def forget_ended(root: Path = SHARED_MEMORY) -> None:
    """Free the memory of every run whose supervisor is gone: a node of a cluster may have kept that of a failed one."""
    with suppress(OSError):
        for folder in _of_user(root).iterdir():
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


def _of_user(root: Path) -> Path:
    return root / f"trainworks-{os.geteuid()}"
