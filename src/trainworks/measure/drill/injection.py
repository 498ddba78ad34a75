"""Inject faults through signals, files and devices, from outside of a run; nothing in the worker knows of them."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.failing_store import FailingStore

Undo = Callable[[], None]
CUT_FOR_S = 3.0
SLOW_FOR_S = 12.0
_SLOW_PERIOD_S = 0.02
_SIGNALS = {DrillFault.PREEMPT: signal.SIGTERM, DrillFault.STOP_RANK: signal.SIGSTOP}
_CHUNK = b"\0" * (1 << 16)


def inject(
    fault: DrillFault,
    run: DrilledRun,
    rng: random.Random,
    *,
    network: str,
    disk: Path | None,
    store: FailingStore | None,
) -> Undo | None:
    """Inject a fault.

    Args:
        fault: to inject.
        run: that it hits.
        rng: chooses the victim.
        network: name of the namespace of the run; empty if it has none.
        disk: mount point of the small file system that the run writes to.
        store: the proxy through which the run reaches the store of its copies.

    Returns:
        Takes the fault back, for one that lasts; None for the others.
    """
    if fault.damages_checkpoint:
        _damage(fault, _largest_file(run.checkpoint()), rng)
    match fault:
        case DrillFault.KILL_SUPERVISOR | DrillFault.PREEMPT:
            run.signal_all([run.supervisor()], _SIGNALS.get(fault, signal.SIGKILL))
        case DrillFault.KILL_AGENT:
            run.signal_all([rng.choice(run.agents())], signal.SIGKILL)
        case DrillFault.SLOW_RANK:
            return _slow(run, rng.choice(run.ranks()))
        case DrillFault.CUT_NETWORK:
            return _cut(network)
        case DrillFault.FULL_DISK:
            assert disk is not None
            return _fill(disk)
        case DrillFault.FAIL_STORE:
            assert store is not None
            store.fail()
        case _:
            run.signal_all([rng.choice(run.ranks())], _SIGNALS.get(fault, signal.SIGKILL))
    return None


def lasts_s(fault: DrillFault) -> float:
    """How long a fault stays before it is taken back; 0 until the run has ended from it."""
    return {DrillFault.SLOW_RANK: SLOW_FOR_S, DrillFault.CUT_NETWORK: CUT_FOR_S}.get(fault, 0.0)


def _largest_file(folder: Path) -> Path:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return max(files, key=lambda path: path.stat().st_size)


def _damage(fault: DrillFault, shard: Path, rng: random.Random) -> None:
    """Damage a file in place: size and time of a flipped bit's file stay, as on a failing disk."""
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


def _slow(run: DrilledRun, pid: int) -> Undo:
    """Stop and continue a process in turn, so that it has half of its time."""
    done = threading.Event()

    def alternate() -> None:
        while not done.wait(_SLOW_PERIOD_S):
            run.signal_all([pid], signal.SIGSTOP)
            done.wait(_SLOW_PERIOD_S)
            run.signal_all([pid], signal.SIGCONT)

    thread = threading.Thread(target=alternate, daemon=True)
    thread.start()

    def undo() -> None:
        done.set()
        thread.join()
        run.signal_all([pid], signal.SIGCONT)

    return undo


def _cut(network: str) -> Undo:
    _ip("-n", network, "link", "set", "lo", "down")
    return lambda: _ip("-n", network, "link", "set", "lo", "up")


def _ip(*arguments: str) -> None:
    done = process.run(["ip", *arguments], timeout_s=30.0)
    if done.exit_code:
        raise EnvironmentProblem(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")


def _fill(disk: Path) -> Undo:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(_CHUNK):
                pass
        except OSError:
            pass
    return filler.unlink


class Namespace:
    """A network namespace with a loopback device of its own.

    Args:
        name: of the namespace.
    """

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
    """A file system in memory of a few megabytes.

    Args:
        folder: mount point, which is made.
        size_bytes: of the file system.
    """

    def __init__(self, folder: Path, size_bytes: int) -> None:
        self.folder = folder
        self._size_bytes = size_bytes

    def __enter__(self) -> SmallDisk:
        self.folder.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes}"
        done = process.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.folder)])
        if done.exit_code:
            raise EnvironmentProblem(f"cannot mount a small disk: {done.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        process.run(["umount", "-l", str(self.folder)])
        self.folder.rmdir()
