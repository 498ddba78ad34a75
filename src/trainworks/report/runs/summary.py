"""The report: everything that the terminal, the page and the JSON say, put together once from the record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from trainworks.catalog.catalog import accelerator
from trainworks.catalog.prices import known_accelerator
from trainworks.config.run_file import Workload
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.record.environment import HostFacts
from trainworks.record.events import training
from trainworks.record.events.job import StateEvent
from trainworks.record.events.log import read_events
from trainworks.record.exit_code import End
from trainworks.record.history import History, build_history, known_steps
from trainworks.record.ledger import Ledger, build_ledger
from trainworks.record.measured.step_anchor import StepAnchor, read_anchor
from trainworks.record.metric_columns import MetricColumns, Steps, read_columns
from trainworks.record.metrics import warmup_steps
from trainworks.record.processes import Processes
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.report.runs.attempts import Failure, ReportedAttempt, build_attempts, build_failures
from trainworks.report.runs.comparison import Comparison, build_comparison
from trainworks.report.runs.curves import Curves, build_curves
from trainworks.report.runs.evaluation import Evaluations, build_evaluations
from trainworks.report.runs.outcome import OutOfMemory, build_out_of_memory
from trainworks.report.runs.part import ReportPart, printable
from trainworks.report.runs.products import (
    Checkpoints,
    Fault,
    ProfiledRank,
    Sample,
    build_checkpoints,
    build_faults,
    build_profiles,
    build_sample,
)
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_count, format_duration


class LossPoint(ReportPart):
    """The loss of one step; of tokens and images in nats."""

    step: int
    loss: float


class Training(ReportPart):
    """What was trained, and how far it came; of a command, whose model is not known, what its program says."""

    model: str = ""
    num_parameters: int | None = None
    layout: str = ""
    precision: str = ""
    unit: str = ""
    """What throughput counts: tokens, images or samples."""
    data: str = ""
    """Source and sequence length."""
    source: str
    """Where the figures of the steps are from."""
    step_s: float | None = None
    """Median duration of the steady steps."""
    data_tokens: int | None = None
    """Tokens of the data set; None until it is ready."""
    data_seconds: float | None = None
    """What preparing it took."""
    data_cached: bool = False
    num_steps: int | None
    """Planned; of a command as said by its run file or its output, None where neither does."""
    steps_done: int
    tokens: int
    """Trained on by the effective steps."""
    lost_steps: int
    """Steps that were done and then thrown away by a restart or a rollback."""
    ended_by_callback: bool = False
    """Whether a callback ended it before its last planned step."""
    compiled: Compiled | None = None
    """None where blocks are not compiled."""
    compile_choice: str = ""
    """What the plan decided of `compile: auto` and why; empty where the run file decided."""
    overflow: float | None = None
    """Mean share of the copies of tokens that were left out for want of room; None without `expert_capacity`."""
    overflow_most: float | None = None
    """The same of the step that left out most."""
    loss_scale_steps: int = 0
    """Steps that fp16's loss scaling left out, because its scale was too high; no faults."""
    loss_first: LossPoint | None
    loss_last: LossPoint | None
    loss_lowest: LossPoint | None
    """None when no loss is finite."""


class Compiled(ReportPart):
    """What compiling cost and gained, measured before the first step of the last attempt."""

    compile_s: float
    compiled_s: float
    """Time of one forward and backward."""
    eager_s: float
    """The same without compiling."""


