"""The plan of a workload on a described cluster: every layout priced, the best ones predicted, and the reasons."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainworks.catalog.catalog import find_row, published_runs
from trainworks.catalog.exchange import Exchange
from trainworks.config.layout import ResolvedLayout
from trainworks.config.run_file import RunFile
from trainworks.plan.cluster.hardware import oversubscription_note, starvation_note
from trainworks.plan.cluster.layout import roomier_batch, why_nothing
from trainworks.plan.cluster.learning import RateInUse, rates_in_use
from trainworks.plan.cluster.scaling import (
    LIKELY,
    TABLE_LENGTH,
    PlanRequest,
    Scale,
    describe_goal,
    does_not_fit,
    faster_with_fewer,
    goal_chance,
    is_tight,
    offloading_note,
    scales,
)
from trainworks.plan.degrees import resolved_of
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction
from trainworks.plan.programs import narrowing
from trainworks.plan.search import SearchResult, search_layouts
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.trace import Traced, computed, fact
from trainworks.plan.uncertainty import LARGEST_WORLD, LONGEST, Z80, Belief, not_compared
from trainworks.record.measured.measurement import ClusterMeasurement
from trainworks.record.model_shape import ModelShape
from trainworks.record.resolved import Plan, PlannedEvaluation, RunPlan
from trainworks.record.step_time import TIE, ExpectedStep, scaled
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_counted, format_duration, format_step_time

_LAYOUTS_WITH_ADVICE = 2_000_000
_NAMED_SAVING = 0.01
_HOPELESS = 0.5
"""Chance of meeting the goal below which the plan is to be changed before it runs."""


@dataclass(frozen=True, slots=True)
class ClusterPlan(RunPlan):
    """Predictions of a workload on a described cluster, and the layouts that were rejected."""

    job: AnyJob
    global_batch: int
    steps: int
    result: SearchResult
    best: list[Prediction]
    """The proposed layout first; see `plan.search.preferred_s`."""
    front: list[Prediction]
    """Layouts that none beats in both time and memory."""
    scales: list[Scale]
    """Fewer and more nodes, if there is a goal to meet: those that none beats in both time and accelerators."""
    exchange: Exchange
    """Currency of the costs."""
    goal: str | None
    """The goal, the chance of meeting it, and the numbers of nodes on which it is met by half and by nine of ten."""
    notes: list[str]
    evaluation: PlannedEvaluation | None = None
    """Evaluations during training; None without any, and of all of data that are not counted."""
    measured: Sequence[RateInUse] = ()
    """Rates that benchmarks measured, in place of the catalogue's."""
    chance: float | None = None
    """Chance of meeting the goal on these nodes; None without one."""

    @property
    def verdict(self) -> ResultVerdict:
        """Train with the proposed layout, or change the nodes or the goal where these are likely to miss it."""
        best, described = self.best[0], self.job.cluster.num_nodes
        low_s, high_s = map(format_duration, self.run_interval_s)
        figure = f"{format_step_time(best.step_time_s)} a step, {format_duration(self.run_time_s)} in all"
        figure += f" (80 %: {low_s} to {high_s})"
        likely = next((each.num_nodes for each in self.scales if each.chance >= LIKELY), None)
        if self.goal is not None and self.chance is not None and self.chance < LIKELY:
            action = "Give the run more time or money, or train for less"
            if likely is not None:
                action = f"Take {likely:,} nodes instead of {described:,}"
            goal = f"the goal of {self.goal.replace(': ', ' is ', 1)}"
            return ResultVerdict(action, goal, signal="stop" if self.chance < _HOPELESS else "check")
        action = f"Train with {best.layout.describe()}"
        if self.chance is not None and likely is not None and likely < described:
            return ResultVerdict(action, figure, f"{format_counted(likely, 'node')} would meet the goal as well")
        if (near := self._near()) is not None:
            return ResultVerdict(action, figure, near, "check")
        if is_tight(self.job, best):
            return ResultVerdict(action, figure, "its memory is tight: a longer sequence does not fit", "check")
        return ResultVerdict(action, figure, "" if len(self.best) > 1 else "no other kind of layout fits")

    def _near(self) -> str | None:
        """The layout of another kind whose distance is within what the plan is sure of; None for a clear choice."""
        following = min(self.best[1:], key=lambda each: each.step_time_s, default=None)
        if following is None or following.step_time_s > TIE * self.best[0].step_time_s:
            return None
        more = following.step_time_s / self.best[0].step_time_s - 1
        slower = f"{abs(more):.1%} {'slower' if more > 0 else 'faster'}"
        sure = f"a plan is sure to {100 * (TIE - 1):.0f} %"
        return f"no clear winner, {following.layout.describe()} is predicted {slower}, and {sure}"

    @property
    def layout(self) -> ResolvedLayout:
        """The proposed layout."""
        return self.best[0].layout

    @property
    def step_time_s(self) -> float:
        """Predicted step time of the proposed layout."""
        return self.best[0].step_time_s

    @property
    def step_interval_s(self) -> tuple[float, float]:
        """Ends of its 80 % interval."""
        return self.best[0].low_s, self.best[0].high_s

    @property
    def num_steps(self) -> int:
        """Optimizer steps, as `steps`."""
        return self.steps

    @property
    def memory_bytes(self) -> int:
        """Predicted peak memory of the fullest rank."""
        return self.best[0].memory.total_bytes

    @property
    def tokens_per_s(self) -> float:
        """Predicted throughput of all ranks together."""
        return self.best[0].tokens_per_s

    @property
    def run_time_s(self) -> float:
        """Time of all steps and evaluations, without failures and checkpoints."""
        return self._run_time_s(self.best[0].step_time_s)

    @property
    def run_interval_s(self) -> tuple[float, float]:
        """The 80 % interval of the same time."""
        return self._run_time_s(self.best[0].low_s), self._run_time_s(self.best[0].high_s)

    def _run_time_s(self, step_time_s: float) -> float:
        return step_time_s * (self.steps + self._evaluation_steps)

    @property
    def _evaluation_steps(self) -> float:
        """Steps that take as long as all evaluations."""
        return self.evaluation.total_s / self.best[0].step_time_s if self.evaluation else 0.0

    @property
    def work(self) -> Traced:
        """The same time with its derivation: inputs `steps` and `step_time` with its 80 % interval."""
        best, by = self.best[0], "trainworks plan, proposed layout"
        step = computed("step time", best.step_time_s, "s", by=by, low=best.low_s, high=best.high_s)
        steps = fact("steps", self.steps, "", source="the run file")
        if self.evaluation is None:
            return (steps * step).named("work", "s")
        evaluations = computed("evaluations", self._evaluation_steps, "", by=f"{by}, in steps of that time")
        return ((steps + evaluations) * step).named("work", "s")


