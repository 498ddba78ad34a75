"""A report in words: one wording for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.record.processes import RoleNodes
from trainworks.report.rendering.plots import Bar, Segment
from trainworks.report.runs.attempts import Failure, ReportedAttempt
from trainworks.report.runs.comparison import Comparison, Difference
from trainworks.report.runs.evaluation import EvaluatedPoint
from trainworks.report.runs.part import MISSING, format_amount, format_percent, format_relative
from trainworks.report.runs.summary import LossPoint, Report, Training
from trainworks.units import format_duration

CATEGORY_MEANINGS = {
    "compute": "forward and backward",
    "communication": "waiting for other ranks",
    "optimizer": "updating the weights",
    "data": "waiting for a batch",
    "checkpoint": "standing still to save",
    "evaluation": "held-out data, without training",
    "callback": "your callbacks after the steps",
    "start": "launch to first step",
    "restart": "failure to next step",
    "lost": "steps thrown away",
    "idle": "stopped, nothing held",
    "other": "logging and gaps",
}


def format_loss(point: LossPoint | None) -> str:
    """A loss with three decimals."""
    return MISSING if point is None else f"{point.loss:.3f}"


def comparison_rows(comparison: Comparison) -> list[tuple[Difference, bool]]:
    """Every compared quantity in reading order; True marks a term of the quantity above it."""
    saves = comparison.checkpoint_size.planned != 0  # a command does it by itself
    return [
        (comparison.step_time, False),
        *((term, True) for term in comparison.step_time_terms),
        (comparison.tokens_per_s, False),
        (comparison.mfu, False),
        (comparison.memory, False),
        (comparison.run_time, False),
        *((each, False) for each in (comparison.energy, comparison.cost) if each.planned or each.measured),
        (comparison.failures, False),
        *((each, False) for each in (comparison.checkpoint_size, comparison.checkpoint_stall) if saves),
    ]


def amount_bar(name: str, parts: Mapping[str, float | None], unit: str) -> Bar:
    """A stacked bar of amounts in a unit, and their sum."""
    segments = [Segment(part, value or 0.0, format_amount(value, unit)) for part, value in parts.items()]
    return Bar(name, format_amount(sum(each.value for each in segments) or None, unit), segments)


def failures_of(report: Report, attempt: ReportedAttempt | None) -> list[Failure]:
    """The failures of one attempt, their root first; of None, those outside any attempt."""
    own = [
        failure
        for failure in report.failures
        if (attempt is None and failure.attempt is None)
        or (attempt is not None and (failure.launch, failure.attempt) == (attempt.launch, attempt.number))
    ]
    return sorted(own, key=lambda failure: not failure.is_root)


def failure_place(failure: Failure) -> str:
    """Where and how: rank, node, exit code or signal, time since the first launch."""
    named = (
        ("rank", failure.rank),
        ("node", failure.node),
        ("exit code", failure.exit_code),
        ("signal", failure.signal),
    )
    known = [f"{name} {value}" for name, value in named if value is not None]
    return ", ".join([*known, f"after {format_duration(failure.after_s)}"])


def key_figures(report: Report) -> list[tuple[str, str, str]]:
    """Label, value and remark of the numbers that come first."""
    going = "still going" if report.ended_at is None else ""
    idle = f"{format_duration(report.idle_s)} of it idle" if report.idle_s > 0 else going
    figures = [("wall clock", format_duration(report.wall_clock_s), idle)]
    if report.ledger:
        figures.append(("runtime goodput", format_percent(report.runtime_goodput), "productive / held time"))
    if report.comparison:
        compared = report.comparison
        found = compared.anchor.anchored if compared.anchor else None
        anchored = f", anchored {format_duration(found.step_s)}" if found else ""
        figures += [
            ("step time", format_amount(compared.step_time.measured, "s"), _planned(compared.step_time) + anchored),
            (
                compared.tokens_per_s.name,
                format_amount(compared.tokens_per_s.measured, "per_s"),
                _planned(compared.tokens_per_s),
            ),
            ("MFU", format_amount(compared.mfu.measured, "ratio"), _planned(compared.mfu)),
            ("memory peak", format_amount(compared.memory.measured, "bytes"), _planned(compared.memory)),
        ]
    if report.training:
        done = report.training
        if done.compiled:
            gain = done.compiled
            change = format_relative(gain.compiled_s / gain.eager_s - 1)
            times = f"{format_duration(gain.compiled_s)} forward and backward, {format_duration(gain.eager_s)} without"
            planned = f"; planned {done.compile_choice}" if done.compile_choice else ""
            figures.append(("compile", change, f"{times}; {format_duration(gain.compile_s)} to compile{planned}"))
        elif done.compile_choice:
            figures.append(("compile", "auto", done.compile_choice))
        if done.overflow is not None:
            most = (
                f"of the copies of tokens found no room at their experts; {format_percent(done.overflow_most)} at most"
            )
            figures.append(("expert overflow", format_percent(done.overflow), most))
        figures = [
            ("loss", format_loss(done.loss_last), _loss_remark(done)),
            ("steps", f"{done.steps_done:,}", f"of {done.num_steps:,}" if done.num_steps else ""),
            *([("ended", "early", "a callback asked for it")] if done.ended_by_callback else []),
            *figures,
            *([] if report.comparison else [("step time", format_amount(done.step_s, "s"), f"from {done.source}")]),
        ]
    return figures


_BRIEF = ("ended", "loss", "step time", "memory peak")
"""Key figures at the end of a run, beside its throughput."""


def brief_figures(report: Report) -> list[tuple[str, str, str]]:
    """Label, value and remark of the numbers at the end of a run: those of steps, of memory and of restarts."""
    throughput = report.comparison.tokens_per_s.name if report.comparison else None
    shown = (*_BRIEF, throughput)
    figures = [figure for figure in key_figures(report) if figure[0] in shown and figure[1] != MISSING]
    if (held_out := report.evaluations) is not None:
        best = held_out.best
        name, last = held_out.metric, format_metric(held_out.metric, held_out.last)
        remark = f"best {format_metric(name, best)} after step {best.step:,}" if best else "no finite value"
        figures.insert(1, (f"held-out {held_out.decided_by or name}", last, remark))
    if restarts := len(report.attempts) - len({attempt.launch for attempt in report.attempts}):
        roots = [failure for failure in report.failures if failure.is_root][:restarts]
        why = ", ".join(dict.fromkeys(f"{failure.who} {failure.cause}" for failure in roots[-2:]))
        figures.append(("restarts", f"{restarts:,}", f"at last {why}" if restarts > 2 else why))
    return figures


def format_metric(metric: str, point: EvaluatedPoint) -> str:
    """The held-out loss with three decimals, or the accuracy in percent."""
    if point.accuracy is not None and (metric == "accuracy" or point.loss is None):
        return f"{point.accuracy:.2%}"
    return MISSING if point.loss is None else f"{point.loss:.3f}"


def attempt_text(attempt: ReportedAttempt, *, has_steps: bool) -> str:
    """What one attempt did; of a command, which records no steps, when it began.

    >>> attempt_text(ReportedAttempt(number=2, launch=1, after_s=9.0, world_size=2, resumed_from_step=50,
    ...     first_step=51, last_step=90, lost_steps=10), has_steps=True)
    'resumed from step 50, steps 51 to 90, 10 of them lost'
    """
    if not has_steps:
        return "started" if attempt.after_s is None else f"started after {format_duration(attempt.after_s)}"
    begun = f"resumed from step {attempt.resumed_from_step}, " if attempt.resumed_from_step else "from scratch, "
    begun = "" if attempt.resumed_from_step is None else begun
    if attempt.first_step is None:
        return f"{begun}no step recorded"
    lost = f", {attempt.lost_steps} of them lost" if attempt.lost_steps else ""
    return f"{begun}steps {attempt.first_step} to {attempt.last_step}{lost}"


def processes_text(report: Report) -> str:
    """Ranks, nodes and threads.

    A run of two ranks on one node reads `2 ranks on 1 node, 1 thread each`; roles have their names in front.
    """
    return "; ".join(_group_text(group) for group in report.processes.groups())


def _group_text(group: RoleNodes) -> str:
    ranks, role = group.processes, "" if group.role is None else f"{group.role} "
    return (
        f"{role}{_counted(ranks.world_size, 'rank')} on {_counted(ranks.nodes, 'node')}, "
        f"{_counted(ranks.threads_per_process, 'thread')} each"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def loss_scale_text(num_steps: int) -> str:
    """Note on the steps that fp16 left out, which is expected."""
    return f"{_counted(num_steps, 'step')} left out while fp16 found its loss scale; that is how it works"


def basis_text(comparison: Comparison) -> str:
    """Basis of the measured numbers, definition of a difference, and the peak that the MFU divides by."""
    left_out = f", the first {comparison.num_warmup_steps} left out" if comparison.num_warmup_steps else ""
    basis = f"Medians of {_counted(comparison.num_steps, 'step')}{left_out}. " if comparison.num_steps else ""
    if comparison.num_other_steps:
        basis += f"Not compared: {_counted(comparison.num_other_steps, 'step')} of an earlier layout. "
    return f"{basis}Difference = (measured - planned) / planned. Peak FLOP/s of the MFU: {comparison.peak_source}."


def _loss_remark(done: Training) -> str:
    lowest = f", lowest {format_loss(done.loss_lowest)} at step {done.loss_lowest.step:,}" if done.loss_lowest else ""
    return f"from {format_loss(done.loss_first)}{lowest}" if done.loss_first else ""


def _planned(item: Difference) -> str:
    relative = "" if item.relative is None else f", {format_relative(item.relative)}"
    return "no plan" if item.planned is None else f"planned {format_amount(item.planned, item.unit)}{relative}"
