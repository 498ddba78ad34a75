"""One run of a drill: inject its faults one after the other, and bring the run back where its user or queue would."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from trainworks.errors import UsageError
from trainworks.jobs.state import JobState
from trainworks.measure.drill.drill_fault import DrillFault
from trainworks.measure.drill.drill_report import UsageSample
from trainworks.measure.drill.drilled_run import DrilledRun
from trainworks.measure.drill.failing_store import FailingStore
from trainworks.measure.drill.injection import Undo, inject, lasts_s
from trainworks.measure.drill.outcome import FaultOutcome, Injection, outcome
from trainworks.record.events.log import of_kind
from trainworks.record.events.training import AttemptEvent, CheckpointEvent

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