@dataclass(frozen=True, slots=True)
class CalibrationResult(Result):
    """The plan of the measured layout before and after the calibration."""

    before: ClusterPlan
    after: ClusterPlan
    measured_s: float | None
    """The measured step time; None for a benchmark record."""
    path: Path
    """File that the measurement was appended to."""


@dataclass(frozen=True, slots=True)
class LayoutComparison(Result):
    """The plan of one layout beside the plan of the search."""

    this: ClusterPlan
    proposed: ClusterPlan

    @property
    def verdict(self) -> ResultVerdict:
        """Whether the proposed layout is worth the change."""
        this, best = self.this.best[0], self.proposed.best[0]
        ratio = this.step_time_s / best.step_time_s
        times = f"{format_step_time(this.step_time_s)} a step, {format_step_time(best.step_time_s)} as proposed"
        if this.layout == best.layout:
            return ResultVerdict("Keep this layout", f"{times}; it is the proposed one")
        if 1 / TIE <= ratio <= TIE:
            return ResultVerdict(
                "Time both layouts", times, f"no clear winner, a plan is sure to {100 * (TIE - 1):.0f} %", "check"
            )
        if ratio < 1:
            return ResultVerdict("Keep this layout", times, "it takes more complications than the proposed one")
        return ResultVerdict(
            f"Train with {best.layout.describe()}", f"{times}: {1 - 1 / ratio:.0%} less", signal="stop"
        )