class Report(Result, ReportPart):
    """One run. A command has no comparison, and training, ledger and curves if its steps are recorded."""

    format_version: int = 1
    run_id: str
    name: str
    state: str
    cause: str | None
    message: str | None
    hint: str | None
    trainworks: str
    generated_at: float
    """Seconds since the epoch, as are all `_at`."""
    started_at: float
    ended_at: float | None
    """None while the run is going."""
    wall_clock_s: float
    idle_s: float
    """Part of the wall clock in which nothing was running: between a stop and a resume."""
    runtime_goodput: float | None
    command: tuple[str, ...] | None
    processes: Processes
    host: HostFacts
    training: Training | None
    attempts: tuple[ReportedAttempt, ...]
    failures: tuple[Failure, ...]
    out_of_memory: OutOfMemory | None
    """Explained, if that is what ended the run."""
    checkpoints: Checkpoints
    faults: tuple[Fault, ...]
    profiles: tuple[ProfiledRank, ...]
    evaluations: Evaluations | None = None
    """None for a run that has not evaluated."""
    comparison: Comparison | None
    ledger: Ledger | None
    sample: Sample | None
    curves: Curves | None

    @property
    def verdict(self) -> ResultVerdict:
        """What to do about a run that failed, was stopped or still goes, or whether the plan of one that ended held."""
        if self.state in ("FAILED", "LOST"):
            return self._of_failure()
        done = self.training.steps_done if self.training else 0
        of = f" of {self.training.num_steps:,}" if self.training and self.training.num_steps else ""
        reached = f"{done:,}{of} steps after {format_duration(self.wall_clock_s)}" if self.training else ""
        if self.state == "STOPPED":
            action = f"Continue it with `trainworks resume {self.run_id}`"
            return ResultVerdict(
                action, reached or f"stopped after {format_duration(self.wall_clock_s)}", signal="check"
            )
        if self.comparison is not None and self.comparison.findings:
            found = self.comparison.verdict(self.run_id)
            return found if self.ended_at is not None else replace(found, unless=f"so far, {reached}")
        if self.ended_at is None:
            return ResultVerdict("Let it run", reached if done else "no step is recorded yet")
        loss = self.training.loss_last if self.training else None
        text = f", loss {loss.loss:.3f}" if loss else ""
        return ResultVerdict("Use what it left", f"{reached or f'it took {format_duration(self.wall_clock_s)}'}{text}")

    def _of_failure(self) -> ResultVerdict:
        """The remedy of the last root failure, and that failure."""
        roots = [failure for failure in self.failures if failure.is_root]
        if self.state == "LOST":
            figure = "the supervisor is gone without a last word"
        elif roots:
            figure = f"{roots[-1].who} failed after {format_duration(roots[-1].after_s)}, {roots[-1].cause}"
        else:
            figure = f"the run failed, {self.cause or 'no cause was recorded'}"
        remedies = self.out_of_memory.remedies if self.out_of_memory else ()
        remedy = next((each for each in remedies if each.is_enough), None)
        action = f"Mend the cause, then `trainworks resume {self.run_id}`"
        if remedy is not None:
            action = f"Write `{remedy.setting}`"
        return ResultVerdict(action, figure, (self.hint or "").rstrip("."), "stop")


def build_report(
    run_dir: RunDir, now: float, *, state: str | None = None, metrics: MetricColumns | None = None
) -> Report:
    """Read the record of a run in any state and say what it says; one that is still going ends `now`.

    `state` is as seen from outside, where the record cannot know it: `LOST` ends a run with its last sign of life.
    `metrics` are given where they were read already; a million steps take seconds.

    Raises:
        EnvironmentProblem: the resolved run is missing or was written by another format.
    """
    resolved = run_dir.read_resolved()
    status = run_dir.read_status()
    status = status.model_copy(update={"state": state}) if state else status
    events = read_events(run_dir.events_file)
    metrics = read_columns(run_dir.metrics_file) if metrics is None else metrics
    history = build_history(events, metrics, created_at=resolved.created_at, status=status, now=now)
    has_steps = resolved.plan is not None or len(history.effective) > 0  # a command's loop may record them
    ledger = build_ledger(history) if has_steps else None
    standing = _standing(status, history.of_kind(StateEvent))
    script = resolved.run_file.run
    command = (script,) if resolved.command is None and script else resolved.command
    return Report(
        run_id=printable(resolved.run_id),
        name=resolved.run_file.name,
        **standing.model_dump(include={"state", "cause", "message", "hint"}),
        trainworks=resolved.trainworks,
        generated_at=now,
        started_at=history.start_at,
        ended_at=history.end_at if history.launches[-1].ended else None,
        wall_clock_s=history.end_at - history.start_at,
        idle_s=history.idle_s,
        runtime_goodput=ledger.runtime_goodput if ledger else None,
        command=None if command is None else tuple(map(printable, command)),
        processes=resolved.processes,
        host=resolved.host,
        training=_training(resolved, history),
        attempts=build_attempts(history),
        failures=build_failures(history),
        out_of_memory=build_out_of_memory(resolved, events) if standing.state == "FAILED" else None,
        checkpoints=build_checkpoints(history),
        faults=build_faults(history),
        profiles=build_profiles(run_dir, history),
        evaluations=build_evaluations(resolved, history),
        comparison=_comparison(
            resolved,
            history,
            ledger,
            energy_j=energy_of(run_dir, resolved.processes),
            anchor=read_anchor(run_dir.anchor_file),
        ),
        ledger=ledger,
        sample=build_sample(history),
        curves=build_curves(metrics, events) if has_steps else None,
    )


def _standing(status: RunStatus, states: Sequence[StateEvent]) -> RunStatus:
    """Where the run stands; the last `state` event stands in for a status file that is missing."""
    if not status.updated_at and states:
        status = RunStatus.of(End.of_event(states[-1]), updated_at=0.0)
    state, *texts = map(printable, (status.state, status.cause, status.message, status.hint))
    cause, message, hint = (text or None for text in texts)
    return RunStatus(state=state, cause=cause, message=message, hint=hint)


