"""Inject faults through signals, files and devices, from outside of a run; nothing in the worker knows of them."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.failing_store import FailingStore
from trainworks.measure.drill.victims import Victim

Undo = Callable[[], None]
CUT_FOR_S = 3.0
SLOW_FOR_S = 12.0
_COMPLETES_S = 0.5
"""Time between the last file of a checkpoint and its manifest, on a slow disk."""
_HITS = {
    DrillFault.KILL_SUPERVISOR: (Victim.SUPERVISOR, signal.SIGKILL),
    DrillFault.KILL_AGENT: (Victim.AGENT, signal.SIGKILL),
    DrillFault.STOP_RANK: (Victim.RANK, signal.SIGSTOP),
    DrillFault.KILL_RANK: (Victim.RANK, signal.SIGKILL),
}
"""Process that a fault hits, and by which signal."""
_CHUNK = b"\0" * (1 << 16)


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that was injected."""

    at: float
    """Seconds since the epoch."""
    undo: Undo | None = None
    """Takes a fault back that lasts."""


def inject(
    fault: DrillFault,
    run: DrilledRun,
    rng: random.Random,
    *,
    network: str,
    disk: Path | None,
    store: FailingStore | None,
) -> Injected:
    """Inject a fault into a run; `rng` chooses the victim.

    `network` is the namespace of the run; empty if it has none. `disk` is the mount point of the small file system that
    the run writes to, and `store` the proxy through which it reaches the store of its copies.

    Raises:
        UsageError: the cluster does not let this user do it.
        EnvironmentProblem: the run cannot be reached.
    """
    if fault.damages_checkpoint:
        return Injected(_damage_and_kill(fault, run, rng))
    if fault in _HITS:
        kind, number = _HITS[fault]
        index = 0 if kind is Victim.SUPERVISOR else rng.choice(run.nodes if kind is Victim.AGENT else run.ranks)
        return Injected(run.place.hit(run.run_dir, kind, index, number))
    if fault is DrillFault.PREEMPT:
        return Injected(run.place.preempt(run.run_dir))
    # the others last until they are taken back, or until the run has ended
    at, undo = run.clock.now(), None
    match fault:
        case DrillFault.SLOW_RANK:
            undo = run.place.slow(run.run_dir, rng.choice(run.ranks), SLOW_FOR_S)
        case DrillFault.LOSE_NODE:
            undo = run.place.lose_node(run.run_dir, rng.choice(run.nodes))
        case DrillFault.CUT_NETWORK:
            _ip("-n", network, "link", "set", "lo", "down")
            undo = partial(_ip, "-n", network, "link", "set", "lo", "up")
        case DrillFault.FULL_DISK:
            assert disk is not None
            undo = _fill(disk)
        case _:
            assert store is not None
            store.fail()
    return Injected(at, undo)


def lasts_s(fault: DrillFault) -> float:
    """How long a fault stays before it is taken back; 0 until the run has ended from it."""
    return {DrillFault.SLOW_RANK: SLOW_FOR_S, DrillFault.CUT_NETWORK: CUT_FOR_S}.get(fault, 0.0)


def _damage_and_kill(fault: DrillFault, run: DrilledRun, rng: random.Random) -> float:
    """Damage the newest checkpoint while a stopped rank keeps the run from saving a newer one, then kill that rank."""
    rank = rng.choice(run.ranks)
    run.place.hit(run.run_dir, Victim.RANK, rank, signal.SIGSTOP)
    files = [path for path in _last_checkpoint(run).rglob("*") if path.is_file() and path.name != "manifest.json"]
    shard = max(files, key=lambda path: path.stat().st_size)
    # in place: size and time of a flipped bit's file stay, as on a failing disk
    size = shard.stat().st_size
    if fault is DrillFault.DELETE_SHARD:
        shard.unlink()
    elif fault is DrillFault.TRUNCATE_SHARD:
        with shard.open("r+b") as file:
            file.truncate(size // 2)
    else:
        with shard.open("r+b") as file:
            file.seek(position := rng.randrange(size))
            flipped = file.read(1)[0] ^ (1 << rng.randrange(8))
            file.seek(position)
            file.write(bytes([flipped]))
    return run.place.hit(run.run_dir, Victim.RANK, rank, signal.SIGKILL)


def _last_checkpoint(run: DrilledRun) -> Path:
    """The newest checkpoint of a run with a stopped rank: the others may yet complete one that has all its files."""
    newest = run.checkpoint()
    run.clock.sleep(_COMPLETES_S)
    while (later := run.checkpoint()) != newest:
        newest = later
        run.clock.sleep(_COMPLETES_S)
    return newest


def _ip(*arguments: str) -> None:
    done = process.run(["ip", *arguments], timeout_s=30.0)
    if done.exit_code:
        raise EnvironmentProblem(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def _fill(disk: Path) -> Undo:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(_CHUNK):
            pass
    return filler.unlink


class Namespace:
    """A network namespace with a loopback device of its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.prefix = ("ip", "netns", "exec", name)

    def __enter__(self) -> Namespace:
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_: object) -> None:
        process.run(["ip", "netns", "delete", self.name])


class SmallDisk:
    """A file system in memory of a few megabytes, at a mount point that is made."""

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True, exist_ok=True)
        done = process.run(["mount", "-t", "tmpfs", "-o", f"size={self._size_bytes}", "tmpfs", str(self.folder)])
        if done.exit_code:
            raise EnvironmentProblem(f"cannot mount a small disk: {done.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        process.run(["umount", "-l", str(self.folder)])
        self.folder.rmdir()