def plan_request(
    request: PlanRequest, measurements: Sequence[ClusterMeasurement], notes: Sequence[str | None] = ()
) -> ClusterPlan:
    """Search the layouts of a request and predict the best.

    Args:
        request: the job, and the goal to meet.
        measurements: those that calibrate the plan, the newest last.
        notes: sentences about the request, such as where the price of an accelerator hour comes from.

    Raises:
        LayoutError: no layout multiplies to the accelerators; `field` names the decision to change.
        EnvironmentProblem: no layout fits into memory; the message counts why.
    """
    batch = request.global_batch
    result = search_layouts(request.job, batch, request.fixed, keep=TABLE_LENGTH, only_usual=not request.advise)
    if not result.fitting:
        if result.evaluated:
            raise does_not_fit(request, result)
        reasons = [rejection.reason for rejection in result.rejections]
        raise why_nothing(request.job, request.fixed, reasons, global_batch=batch)
    rows = request.predictions(request.job, result)
    cluster = request.job.cluster
    other_scales = scales(request)
    chance = goal_chance(request, rows[0], cluster.num_accelerators)
    measured = rates_in_use(measurements, cluster)
    advice = _batch_advice(request, rows[0], evaluated=result.evaluated) if request.advise else None
    every_note = [
        offloading_note(request, rows[0]),
        _faster_note(rows[0], rows[result.front[0]]),
        *cluster.notes,
        starvation_note(cluster),
        oversubscription_note(cluster),
        *notes,
        advice,
        _calibration_note(measurements) or _software_note(request.job, request.belief, rows[0]),
        *(rate.text for rate in measured),
        above_published(request.job, rows[0].mfu),
        *outside_measured(request.job, cluster.num_accelerators),
        "evaluations are left out: `eval.steps: all` takes data that are counted once they are prepared"
        if request.evaluation is not None and request.evaluation.steps == "all"
        else None,
    ]
    return ClusterPlan(
        job=request.job,
        global_batch=batch,
        steps=request.steps,
        result=result,
        best=[rows[index] for index in result.families[:TABLE_LENGTH]],
        front=[rows[index] for index in result.front],
        scales=other_scales,
        exchange=request.exchange,
        goal=describe_goal(request, chance, other_scales) if request.has_goal else None,
        notes=[*filter(None, every_note)],
        evaluation=request.evaluations(rows[0]),
        measured=measured,
        chance=chance if request.has_goal else None,
    )


def recorded_plan(planned: ClusterPlan, run_file: RunFile) -> Plan:
    """The plan of the proposed layout as a record has it, without checkpoints.

    Args:
        planned: of a language model.
        run_file: with the workload.
    """
    job, best, workload = planned.job, planned.best[0], run_file.workload
    assert isinstance(job.shape, ModelShape) and workload is not None
    accelerator = job.cluster.accelerator
    return Plan(
        model=job.shape,
        layout=resolved_of(best.layout, run_file.layout),
        num_steps=planned.steps,
        tokens_per_step=workload.tokens_per_step,
        model_flops_per_token=job.flops_per_sequence / job.tokens_per_sample,
        peak_flops_per_s=accelerator.peak_flops_per_s[workload.precision],
        peak_source=f"data sheet of {accelerator.name} in {workload.precision}",
        step_time=scaled(best.step_time, best.step_time_s / best.step_time.total_s),
        expected=ExpectedStep(low_s=best.low_s, high_s=best.high_s, by_rate_s={}, learned_from=0),
        memory=best.memory,
        checkpoint_bytes=0,
        checkpoint_every_steps=None,
        checkpoint_every_s=None,
        log_every_steps=1,
        run_time_s=planned.run_time_s,
    )


def _software_note(job: AnyJob, belief: Belief, best: Prediction) -> str | None:
    """Key of `software:` that narrows the interval most, where the program is not known, and by how much."""
    if not belief.program_logs:
        return None
    key, spread, left = narrowing(getattr(job, "programs", ()), belief.program_logs)
    now = math.log(best.high_s / best.low_s) / (2 * Z80)
    then = math.sqrt(max(0.0, now**2 - spread**2 + left**2))
    without, told = (math.expm1(Z80 * deviation) for deviation in (now, then))
    text = f"the 80 % interval of the step is +-{without:.0%} without it, and +-{told:.0%} with it"
    return f"say `software: {{{key}: ...}}`: {text}" if without - told > _NAMED_SAVING else None


