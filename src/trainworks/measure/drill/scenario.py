"""One run of a drill: inject its faults from outside of it, by signals, files and devices, and bring the run back."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path

from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host import process
from trainworks.jobs.state import JobState
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drill_report import UsageSample
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.failing_store import FailingStore
from trainworks.measure.drill.outcome import FaultOutcome, Injection, outcome
from trainworks.measure.drill.victims import Victim
from trainworks.record.events.log import of_kind
from trainworks.record.events.training import AttemptEvent, CheckpointEvent
from trainworks.system import LinuxSignal

Undo = Callable[[], None]
CUT_FOR_S = 3.0
SLOW_FOR_S = 12.0
_COMPLETES_S = 0.5
"""Time between the last file of a checkpoint and its manifest, on a slow disk."""
_HITS = {
    DrillFault.KILL_SUPERVISOR: (Victim.SUPERVISOR, LinuxSignal.SIGKILL),
    DrillFault.KILL_AGENT: (Victim.AGENT, LinuxSignal.SIGKILL),
    DrillFault.STOP_RANK: (Victim.RANK, LinuxSignal.SIGSTOP),
    DrillFault.KILL_RANK: (Victim.RANK, LinuxSignal.SIGKILL),
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


_START_S = 300.0
_RECOVER_S = 300.0
_ENDS_S = 3600.0
_CHECKPOINTS = 2
"""Complete checkpoints before a fault, so that a damaged one has one before it."""
_MOST_RESUMES = 5

Say = Callable[[str], None]


@dataclass
class FaultScenario:
    """The faults of one run.

    `rng` chooses victims, and `say` receives a line per fault. `network` is the namespace of the run; empty if it has
    none. It may write to a small file system, `disk`, and reach the store of its copies through the proxy `store`.
    """

    run: DrilledRun
    rng: random.Random
    say: Say
    network: str = ""
    disk: Path | None = None
    store: FailingStore | None = None
    injections: list[Injection] = field(default_factory=list)
    skipped: dict[DrillFault, str] = field(default_factory=dict)

    def play(self, faults: Sequence[DrillFault]) -> None:
        """Inject the faults in their order, each into a run that trains and has checkpoints; then await the end."""
        self.run.start()
        for fault in faults:
            if not self.await_ready():
                self.skipped[fault] = "the run ended before: lengthen `train_for`"
                continue
            self.say(f"step {self.run.last_step()}: {fault}, {fault.what}")
            self.hit(fault)
        self.finish()

    def hit(self, fault: DrillFault) -> None:
        """Inject one fault and wait until the run trains again."""
        run, step, attempt = self.run, self.run.last_step(), self._attempt()
        try:
            done = inject(fault, run, self.rng, network=self.network, disk=self.disk, store=self.store)
        except UsageError as refused:
            self.skipped[fault] = refused.message
            return
        self.injections.append(Injection(fault, done.at, step))
        if (undo := done.undo) is not None and (lasting_s := lasts_s(fault)):
            until = run.clock.now() + lasting_s
            run.wait(lambda: run.clock.now() >= until, lasting_s + 1)
            undo()
            undone_at = run.clock.now()
            self._await_steps(lambda: self._last_row_at() > undone_at, None)
        else:
            self._await_steps(lambda: self._attempt() > attempt, undo)

    def soak(self, faults: Sequence[DrillFault], seconds: float, gaps_s: tuple[float, float]) -> list[UsageSample]:
        """Inject random faults with random pauses until the time is over or the run ends; then await the end.

        `seconds` count from the first attempt of the ranks. `gaps_s` are the shortest and longest pause, from a run
        that is ready to the next fault.

        Returns:
            A sample of its use before each fault.
        """
        run, samples = self.run, list[UsageSample]()
        run.start()
        while self.await_ready():
            until = run.clock.now() + self.rng.uniform(*gaps_s)
            ends = of_kind(run.events(), AttemptEvent)[0]["t"] + seconds
            run.wait(lambda: run.clock.now() > min(until, ends), gaps_s[1] + 1)  # noqa: B023
            if run.has_ended or run.clock.now() > ends:
                break
            samples.append(run.usage())
            fault = self.rng.choice(faults)
            self.say(f"{seconds - ends + run.clock.now():.0f} s, step {run.last_step():,}: {fault}")
            self.hit(fault)
        self.finish()
        return samples

    def finish(self) -> None:
        """Wait for the end of the run."""
        for _ in range(_MOST_RESUMES):
            self.run.wait(lambda: False, _ENDS_S)
            if self.run.state is JobState.SUCCEEDED:
                return
            self.run.resume()

    def outcomes(self, undisturbed: dict[int, float]) -> list[FaultOutcome]:
        """What became of every fault."""
        events, rows = self.run.events(), self.run.rows()
        ends = [*(each.at for each in self.injections[1:]), self.run.clock.now()][: len(self.injections)]
        found = [
            outcome(each, until, events, rows, undisturbed, self.run.resumed_at)
            for each, until in zip(self.injections, ends, strict=True)
        ]
        return found + [FaultOutcome(fault, skipped=why) for fault, why in self.skipped.items()]

    def _last_row_at(self) -> float:
        rows = self.run.rows()
        return float(rows[-1]["t"]) if rows else 0.0

    def _attempt(self) -> int:
        rows = self.run.rows()
        return int(rows[-1]["attempt"]) if rows else 0

    def await_ready(self) -> bool:
        """Wait until the newest attempt has written checkpoints of its own; False if the run ends before."""
        return self.run.wait(self._is_ready, _START_S) and not self.run.has_ended

    def _is_ready(self) -> bool:
        if self.run.state is not JobState.RUNNING:
            return False
        newest = takewhile(lambda event: event["kind"] != "attempt", reversed(self.run.events()))
        return len(of_kind(newest, CheckpointEvent)) >= _CHECKPOINTS

    def _await_steps(self, trains_again: Callable[[], bool], undo: Undo | None) -> None:
        """Wait for a step after the fault, and resume a run that has ended instead."""
        for _ in range(_MOST_RESUMES):
            self.run.wait(trains_again, _RECOVER_S)
            if undo is not None:
                undo()
                undo = None
            if trains_again() or not self.run.has_ended or self.run.state is JobState.SUCCEEDED:
                return
            self.run.resume()
