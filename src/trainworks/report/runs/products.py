"""What a run leaves beside its steps: checkpoints, skipped steps, a sample of its text, and profiles."""

from __future__ import annotations

import math
from statistics import median

from trainworks.record.events import training
from trainworks.record.faults import describe_fault
from trainworks.record.history import History
from trainworks.record.manifest import describe_damage
from trainworks.record.profile import ProfileSummary, read_summaries, trace_file
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.part import ReportPart, printable


class ProfiledRank(ReportPart):
    """One rank over one window of steps."""

    summary: ProfileSummary
    trace: str
    """Path of the trace, from the run directory."""


def build_profiles(run_dir: RunDir, history: History) -> tuple[ProfiledRank, ...]:
    """Every window that was recorded, in the order of recording; one whose files are gone is left out."""
    folders = dict.fromkeys(
        run_dir.profile(int(event["first_step"]), int(event["last_step"]))
        for event in history.of_kind(training.ProfileEvent)
    )
    return tuple(
        ProfiledRank(summary=summary, trace=str(trace_file(folder, summary.rank).relative_to(run_dir.path)))
        for folder in folders
        for summary in read_summaries(folder)
    )


class Checkpoints(ReportPart):
    """What saving did and what it cost."""

    steps: tuple[int, ...]
    failed_steps: tuple[int, ...]
    damaged: tuple[str, ...] = ()
    """What was found wrong with each one that was passed over, and where training went on."""
    size_bytes: int | None
    """Size of the last checkpoint."""
    stall_s: float
    """Sum over all of them."""
    write_s: float | None
    """Median time until the manifest was written; training continues meanwhile."""


class Fault(ReportPart):
    """A step that could not be right and was left out."""

    step: int
    attempt: int
    reason: str
    """`nonfinite` or `spike`."""
    loss: float
    """Mean over the ranks."""
    grad_norm: float
    rolled_back_to: int | None
    """Step of the checkpoint that the run went back to; None if the step alone was skipped."""
    text: str
    """The same in words."""


class Sample(ReportPart):
    """Text that the trained model wrote."""

    step: int
    prompt: str
    text: str


def build_checkpoints(history: History) -> Checkpoints:
    """What the events say of the checkpoints."""
    written = history.of_kind(training.CheckpointEvent)
    sizes = [int(event["bytes"]) for event in written if event.get("bytes") is not None]
    write_times = [float(event["write_s"]) for event in written if event.get("write_s") is not None]
    return Checkpoints(
        steps=tuple(int(event["step"]) for event in written),
        failed_steps=tuple(int(event["step"]) for event in history.of_kind(training.CheckpointFailedEvent)),
        damaged=tuple(printable(describe_damage(event)) for event in history.of_kind(training.CheckpointDamagedEvent)),
        size_bytes=sizes[-1] if sizes else None,
        stall_s=math.fsum(float(event.get("stall_s") or 0.0) for event in written),
        write_s=median(write_times) if write_times else None,
    )


def build_faults(history: History) -> tuple[Fault, ...]:
    """Every `skipped` event, in the words of the rollback that answered it if there was one."""
    rollbacks = {(event.get("attempt"), event.get("step")): event for event in history.of_kind(training.RollbackEvent)}
    faults = []
    for skipped in history.of_kind(training.SkippedEvent):
        rollback = rollbacks.get((skipped.get("attempt"), skipped.get("step")))
        fault = Fault(
            step=int(skipped["step"]),
            attempt=int(skipped["attempt"]),
            reason=printable(skipped["reason"]),
            loss=float(skipped["loss"]),
            grad_norm=float(skipped["grad_norm"]),
            rolled_back_to=None if rollback is None else int(rollback["to_step"]),
            text=printable(describe_fault(rollback or skipped)),
        )
        faults.append(fault)
    return tuple(faults)


def build_sample(history: History) -> Sample | None:
    """The text that the model wrote last, those of evaluations left out; None without one."""
    events = [event for event in history.of_kind(training.SampleEvent) if not event.get("evaluation")]
    if not events:
        return None
    last = events[-1]
    return Sample(step=int(last["step"]), prompt=printable(last.get("prompt")), text=printable(last.get("text")))