def _training(resolved: ResolvedRun, history: History) -> Training | None:
    plan, workload = resolved.plan, resolved.run_file.as_planned.workload
    trained = history.effective.where(history.effective.num_steps > 0)
    if plan is None or workload is None:
        return _reached(resolved, history, trained) if not resolved.is_workload and len(trained) else None
    overflow = trained["overflow"][np.isfinite(trained["overflow"])]
    ready = next(iter(reversed(history.of_kind(training.DataReadyEvent))), None)
    return _reached(resolved, history, trained).model_copy(
        update={
            "model": _describe_model(plan, workload),
            "num_parameters": plan.model.num_parameters,
            "layout": f"{plan.layout.describe()}, accumulation {plan.layout.grad_accum_steps}",
            "precision": workload.precision,
            "unit": workload.unit,
            "data": _describe_data(workload),
            "data_tokens": ready.get("num_tokens") if ready else None,
            "data_seconds": ready.get("seconds") if ready else None,
            "data_cached": bool(ready and ready.get("cached")),
            "ended_by_callback": any(event.get("asked") for event in history.of_kind(training.FinishedEvent)[-1:]),
            "compiled": _compiled(history),
            "compile_choice": plan.compile_choice.describe() if plan.compile_choice else "",
            "overflow": float(np.mean(overflow)) if len(overflow) else None,
            "overflow_most": float(np.max(overflow)) if len(overflow) else None,
            "loss_scale_steps": int(trained.is_skipped("loss_scale").sum()),
        }
    )


def _reached(resolved: ResolvedRun, history: History, steps: Steps) -> Training:
    """What the record says of the steps, of a workload and of a command."""
    trained = steps.trained()
    finite = trained.where(np.isfinite(trained["loss"]))
    steady = steps.training_s[warmup_steps(len(steps)) :]
    steady = steady[steady > 0]  # the first step that a command says has no time
    sources = history.of_kind(training.MetricsSourceEvent)
    known, done = known_steps(resolved, history.events), int(steps["step"][-1]) if len(steps) else 0
    return Training(
        source=printable(sources[-1]["source"]) if sources else "record of the ranks",
        step_s=float(np.median(steady)) if len(steady) else None,
        num_steps=known if known is None or known >= done else None,  # a counter of one epoch
        steps_done=done,
        tokens=int(np.nansum((steps["tokens"] * steps.num_steps)[~steps.is_skipped()])),
        lost_steps=int(history.lost.num_steps.sum()),
        loss_first=_loss_point(trained, 0),
        loss_last=_loss_point(trained, -1),
        loss_lowest=_loss_point(finite, int(finite["loss"].argmin())) if len(finite) else None,
    )


def _compiled(history: History) -> Compiled | None:
    events = history.of_kind(training.CompiledEvent)
    if not events:
        return None
    return Compiled(**{name: float(events[-1][name]) for name in ("compile_s", "compiled_s", "eager_s")})


def _describe_model(plan: Plan, workload: Workload) -> str:
    shape = plan.model
    family = workload.model.title + (f" with {workload.adapter.title}" if workload.adapter else "")
    if not shape.is_described:
        return printable(f"{family}, {format_count(shape.num_parameters)} parameters")
    sizes = f"{shape.layers} layers, hidden {shape.hidden}, {format_count(shape.num_parameters)} parameters"
    return printable(f"{family}, {sizes}")


def _describe_data(workload: Workload) -> str:
    data = workload.data
    if workload.task == "module":
        return "as its file reads it"
    size = f"{data.image_size} pixels" if data.image_size else f"{data.sequence_length} tokens per sequence"
    return printable(f"{data.title}, {size}" if data.source else size)


def _loss_point(steps: Steps, index: int) -> LossPoint | None:
    if not len(steps):
        return None
    return LossPoint(step=int(steps["step"][index]), loss=float(steps["loss"][index]))


def energy_of(run_dir: RunDir, processes: Processes) -> float | None:
    """Energy in J of the accelerators of all nodes so far, those that the run has left included.

    None where one of the nodes does not report it.
    """
    known = sum(1 for _ in run_dir.usage_file(0).parent.glob("node-*.json"))
    usages = [run_dir.read_usage(node) for node in range(max(processes.nodes, known))]
    found = [usage.energy_j for usage in usages if usage is not None and usage.energy_j is not None]
    return math.fsum(found) if len(found) == len(usages) else None


def _comparison(
    resolved: ResolvedRun,
    history: History,
    ledger: Ledger | None,
    *,
    energy_j: float | None,
    anchor: StepAnchor | None,
) -> Comparison | None:
    workload = resolved.run_file.as_planned.workload
    if resolved.plan is None or ledger is None:
        return None
    names = filter(None, (known_accelerator(each.name) for each in resolved.host.accelerators))
    node_mttf = usual_node_mttf(next(map(accelerator, names), None), resolved.run_file.recover.node_mttf)
    return build_comparison(
        resolved.plan,
        history,
        ledger,
        unit=workload.unit if workload else "tokens",
        forecast=resolved.forecast,
        anchor=anchor,
        power_w=resolved.power_limit_w,
        energy_j=energy_j,
        hour_price=resolved.hour_price,
        failures_per_s=resolved.processes.nodes / node_mttf.value,
    )
