"""Environments in the cache of a machine: which are in use, and which were not used for long.

A folder of the cache is one environment; `complete.json` in it is written last, and its time of change is the last use.
Two locks stand beside it: that of builders, and that of use, which every process that uses the environment shares until
its end. A pruner needs both for itself.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainworks.files import bytes_in, take_lock
from trainworks.host.folders import cache_folder

COMPLETE = "complete.json"
_BESIDE = (".txt", ".yaml", ".log")
_LOCKS = 2
_held: dict[Path, int] = {}
"""Open locks of the environments that this process uses."""


def lock_of(folder: Path) -> Path:
    """The lock file of an environment's builders."""
    return folder.with_name(f"{folder.name}.lock")


def use_of(folder: Path) -> Path:
    """The lock file of an environment's users."""
    return folder.with_name(f"{folder.name}.use")


def hold(folder: Path) -> bool:
    """Use an environment until the end of this process, and of the program that it becomes; False if it is pruned now.

    Where a file system has no locks, or the cache belongs to another user, nothing is held.
    """
    if folder not in _held:
        try:
            lock = take_lock(use_of(folder), shared=True)
        except OSError:
            return True
        if lock is None:
            return False
        if not (folder / COMPLETE).exists():  # it was pruned a moment before
            os.close(lock)
            return False
        os.set_inheritable(lock, True)
        _held[folder] = lock
    with suppress(OSError):
        os.utime(folder / COMPLETE)
    return True


@dataclass(frozen=True, slots=True)
class CachedEnvironment:
    """An environment of this machine's cache."""

    key: str
    last_used: float
    """Seconds since the epoch."""
    num_bytes: int
    is_in_use: bool = False


def prune(unused_for_s: float, now: float) -> list[CachedEnvironment]:
    """Delete the environments that were not used for so long, the oldest first; one in use is left alone.

    `now` is in seconds since the epoch. Returns those that were deleted, and those in use that would have been.
    """
    root = cache_folder("environments")
    if not root.exists():
        return []
    found = [(_last_used(folder), folder) for folder in root.iterdir() if folder.is_dir()]
    return [_pruned(folder, used) for used, folder in sorted(found) if now - used >= unused_for_s]


def _pruned(folder: Path, last_used: float) -> CachedEnvironment:
    size = bytes_in(folder)
    locks = [lock for file in (lock_of(folder), use_of(folder)) if (lock := take_lock(file)) is not None]
    try:
        if len(locks) < _LOCKS:
            return CachedEnvironment(folder.name, last_used, size, is_in_use=True)
        (folder / COMPLETE).unlink(missing_ok=True)  # first, so that a kill leaves what the next builder removes
        shutil.rmtree(folder, ignore_errors=True)
        for suffix in _BESIDE:
            folder.with_name(folder.name + suffix).unlink(missing_ok=True)
    finally:
        for lock in reversed(locks):
            os.close(lock)
    return CachedEnvironment(folder.name, last_used, size)


def _last_used(folder: Path) -> float:
    complete = folder / COMPLETE
    return (complete if complete.exists() else folder).stat().st_mtime