def _faster_note(proposed: Prediction, fastest: Prediction) -> str | None:
    saved = 1 - fastest.step_time_s / proposed.step_time_s
    if saved < _NAMED_SAVING:
        return None
    return (
        f"{fastest.layout.describe()} is predicted {saved:.1%} faster: too little for what it adds, since every "
        "complication of a layout has to save 1 % of the step"
    )


def _calibration_note(measurements: Sequence[ClusterMeasurement]) -> str | None:
    if not measurements:
        return None
    newest = time.strftime("%Y-%m-%d", time.localtime(measurements[-1].created_at))
    count = "1 measurement" if len(measurements) == 1 else f"{len(measurements)} measurements"
    benches = sum(bool(measurement.rates or measurement.curves) for measurement in measurements)
    of_them = (
        "" if not benches else ", by `trainworks bench`" if benches == len(measurements) else f", {benches} by bench"
    )
    return f"calibrated by {count} of this kind of cluster{of_them}, the newest of {newest}"


def _batch_advice(request: PlanRequest, best: Prediction, *, evaluated: int) -> str | None:
    """A global batch that divides better, and the nodes to leave idle with this one.

    Fewer nodes are tried only where one search was a small amount of work, because several more follow it.
    """
    cluster = request.job.cluster
    batch = None if "dp" in request.fixed else roomier_batch(cluster.num_accelerators, request.global_batch)
    if batch is None:
        return None
    text = f"few layouts of {cluster.num_accelerators:,} accelerators share {request.global_batch:,} sequences evenly: "
    fewer = faster_with_fewer(request, best.step_time_s) if evaluated <= _LAYOUTS_WITH_ADVICE else None
    if fewer is not None:
        step = format_step_time(fewer.best.step_time_s)
        text += f"{fewer.num_nodes:,} of the {cluster.num_nodes:,} nodes take {step} a step; "
    return f"{text}`global_batch: {batch}` may be faster"


_EXTRAPOLATED = 10
_LONGEST_LISTED = 16384
"""Tokens of a sequence from which on MFU says how attention is counted."""
_BITS = {"fp8": 8, "fp4": 4}
_SIMILAR = 2
"""Largest ratio of two numbers of accelerators whose runs are compared."""


def outside_measured(job: AnyJob, world_size: int) -> list[str]:
    """Ways in which a job lies outside of the compared runs; each widens the interval."""
    found = not_compared(job)
    ranges = {"accelerators": (world_size, LARGEST_WORLD), "tokens": (job.sequence_length, LONGEST)}
    for name, (value, largest) in ranges.items():
        if value > largest:
            found.append(f"{value} {name} are more than the {largest} of any compared run")
    return found


def extrapolation(world_size: int) -> str | None:
    """A warning for a cluster of over ten times the largest compared run; None for a smaller one."""
    if world_size <= _EXTRAPOLATED * LARGEST_WORLD:
        return None
    times = f"{world_size / LARGEST_WORLD:,.0f} times the {LARGEST_WORLD:,}"
    return f"{world_size:,} accelerators are {times} of the largest compared run: every figure is an extrapolation"


def above_published(job: AnyJob, mfu: float) -> str | None:
    """A note on a plan above the best published run of that part, precision and scale; None where there is none.

    Args:
        job: on its cluster; of convolutional networks, encoders and long sequences no run is listed.
        mfu: model FLOPs over the dense peak, as planned.
    """
    if isinstance(job.shape, ConvNetShape) or not job.shape.causal or job.sequence_length >= _LONGEST_LISTED:
        return None
    count, part = job.cluster.num_accelerators, job.cluster.accelerator.name
    kind = (part, _BITS.get(job.precision, 16), bool(job.shape.experts))
    similar = [
        run
        for run in published_runs().values()
        if (run.accelerator, run.bits, run.experts) == kind and count / _SIMILAR <= run.accelerators <= count * _SIMILAR
    ]
    best = max(similar, key=lambda run: run.mfu, default=None)
    if best is None or mfu <= best.mfu:
        return None
    source = find_row(best.name, "runs").figures[0].source
    scale = f"{count // _SIMILAR:,} to {count * _SIMILAR:,} of this part in {kind[1]} bits"
    figures = f"{best.name}, {100 * best.mfu:.0f} %"
    return f"MFU {100 * mfu:.0f} % is above the best published run on {scale}: {figures} ({source})"
