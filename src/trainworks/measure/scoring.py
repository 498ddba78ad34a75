"""Tables of measurements, predicted row by row and scored: what the planner has to answer for.

A row is either predicted or refused with a reason, never skipped. Scores are by source and then averaged over sources;
`plan.score` has the formulas.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from trainworks.errors import TrainworksError, UsageError
from trainworks.measure import measured_runs
from trainworks.measure.completions import best_completion, lacking_bytes
from trainworks.measure.planning import Learned, no_measurements
from trainworks.measure.tables import Row, check_readable, line_of, text_of
from trainworks.plan.cluster.learning import RateInUse, belief_from, fit_links
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.collectives import collective_s
from trainworks.plan.layouts import Array
from trainworks.plan.rates import link_rates
from trainworks.plan.score import (
    Errors,
    Rejections,
    errors_of,
    learned_predictions,
    macro_average,
    rank_correlation,
    regret,
    rejections_of,
)
from trainworks.plan.uncertainty import Belief, Observation, Prior, interval_s, parts_s, prior_of
from trainworks.results import Result
from trainworks.units import format_bytes

LEARNED = (1, 3)
"""Rows of a cluster that are learned from before the others are predicted again."""
_UNSCORED = "no"
_SWEEP_ROWS = 4
LARGE_BYTES = 64 * 1024
_MOST_NAMES = 3

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Refusal:
    """A row that cannot be predicted."""

    id: str
    source: str
    kind: str
    reason: str
    line: int | None = None
    """Line of the table; None for a row without a file."""


@dataclass(frozen=True, slots=True)
class PredictedRun:
    """A row and its prediction."""

    run: measured_runs.MeasuredRun
    parts_s: Array
    """Seconds of the completed layout by rate, before learning from other rows; shape [R]."""
    step_time_s: float
    low_s: float
    """Lower end of the 80 % interval."""
    high_s: float
    prior: Prior
    """What was believed before."""
    memory_bytes: float
    """Predicted memory of the row's kind."""
    excess_bytes: float
    """Device memory that the smallest layout of the row needs above what a plan may use; 0 where one fits."""
    out_of_memory: bool = False
    """True if the measured run ran out of memory."""

    @property
    def fits(self) -> bool:
        """Whether a layout that agrees with the row fits the accelerator, by the planner."""
        return not self.excess_bytes


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """A row and what the planner says of it."""

    measured: measured_runs.MeasuredCollective
    time_s: float


RowPrediction = PredictedRun | PredictedCollective | Refusal
"""Outcome of one row."""


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that were scored together, source by source."""

    sources: dict[str, Errors]
    macro: Errors
    """Mean over the sources."""
    rows: Errors
    """Errors of all rows, independent of their source."""
    calibrated: dict[int, Group]
    """The same after learning from so many rows of each cluster."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows of one source that differ in their layout alone."""

    source: str
    model: str
    accelerators: str
    layouts: int
    rank_correlation: float
    regret: float


