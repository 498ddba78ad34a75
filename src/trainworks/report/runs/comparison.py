"""Planned against measured: the prediction of the plan held against the steady steps of the run.

Convention: relative difference = (measured - planned) / planned, so that + means more than planned.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import numpy as np

from trainworks.config.layout import ResolvedLayout
from trainworks.plan.cost.energy import run_energy
from trainworks.record.events.training import AttemptEvent, CheckpointEvent
from trainworks.record.history import History
from trainworks.record.ledger import Ledger
from trainworks.record.measured.step_anchor import AnchoredStep, StepAnchor
from trainworks.record.metric_columns import Floats, Steps
from trainworks.record.metrics import warmup_steps
from trainworks.record.resolved import Forecast, Plan
from trainworks.recover.restarts import failures_survived
from trainworks.report.runs.part import ReportPart
from trainworks.results import ResultVerdict
from trainworks.units import HOUR_S, Money, format_bytes, format_duration, format_quantity

Unit = Literal["s", "bytes", "per_s", "ratio", "Wh", "USD", "CNY", "count", "value"]
AGREEMENT = 0.05
_MOST_SLOW = 0.2
"""Share of steps above an 80 % interval from which the report names it; a tenth is expected. An assumption."""


class Difference(ReportPart):
    """One quantity, planned and measured."""

    name: str
    unit: Unit
    planned: float | None
    measured: float | None
    relative: float | None
    """(measured - planned) / planned; None where one of them is missing, the plan says zero, or both are counts."""


class AnchorComparison(ReportPart):
    """The step of the plan, the one that the first quiet steps of the run anchor it on, and the steps since."""

    planned_s: float
    anchored: AnchoredStep | None
    """None where no window of steps was quiet."""
    reason: str
    """Why there is none."""
    measured_s: float | None
    """Median of the steps after that window, by the parts that a plan has; None without one, or without such steps."""
    slow_share: float | None
    """Share of these steps that took longer than the interval."""
    text: str
    """The same in words."""


class Comparison(ReportPart):
    """The plan and what it has to answer for."""

    num_steps: int
    """Steady steps that the medians are taken over."""
    num_warmup_steps: int
    """First steps left out."""
    num_other_steps: int
    """Steps that other layouts trained before a resume on other ranks. This plan did not predict them."""
    step_time: Difference
    """Verdict on the plan, whose first prediction it is held against."""
    anchor: AnchorComparison | None = None
    """None before the first quiet steps, and in records of older versions."""
    step_time_terms: tuple[Difference, ...]
    """Medians of the terms; `other` is what they leave of the median step."""
    memory: Difference
    """Largest peak over the ranks."""
    memory_terms: tuple[Difference, ...]
    """Planned only: the peak is measured as one number."""
    tokens_per_s: Difference
    tokens_per_s_interval: tuple[float, float] | None = None
    """Ends of the 80 % interval of the planned throughput; None in plans of older versions."""
    mfu: Difference
    """Model FLOP/s over world_size * peak_flops_per_s; None without a known peak."""
    peak_source: str
    run_time: Difference
    """Launch to last step, idle time left out; measured once the run is complete, if one layout trained all of it."""
    energy: Difference
    """Energy of the accelerators by what the plan has them do, against the count of their drivers; measured once the
    run is complete, as the run time is."""
    energy_interval: tuple[float, float] | None = None
    """Range of the planned energy, Wh."""
    cost: Difference
    """Price of the accelerators for the planned run time, and for the time that the run held them; None without one.
    It is measured once the run is complete, as the run time is."""
    failures: Difference
    """planned = nodes * run time / node MTTF, by the run file or the catalogue.

    It is measured once the run is complete, as the run time is, over all submissions. One run has whole failures: the
    relative difference is None."""
    checkpoint_size: Difference
    checkpoint_stall: Difference
    """Median stall of one checkpoint; the plan does not predict it."""
    findings: tuple[str, ...]
    """One sentence per difference worth a sentence, the biggest first; one of agreement if there is none."""

    def verdict(self, run_id: str) -> ResultVerdict:
        """Whether the plan held, and what to do where it did not; of a run with at least one finding."""
        figure, measured, interval = self.findings[0], self.tokens_per_s.measured, self.tokens_per_s_interval
        inside = None if measured is None or interval is None else interval[0] <= measured <= interval[1]
        unless = "" if inside is None else f"its steps are {'inside' if inside else 'outside'} the plan's 80 % interval"
        differences = (self.step_time, self.memory, self.run_time)
        worst = max(differences, key=lambda each: abs(each.relative or 0.0))
        more = worst.relative or 0.0
        if abs(more) < AGREEMENT:
            return ResultVerdict("Trust the plan", figure, unless)
        if more < 0:
            return ResultVerdict("Plan the next run with what this one measured", figure, unless)
        if worst is self.memory:
            return ResultVerdict("Leave more memory free in the next plan", figure, unless, "check")
        return ResultVerdict(f"Ask `trainworks why {run_id}` what to mend", figure, unless, "check")


def build_comparison(
    plan: Plan,
    history: History,
    ledger: Ledger,
    *,
    unit: str = "tokens",
    forecast: Forecast | None = None,
    anchor: StepAnchor | None = None,
    power_w: float | None = None,
    energy_j: float | None = None,
    hour_price: Money | None = None,
    failures_per_s: float | None = None,
) -> Comparison:
    """Compare a plan with the steps trained with its layout; measured values are None before the first step.

    Args:
        plan: by measured rates.
        history: of the run.
        ledger: where its time went.
        unit: of the data.
        forecast: the plan before the job was submitted.
        anchor: the plan as the first quiet steps anchored it, or why they could not.
        power_w: power limit of all accelerators together; None where it is not known.
        energy_j: energy of the accelerators so far; None where it was not measured.
        hour_price: of all accelerators; None where it is not known.
        failures_per_s: expected rate for all nodes of the job; None where it is not known.
    """
    attempts = history.of_kind(AttemptEvent)
    others = [event["attempt"] for event in attempts if not _has_layout(event, plan.layout, attempts[-1])]
    steps = history.effective.where(~np.isin(history.effective["attempt"], others))
    anchored = None if anchor is None or anchor.layout != plan.layout else compare_anchor(plan, anchor, steps)
    skipped = warmup_steps(len(steps))
    steady = steps.where(slice(skipped, None))
    num_other_steps = len(history.effective) - len(steps)
    step_time = _difference("step time", "s", plan.step_time.total_s, _median_of(steady.training_s))
    terms = _step_time_terms(plan, steady, step_time.measured)
    recorded = history.effective.joined([history.lost])
    peaks = recorded["memory_peak_bytes"][~np.isin(recorded["attempt"], others)]
    peak_bytes = float(np.nanmax(peaks)) if np.isfinite(peaks).any() else None
    memory = _difference("memory peak", "bytes", plan.memory.total_bytes, peak_bytes)
    run_time = _difference("run time", "s", plan.run_time_s, None if num_other_steps else _run_time(plan, history))
    step_s, no_rate = steady.training_s, np.zeros(len(steady))
    rates = np.divide(steady["tokens"], step_s, out=no_rate, where=step_s > 0)
    throughput = _difference(f"{unit}/s", "per_s", plan.tokens_per_s, _median_of(rates))
    mfu = None if throughput.measured is None else plan.mfu(throughput.measured)
    energy, energy_interval = _energy(plan, power_w, None if run_time.measured is None else energy_j)
    size, stall = _checkpoints(plan, history)
    is_complete = run_time.measured is not None
    per_s = hour_price.amount / HOUR_S if hour_price else None
    currency: Unit = hour_price.currency if hour_price else "USD"
    planned_cost = None if per_s is None else per_s * plan.run_time_s
    expected = None if failures_per_s is None else failures_per_s * plan.run_time_s
    survived = float(failures_survived(history.events)) if is_complete else None
    return Comparison(
        num_steps=len(steady),
        num_warmup_steps=skipped,
        num_other_steps=num_other_steps,
        step_time=step_time,
        anchor=anchored,
        step_time_terms=terms,
        memory=memory,
        memory_terms=tuple(
            _difference(name.removesuffix("_bytes"), "bytes", planned, None)
            for name, planned in plan.memory.model_dump().items()
        ),
        tokens_per_s=throughput,
        tokens_per_s_interval=None
        if plan.expected is None
        else (plan.tokens_per_step / plan.expected.high_s, plan.tokens_per_step / plan.expected.low_s),
        mfu=_difference("MFU", "ratio", plan.mfu(plan.tokens_per_s), mfu),
        peak_source=plan.peak_source,
        run_time=run_time,
        energy=energy,
        energy_interval=energy_interval,
        cost=_difference("cost", currency, planned_cost, per_s * ledger.held_s if per_s and is_complete else None),
        failures=Difference(name="failures", unit="count", planned=expected, measured=survived, relative=None),
        checkpoint_size=size,
        checkpoint_stall=stall,
        findings=(
            *_findings(plan, step_time, terms, memory=memory, run_time=run_time, ledger=ledger),
            *([anchored.text] if anchored and step_time.measured is not None else []),
            *_tuning(plan),
            *_forecast(forecast, step_time),
            *_energy_finding(energy, energy_interval),
        ),
    )


def compare_anchor(plan: Plan, anchor: StepAnchor, steps: Steps) -> AnchorComparison:
    """Hold the effective steps of a layout after its anchor against it."""
    planned_s, found = plan.step_time.total_s, anchor.found
    text, measured_s, slow_share = f"planned {format_duration(planned_s)} a step, ", None, None
    if found is None:
        text += f"not anchored: {anchor.reason}"
    else:
        since = steps.where((steps["step"] > found.step) & (steps.num_steps > 0)).planned_parts_s
        interval = f"{format_duration(found.low_s)} to {format_duration(found.high_s)}"
        text += f"anchored at step {found.step:,} on {format_duration(found.step_s)} (80 %: {interval})"
        if len(since):
            measured_s, slow_share = float(np.median(since)), float(np.mean(since > found.high_s))
            text += f", measured {format_duration(measured_s)} since"
            slow = f"{slow_share:.0%} of these steps took longer than the interval"
            text += f": {slow}" if slow_share > _MOST_SLOW else ""
    return AnchorComparison(
        planned_s=planned_s,
        anchored=found,
        reason=anchor.reason,
        measured_s=measured_s,
        slow_share=slow_share,
        text=text,
    )


def _has_layout(attempt: AttemptEvent, layout: ResolvedLayout, newest: AttemptEvent) -> bool:
    """Whether an attempt trained with the layout of the plan.

    Records of older versions describe layouts, not always in the same words: there the newest attempt has that of the
    plan.
    """
    written = attempt.get("layout")
    if isinstance(written, str):
        described = newest.get("layout")
        return written == (described if isinstance(described, str) else layout.describe())
    return written is None or ResolvedLayout.model_validate(written) == layout


def _difference(name: str, unit: Unit, planned: float | None, measured: float | None) -> Difference:
    relative = (measured - planned) / planned if planned and measured is not None else None
    return Difference(name=name, unit=unit, planned=planned, measured=measured, relative=relative)


def _median_of(values: Floats) -> float | None:
    return float(np.median(values)) if len(values) else None


def _energy(
    plan: Plan, power_w: float | None, measured_j: float | None
) -> tuple[Difference, tuple[float, float] | None]:
    """Energy of the accelerators in Wh, and the range of the planned one."""
    planned_j = None if power_w is None else run_energy(plan, power_w)
    measured_wh = None if measured_j is None else measured_j / HOUR_S
    if planned_j is None:
        return _difference("energy", "Wh", None, measured_wh), None
    low, high = planned_j.low, planned_j.high
    interval = None if low is None or high is None else (low / HOUR_S, high / HOUR_S)
    return _difference("energy", "Wh", planned_j.value / HOUR_S, measured_wh), interval


def _checkpoints(plan: Plan, history: History) -> tuple[Difference, Difference]:
    """Size of the last checkpoint, and median stall, which the plan does not predict."""
    written = history.of_kind(CheckpointEvent)
    sizes = [float(event["bytes"]) for event in written if event.get("bytes") is not None]
    stalls = [float(event["stall_s"]) for event in written if event.get("stall_s") is not None]
    size = _difference("checkpoint size", "bytes", plan.checkpoint_bytes, sizes[-1] if sizes else None)
    return size, _difference("checkpoint stall", "s", None, median(stalls) if stalls else None)


def _energy_finding(energy: Difference, interval: tuple[float, float] | None) -> tuple[str, ...]:
    """Whether the measured energy is in the range of the planned one."""
    if energy.measured is None or energy.planned is None or interval is None:
        return ()
    inside = "inside" if interval[0] <= energy.measured <= interval[1] else "outside"
    low, planned, high = (format_quantity(each, "Wh") for each in (interval[0], energy.planned, interval[1]))
    said = f"{format_quantity(energy.measured, 'Wh')} measured, {planned} planned ({low} to {high})"
    return (f"energy of the accelerators: {said}; {inside} the range of the plan",)


def _step_time_terms(plan: Plan, steady: Steps, whole_s: float | None) -> tuple[Difference, ...]:
    terms = tuple(
        _difference(name.removesuffix("_s"), "s", planned, _median_of(steady[name]))
        for name, planned in plan.groups.model_dump().items()
        if planned or not plan.of_command
    )
    rest = None if whole_s is None else max(0.0, whole_s - sum(term.measured or 0.0 for term in terms))
    return (*terms, _difference("other", "s", None, rest))


def _run_time(plan: Plan, history: History) -> float | None:
    steps = history.effective
    if not len(steps) or steps["step"][-1] < plan.num_steps:
        return None
    return max(0.0, float(steps["t"][-1]) - history.start_at - history.idle_s)


def _findings(
    plan: Plan,
    step_time: Difference,
    terms: Sequence[Difference],
    *,
    memory: Difference,
    run_time: Difference,
    ledger: Ledger,
) -> tuple[str, ...]:
    measured = [item for item in (step_time, memory, run_time) if item.relative is not None]
    if not measured:
        return ()
    reasons = {
        "step time": lambda: _step_time_reason(step_time, terms),
        "memory peak": lambda: _both(memory),
        "run time": lambda: _run_time_reason(plan, run_time, ledger),
    }
    worth_saying = [item for item in measured if abs(item.relative or 0.0) >= AGREEMENT]
    worth_saying.sort(key=lambda item: -abs(item.relative or 0.0))
    sentences = tuple(_sentence(item, reasons[item.name]()) for item in worth_saying)
    *first, last = (item.name for item in measured)
    agreed = " and ".join([*filter(None, [", ".join(first)]), last])
    return sentences or (f"{agreed} agreed with the plan within {AGREEMENT * 100:.0f} %",)


def _tuning(plan: Plan) -> tuple[str, ...]:
    """What training a few layouts for a few steps has gained over the first choice of the plan."""
    tried = [one for one in plan.compared if one.measured_s is not None]
    if len(tried) < 2:
        return ()
    first, best = tried[0], min(tried, key=lambda one: one.measured_s or 0.0)
    before, after = first.measured_s or 0.0, best.measured_s or 0.0
    if best is first:
        return (f"tuning: of {len(tried)} layouts the plan's first choice was the fastest",)
    steps = f"{format_duration(after)} a step, {format_duration(before)} with the plan's first choice"
    return (f"tuning: {best.layout.describe()} was {100 * (1 - after / before):.0f} % faster: {steps}",)


def _forecast(forecast: Forecast | None, step_time: Difference) -> tuple[str, ...]:
    """How the plan before submission has held."""
    if forecast is None or step_time.measured is None:
        return ()
    inside = forecast.low_s <= step_time.measured <= forecast.high_s
    interval = f"{format_duration(forecast.low_s)} to {format_duration(forecast.high_s)}"
    said = f"{format_duration(forecast.step_s)} a step on {forecast.cluster} (80 %: {interval})"
    return (f"before submission: {said}; the measured step is {'inside' if inside else 'outside'}",)


def _sentence(item: Difference, reason: str) -> str:
    relative = item.relative or 0.0
    more, less = ("higher", "lower") if item.unit == "bytes" else ("longer", "shorter")
    # Past a doubling a ratio reads better than a percentage.
    much = f"{1 + relative:.1f} times the plan" if relative >= 1 else f"{abs(relative) * 100:.0f} %"
    than = "" if relative >= 1 else f" {more if relative > 0 else less} than planned"
    return f"{item.name} was {much}{than}{reason}"


def _step_time_reason(step_time: Difference, terms: Sequence[Difference]) -> str:
    """Name the term that moved furthest in the direction in which the whole moved."""
    whole = (step_time.measured or 0.0) - (step_time.planned or 0.0)
    shares = {term.name: ((term.measured or 0.0) - (term.planned or 0.0)) / whole for term in terms}
    cause = max(terms, key=lambda term: shares[term.name])
    return f"; {_portion(shares[cause.name])} is {cause.name}: {_planned_measured(cause)}"


def _run_time_reason(plan: Plan, run_time: Difference, ledger: Ledger) -> str:
    """Name the largest reason for a longer run; a shorter one just gives both numbers."""
    whole = (run_time.measured or 0.0) - (run_time.planned or 0.0)
    if whole <= 0:
        return _both(run_time)
    # the sum of all steps: the median one does not show a run that was disturbed for a while
    steps_s = ledger.compute_s + ledger.communication_s + ledger.optimizer_s + ledger.data_s
    planned_steps_s = plan.num_steps * plan.step_time.total_s
    evaluation_s = plan.evaluation.total_s if plan.evaluation else 0.0
    planned_overhead_s = plan.run_time_s - planned_steps_s - evaluation_s
    reasons = {
        "slower steps": steps_s - planned_steps_s,
        "time between steps": ledger.other_s,
        "start": ledger.start_s - max(0.0, planned_overhead_s),
        "checkpoints": ledger.checkpoint_s,
        "evaluations": ledger.evaluation_s - evaluation_s,
        "callbacks": ledger.callback_s,
        "restarts": ledger.restart_s,
        "lost steps": ledger.lost_s,
    }
    cause = max(reasons, key=reasons.__getitem__)
    return f"{_both(run_time)}; {_portion(reasons[cause] / whole)} is {cause}: {format_duration(reasons[cause])}"


def _portion(share: float) -> str:
    return "most of it" if share > 0.5 else "the largest part"


def _both(item: Difference) -> str:
    return f": {_planned_measured(item)}"


def _planned_measured(item: Difference) -> str:
    show = format_bytes if item.unit == "bytes" else format_duration
    return f"{show(item.planned or 0.0)} planned, {show(item.measured or 0.0)} measured"