@dataclass(frozen=True, slots=True)
class RunScore:
    """Score of a table of runs."""

    kinds: dict[str, Group]
    """Rows by their `comparable` flag; `yes` is the one that counts. Rows with `no` are left out."""
    sweeps: list[Sweep]


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Score of a table of memory."""

    kinds: dict[str, Group]
    """Rows by the kind of figure: allocated, reserved, device."""
    rejections: Rejections


@dataclass(frozen=True, slots=True)
class CollectiveScore:
    """Score of a table of collectives; a source is a group of ranks on a network."""

    large: Group | None
    """Collectives of at least 64 KiB, where bandwidth matters."""
    every: Group | None


Score = RunScore | MemoryScore | CollectiveScore


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """A kind of table: what it may have, and what is done with it."""

    columns: tuple[str, ...]
    predict: Callable[..., RowPrediction]
    """A row, and `learned`."""
    score: Callable[[Iterable[RowPrediction]], Score]


def predict_run(
    row: Row, coefficients: Coefficients = COEFFICIENTS, *, learned: Learned = no_measurements
) -> PredictedRun | Refusal:
    """A row of a table of runs."""
    return _attempt(row, lambda: _predicted(measured_runs.read_run(row), coefficients, learned))


def predict_memory(
    row: Row, coefficients: Coefficients = COEFFICIENTS, *, learned: Learned = no_measurements
) -> PredictedRun | Refusal:
    """A row of a table of memory."""

    def predict() -> PredictedRun:
        measured = measured_runs.read_memory(row)
        return _predicted(measured.run, coefficients, learned, out_of_memory=measured.out_of_memory)

    return _attempt(row, predict)


def predict_collective(
    row: Row, coefficients: Coefficients = COEFFICIENTS, *, learned: Learned = no_measurements
) -> PredictedCollective | Refusal:
    """A row of a table of collectives."""

    def predict() -> PredictedCollective:
        measured = measured_runs.read_collective(row)
        size, ranks, stride = (np.array([float(value)]) for value in (measured.size_bytes, measured.ranks, 1))
        cluster = measured.cluster
        links = link_rates(cluster, coefficients).corrected(fit_links(learned(cluster)).factors)
        seconds = collective_s(measured.kind, size, ranks, stride, links)
        return PredictedCollective(measured, float(seconds[0]))

    return _attempt(row, predict)


def _attempt(row: Row, predict: Callable[[], T]) -> T | Refusal:
    try:
        check_readable(row)
        return predict()
    except TrainworksError as error:
        reason = f"{error.message}; {error.hint}" if error.hint else error.message
        kind = text_of(row, "usable_for_step_eval").lower()
        return Refusal(text_of(row, "id"), measured_runs.source_of(row), kind, reason, line_of(row))


def _predicted(
    run: measured_runs.MeasuredRun, coefficients: Coefficients, learned: Learned, *, out_of_memory: bool = False
) -> PredictedRun:
    job = run.job
    if measurements := learned(job.cluster):
        job = replace(job, slowdowns=belief_from(measurements, job).slowdowns)
    layouts, times = best_completion(job, run.layout, global_batch=run.global_batch, coefficients=coefficients)
    memories = job.memories(layouts)
    memory = {
        "allocated": memories.allocated_bytes,
        "reserved": memories.reserved_bytes() + memories.cached_bytes,
        "device": memories.device_bytes() + memories.cached_bytes,
    }[run.memory_kind]
    seconds = float(times.total_s[0])
    if not np.isfinite(seconds) or seconds <= 0:
        raise UsageError(f"the row's dimensions lead to a step of {seconds} s")
    parts, prior = parts_s(job, layouts, coefficients), prior_of(job, layouts)
    belief = belief_from(measurements, run.job, layouts) if measurements else Belief.of(prior)
    low, high = interval_s(parts, belief)
    return PredictedRun(
        run,
        parts[:, 0],
        seconds,
        float(low[0]),
        float(high[0]),
        belief.as_prior(prior),
        float(memory[0]),
        lacking_bytes(job, run.layout, global_batch=run.global_batch),
        out_of_memory,
    )


def excess_notes(results: Iterable[RowPrediction]) -> list[str]:
    """A sentence on the rows no layout of which fits the accelerator; no sentence where all fit."""
    above = [result for result in results if isinstance(result, PredictedRun) and not result.fits]
    if not above:
        return []
    most = max(above, key=lambda result: result.excess_bytes)
    names = ", ".join(result.run.id for result in above[:_MOST_NAMES])
    more = f" and {len(above) - _MOST_NAMES} more" if len(above) > _MOST_NAMES else ""
    lacking = f"up to {format_bytes(most.excess_bytes)} ({most.run.id})"
    return [
        f"more memory than a plan may use of the accelerator: {names}{more}, by {lacking}. "
        "Of what such a row leaves open, the fastest of what needs least is scored"
    ]


def predictions_csv(results: Sequence[RowPrediction], *, with_fit: bool = False) -> str:
    """One line per row of the table, in its order: `id, step_time_s, low_s, high_s, memory_bytes, refused`.

    Of collectives `id, time_s, refused`; `with_fit` adds whether the run fits the accelerator.
    """
    collectives = any(isinstance(result, PredictedCollective) for result in results)
    columns = ["time_s"] if collectives else ["step_time_s", "low_s", "high_s", "memory_bytes"]
    columns += ["fits"] if with_fit else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["id", *columns, "refused"])
    for result in results:
        writer.writerow(_cells(result, columns))
    return text.getvalue()


def _cells(result: RowPrediction, columns: Sequence[str]) -> list[str]:
    if isinstance(result, Refusal):
        return [result.id, *("" for _ in columns), result.reason]
    row_id = result.measured.id if isinstance(result, PredictedCollective) else result.run.id
    values = [getattr(result, name) for name in columns]
    return [row_id, *(("no", "yes")[value] if isinstance(value, bool) else f"{value:.6g}" for value in values), ""]


def score_runs(results: Iterable[RowPrediction]) -> RunScore:
    """Errors of the rows that have a measured step time, by kind and source; sweeps of the kind `yes`."""
    scored = [
        result
        for result in results
        if isinstance(result, PredictedRun) and result.run.step_time_s and result.run.kind != _UNSCORED
    ]
    kinds = sorted({result.run.kind for result in scored}, key=lambda kind: (kind != "yes", kind))
    groups = {}
    for kind in kinds:
        rows = [result for result in scored if result.run.kind == kind]
        blind = [
            _Point(r.run.source, r.step_time_s, r.run.step_time_s or 0.0, low=r.low_s, high=r.high_s) for r in rows
        ]
        calibrated = {learned: points for learned in LEARNED if (points := _calibrated(rows, learned))}
        groups[kind] = _group(blind, {learned: _group(points) for learned, points in calibrated.items()})
    return RunScore(groups, _sweeps([result for result in scored if result.run.kind == "yes"]))


def _calibrated(results: Sequence[PredictedRun], learned: int) -> list[_Point]:
    """A belief is of one cluster: rows of one source on one accelerator. A row that is alone on its own is left out."""
    points = []
    for rows in _group_by(results, lambda r: (r.run.source, r.run.job.cluster.accelerator.name)).values():
        if len(rows) < 2:
            continue
        observed = [Observation(r.parts_s, r.run.step_time_s or 0.0, r.run.job.software) for r in rows]
        ends = learned_predictions(observed, learned=learned, prior=rows[0].prior)
        points += [
            _Point(r.run.source, float(p), one.seconds, low=float(low), high=float(high))
            for r, one, p, low, high in zip(rows, observed, *ends, strict=True)
        ]
    return points


def _sweeps(results: Sequence[PredictedRun]) -> list[Sweep]:
    """Groups of at least four layouts of one source, model, accelerator count, batch, sequence length and precision.

    Repeated measurements of one layout count once, with their mean.
    """
    sweeps = []

    def alike(result: PredictedRun) -> tuple[object, ...]:
        run, job = result.run, result.run.job
        model = job.shape.model_dump_json()
        return run.source, model, job.cluster.name, run.global_batch, job.sequence_length, job.precision

    for rows in _group_by(results, alike).values():
        layouts = list(_group_by(rows, lambda r: (tuple(r.run.layout.items()), r.step_time_s)).values())
        if len(layouts) < _SWEEP_ROWS:
            continue
        predicted = [repeats[0].step_time_s for repeats in layouts]
        measured = [float(np.mean([r.run.step_time_s for r in repeats])) for repeats in layouts]
        run = rows[0].run
        name = f"{run.job.shape.num_parameters / 1e9:.3g}B, batch {run.global_batch}"
        correlation, cost = rank_correlation(predicted, measured), regret(predicted, measured)
        sweeps.append(Sweep(run.source, name, run.job.cluster.name, len(layouts), correlation, cost))
    return sweeps


def score_memory(results: Iterable[RowPrediction]) -> MemoryScore:
    """Errors of the rows that have a figure, by its kind; and which of all rows the planner would have rejected."""
    predicted = [result for result in results if isinstance(result, PredictedRun)]
    groups = {}
    for kind, rows in _group_by(predicted, lambda r: r.run.memory_kind).items():
        points = [_Point(r.run.source, r.memory_bytes, r.run.memory_bytes) for r in rows if r.run.memory_bytes]
        if points:
            groups[str(kind)] = _group(points)
    rejected = [not result.fits for result in predicted]
    return MemoryScore(groups, rejections_of(rejected, [result.out_of_memory for result in predicted]))


def score_collectives(results: Iterable[RowPrediction]) -> CollectiveScore:
    """Errors of the rows that have a time, by group of ranks: large messages, and all."""
    timed = [result for result in results if isinstance(result, PredictedCollective) and result.measured.time_s]
    points = [
        (result.measured.size_bytes, _Point(result.measured.group, result.time_s, result.measured.time_s or 0.0))
        for result in timed
    ]
    large = [point for size, point in points if size >= LARGE_BYTES]
    return CollectiveScore(_group(large) if large else None, _group([p for _, p in points]) if points else None)


@dataclass(frozen=True, slots=True)
class _Point:
    """A predicted and a measured figure of a source; both in the same unit."""

    source: str
    predicted: float
    measured: float
    low: float | None = None
    high: float | None = None


def _group(points: Sequence[_Point], calibrated: dict[int, Group] | None = None) -> Group:
    """Errors by source, their mean, and those of all rows; of at least one row."""
    sources = {str(name): _errors(rows) for name, rows in sorted(_group_by(points, lambda point: point.source).items())}
    macro = macro_average(sources.values())
    assert macro is not None
    return Group(sources, macro, _errors(points), calibrated or {})


def _errors(points: Sequence[_Point]) -> Errors:
    lows, highs = [p.low for p in points if p.low is not None], [p.high for p in points if p.high is not None]
    intervals = {"low": lows, "high": highs} if len(lows) == len(highs) == len(points) else {}
    errors = errors_of([p.predicted for p in points], [p.measured for p in points], **intervals)
    assert errors is not None
    return errors


def _group_by(items: Iterable[T], key: Callable[[T], object]) -> dict[object, list[T]]:
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


TABLES = {
    "runs": ScoreTable(measured_runs.COLUMNS, predict_run, score_runs),
    "memory": ScoreTable(measured_runs.MEMORY_COLUMNS, predict_memory, score_memory),
    "collectives": ScoreTable(measured_runs.COLLECTIVE_COLUMNS, predict_collective, score_collectives),
}
"""Scoring function by the kind of the table."""


@dataclass(frozen=True, slots=True)
class ScoreReport(Result):
    """Predictions of a table of measurements, and their errors."""

    table: str
    """`runs`, `memory` or `collectives`."""
    rows: Sequence[RowPrediction]
    score: Score
    notes: list[str]
    measured: Mapping[str, Sequence[RateInUse]] = field(default_factory=dict)
    """Rates that benchmarks measured, in place of the catalogue's, by kind of cluster."""

    @property
    def refusals(self) -> list[Refusal]:
        """Rows that cannot be predicted."""
        return [row for row in self.rows if isinstance(row, Refusal)]

    @property
    def csv(self) -> str:
        """The prediction of every row."""
        return predictions_csv(self.rows, with_fit=self.table == "memory")
