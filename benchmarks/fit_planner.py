"""Fit the coefficients of `plan/coefficients.py` to the published step times, and say how the fit does elsewhere.

    python benchmarks/fit_planner.py                prints the present and the fitted coefficients
    python benchmarks/fit_planner.py --leave-out    and the errors on sources and kinds after a fit without them
    python benchmarks/fit_planner.py --residuals    prints the present errors by what the rows are

Minimised is, over rows i of sources s and coefficients c with expected values e and widths w,

    sum_s 1/n_s sum_i rho(log(T_i / y_i)) + PULL^2 sum_c (log(c / e_c) / w_c)^2,  rho(r) = 2 d^2 (sqrt(1 + (r/d)^2) - 1)

with d = 10 %: a row that is far off pulls no more than in proportion. The expected values are what one would write down
without these tables, so that what is left out has no say. The minimum is found by Gauss-Newton steps with weights
1 / sqrt(1 + (r/d)^2). A fit without a source or a kind starts from the fit to everything and keeps its derivatives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from published import LEFT_OUT, STEP_TIMES, rows_of

from trainworks.errors import TrainworksError
from trainworks.measure.completions import best_completion
from trainworks.measure.measured_runs import MeasuredRun, read_run
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.layouts import Array, Layouts
from trainworks.plan.score import Errors, errors_of, learned_positions, macro_average
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import PRIOR, Z80, Belief, interval_s, parts_s, prior_of

__all__ = ["EXPERTS_LEFT_OUT", "KINDS", "PARAMETERS", "Parameter", "Sample", "fit", "main", "read_runs"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """What a coefficient may be."""

    low: float
    expected: float
    high: float
    width: float
    """Standard deviation of its logarithm around what is expected."""


PARAMETERS = {
    "gemm_share": Parameter(0.7, 0.95, 1.0, 0.03),
    "amd_share": Parameter(0.5, 0.85, 1.0, 0.15),
    "narrow_share": Parameter(0.5, 0.9, 1.0, 0.2),
    "joules_per_flop": Parameter(0.5e-12, 1e-12, 2e-12, 0.3),
    "narrow_energy": Parameter(0.5, 1.3, 2.0, 0.3),  # of wires 1, of a multiplication and an addition 1.6
    "depth_half": Parameter(30, 200, 1200, 0.7),
    "wave_loss": Parameter(0.1, 0.5, 1.0, 0.5),
    "attention_share": Parameter(0.7, 0.92, 1.1, 0.1),
    "memory_share": Parameter(0.5, 0.85, 0.95, 0.15),
    "unfused_bytes": Parameter(1.0, 1.7, 3.0, 0.2),
    "eager_bytes": Parameter(1.5, 4.0, 8.0, 0.2),
    "selective_share": Parameter(0.1, 0.25, 0.6, 0.3),
    "projections_share": Parameter(0.3, 0.6, 0.9, 0.2),
    "launch_s": Parameter(5e-6, 2e-5, 6e-5, 0.4),
    "gap_s": Parameter(5e-7, 2e-6, 1e-5, 0.5),
    "step_s": Parameter(5e-4, 1e-2, 5e-2, 1.0),
    "scale_up_share": Parameter(0.5, 0.82, 1.0, 0.02),  # all-reduces were timed inside a node
    "scale_out_share": Parameter(0.4, 0.8, 1.0, 0.03),  # and between nodes
    "omni_path_share": Parameter(0.05, 0.2, 1.0, 0.2),  # all-reduces between its nodes were timed, too
    "tp_hidden": Parameter(0.05, 0.5, 0.95, 0.5),
    "dp_hidden": Parameter(0.3, 0.8, 1.0, 0.3),
    "old_gather_share": Parameter(0.05, 0.2, 1.0, 0.5),
    "straggle": Parameter(0.001, 0.008, 0.03, 0.6),
}
"""All that is fitted. Bounds are physical: a share is below one, a latency above zero."""
EXPERTS = {"routed_share": Parameter(0.2, 0.7, 1.0, 0.3), "ep_hidden": Parameter(0.05, 0.5, 0.95, 0.5)}
"""What rows of models with experts are fitted for, after all else."""
EXPERTS_LEFT_OUT = "source of models with experts"

KINDS: dict[str, Callable[[MeasuredRun], bool]] = {
    "16k tokens and more": lambda run: run.job.sequence_length >= 16384,
    "PyTorch-native": lambda run: run.job.software.framework == "torch",
    "8 bits": lambda run: run.job.precision in ("fp8", "fp4"),
    "512 accelerators and more": lambda run: run.num_accelerators >= 512,
    "Volta": lambda run: run.job.cluster.accelerator.architecture == "Volta",
    "Hopper": lambda run: run.job.cluster.accelerator.architecture == "Hopper",
    "Blackwell": lambda run: (run.job.cluster.accelerator.architecture or "").startswith("Blackwell"),
    "Omni-Path": lambda run: run.job.cluster.network == "Omni-Path" and run.job.cluster.num_nodes > 1,
    "RoCE": lambda run: run.job.cluster.network == "RoCE" and run.job.cluster.num_nodes > 1,
}
"""Rows that a fit is tried without, all at once."""

_BUS: dict[str, Callable[[MeasuredRun], bool]] = {
    "no NVLink switch": lambda run: run.job.cluster.accelerator.scale_up in ("none", "NVLink3 bridge", "NVLink4 bridge")
}
_SOURCES_IN_ADVANCE = 4
_LOSS_WIDTH = 0.1
_PULL = 0.06
_SMALL_SOURCE_ROWS = 4
_STEP = 0.02
_KEPT = 3
"""Gauss-Newton steps that derivatives serve."""
_LONGEST = 0.4
"""Of a Gauss-Newton step, in the logarithm of a coefficient."""


def read_runs(kinds: Sequence[str] = ("yes",), *, labels: bool = True) -> list[MeasuredRun]:
    """Rows of these kinds that can be predicted and have a step time."""
    found = []
    for row in rows_of(STEP_TIMES, labels=labels):
        try:
            run = read_run(row)
        except TrainworksError:
            continue
        if run.kind in kinds and run.step_time_s:
            found.append(run)
    return found


@dataclass(frozen=True, slots=True)
class _Jobs:
    """Rows that differ in their layout alone."""

    job: TrainingJob
    layouts: Layouts
    rows: list[int]


class Sample:
    """Measured runs that are predicted together."""

    def __init__(self, runs: Sequence[MeasuredRun]) -> None:
        """Completes the layouts once, by the present coefficients: the fastest that fits."""
        self.runs = runs
        self.sources = np.array([run.source for run in runs])
        self._measured = np.log([run.step_time_s or 0.0 for run in runs])
        groups: dict[str, list[int]] = {}
        for index, run in enumerate(runs):
            groups.setdefault(repr(run.job), []).append(index)
        self._jobs = [_jobs_of(runs, rows) for rows in groups.values()]
        self.parts_s = np.empty((6, len(runs)))
        """Seconds by rate at the present coefficients, shape [R, rows]."""
        self.deviations = np.empty(len(runs))
        """Standard deviations that the planner gives the logarithms of the step times."""
        for jobs in self._jobs:
            parts = parts_s(jobs.job, jobs.layouts)
            self.parts_s[:, jobs.rows] = parts
            for at, row in enumerate(jobs.rows):
                prior = prior_of(jobs.job, jobs.layouts.take(slice(at, at + 1)))
                low, high = interval_s(parts[:, at : at + 1], Belief.of(prior))
                self.deviations[row] = np.log(high[0] / low[0]) / (2 * Z80)

    def only(self, chosen: NDArray[np.bool_]) -> Sample:
        """Some of the rows."""
        return Sample([run for run, kept in zip(self.runs, chosen, strict=True) if kept])

    def log_ratios(self, coefficients: Coefficients) -> Array:
        """log(predicted / measured) of every run."""
        predicted = np.empty(len(self.runs))
        for jobs in self._jobs:
            predicted[jobs.rows] = jobs.job.step_times(jobs.layouts, coefficients).total_s
        return np.log(predicted) - self._measured

    def weights(self, used: NDArray[np.bool_]) -> Array:
        """1 / n of the used rows of a source; a source of few rows counts less."""
        weights = np.zeros(len(self.runs))
        for source in np.unique(self.sources[used]):
            rows = used & (self.sources == source)
            weights[rows] = min(1.0, rows.sum() / _SMALL_SOURCE_ROWS) / rows.sum()
        return weights


def _jobs_of(runs: Sequence[MeasuredRun], rows: list[int]) -> _Jobs:
    completed = [best_completion(runs[at].job, runs[at].layout, global_batch=runs[at].global_batch) for at in rows]
    return _Jobs(runs[rows[0]].job, Layouts.concatenate([layout for layout, _ in completed]), rows)


def spread(runs: Sequence[MeasuredRun], most: int) -> NDArray[np.bool_]:
    """At most so many rows of each source, spread evenly over it."""
    used = np.zeros(len(runs), dtype=bool)
    for source in {run.source for run in runs}:
        rows = [index for index, run in enumerate(runs) if run.source == source]
        used[[rows[at] for at in learned_positions(len(rows), most)]] = True
    return used


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients and the derivatives of all rows' log ratios by their logarithms."""

    coefficients: Coefficients
    jacobian: Array


def fit(
    sample: Sample,
    used: NDArray[np.bool_] | None = None,
    *,
    steps: int,
    parameters: dict[str, Parameter] = PARAMETERS,
    start: Fit | None = None,
) -> Fit:
    """The coefficients that minimise the sum at the head of this module.

    Args:
        sample: all rows.
        used: those that are fitted; all by default.
        steps: of Gauss-Newton.
        parameters: what is fitted; the others keep their value.
        start: of a fit to all rows: it begins there, and its derivatives are kept.
    """
    names = list(parameters)
    low, expected, high = (
        np.log([getattr(p, end) for p in parameters.values()]) for end in ("low", "expected", "high")
    )
    pulls = (_PULL / np.array([parameter.width for parameter in parameters.values()])) ** 2
    weights = sample.weights(np.ones(len(sample.runs), dtype=bool) if used is None else used)
    base = start.coefficients if start else COEFFICIENTS

    def at(logs: Array) -> Coefficients:
        return replace(base, **dict(zip(names, np.exp(logs).tolist(), strict=True)))

    def cost(logs: Array, ratios: Array) -> float:
        rho = 2 * _LOSS_WIDTH**2 * (np.sqrt(1 + (ratios / _LOSS_WIDTH) ** 2) - 1)
        return float(weights @ rho + pulls @ (logs - expected) ** 2)

    logs = np.clip(np.log([getattr(base, name) for name in names]), low, high)
    ratios = sample.log_ratios(at(logs))
    jacobian = start.jacobian if start else _jacobian(sample, at, logs, ratios)
    for step in range(steps):
        if start is None and step and step % _KEPT == 0:
            jacobian = _jacobian(sample, at, logs, ratios)
        robust = weights / np.sqrt(1 + (ratios / _LOSS_WIDTH) ** 2)
        gradient = jacobian.T @ (robust * ratios) + pulls * (logs - expected)
        free = ~(((logs <= low) & (gradient > 0)) | ((logs >= high) & (gradient < 0)))
        curvature = (jacobian.T * robust) @ jacobian + np.diag(pulls)
        move = np.zeros(len(names))
        move[free] = -np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        move *= min(1.0, _LONGEST / max(np.abs(move).max(), 1e-12))
        for scale in (1.0, 0.5, 0.25):
            tried = np.clip(logs + scale * move, low, high)
            tried_ratios = sample.log_ratios(at(tried))
            if cost(tried, tried_ratios) < cost(logs, ratios):
                logs, ratios = tried, tried_ratios
                break
        else:
            break
    return Fit(at(logs), jacobian)


def _jacobian(sample: Sample, at: Callable[[Array], Coefficients], logs: Array, ratios: Array) -> Array:
    """Derivative of every row's log ratio by the logarithm of every coefficient, shape [rows, coefficients]."""
    columns = []
    for index in range(len(logs)):
        moved = logs.copy()
        moved[index] -= _STEP
        columns.append((ratios - sample.log_ratios(at(moved))) / _STEP)
    return np.stack(columns, axis=1)


def errors_by_source(sample: Sample, ratios: Array, rows: NDArray[np.bool_] | None = None) -> dict[str, Errors]:
    """Of these rows, or of all."""
    chosen = np.ones(len(ratios), dtype=bool) if rows is None else rows
    found = {}
    for source in np.unique(sample.sources[chosen]):
        of_source = chosen & (sample.sources == source)
        predicted, spread = np.exp(ratios[of_source]), np.exp(Z80 * sample.deviations[of_source])
        errors = errors_of(predicted, np.ones(len(predicted)), low=predicted / spread, high=predicted * spread)
        assert errors is not None
        found[str(source)] = errors
    return found


def _print_coefficients(fitted: Coefficients) -> None:
    print(f"{'coefficient':26} {'low':>9} {'expected':>9} {'high':>9} {'present':>9}    fitted")
    for name, bound in (PARAMETERS | EXPERTS).items():
        present, new = getattr(COEFFICIENTS, name), getattr(fitted, name)
        print(f"{name:26} {bound.low:9.3g} {bound.expected:9.3g} {bound.high:9.3g} {present:9.3g} -> {new:.3g}")


def _print_errors(title: str, errors: dict[str, Errors]) -> None:
    macro = macro_average(errors.values())
    assert macro is not None
    print(f"\n{title:40} {'n':>5} {'MAPE':>8} {'p90':>8} {'bias':>8} {'in 80 %':>8}")
    for source, one in [*sorted(errors.items()), ("macro average", macro)]:
        figures = f"{one.mape:8.1%} {one.p90:8.1%} {one.bias:+8.1%} {one.coverage or 0.0:8.1%}"
        print(f"{source:40} {one.n:5} {figures}", flush=True)


def _features(run: MeasuredRun) -> Iterable[str]:
    job, layout = run.job, run.layout
    yield f"accelerator {job.cluster.accelerator.name}"
    yield f"precision {job.precision}"
    yield f"tokens {2 ** round(np.log2(job.sequence_length))}"
    yield f"accelerators {2 ** (2 * round(np.log2(run.num_accelerators) / 2))}"
    yield f"network {job.cluster.network}" if job.cluster.num_nodes > 1 else "network none"
    yield f"zero {layout['zero']}, tp {layout['tp'] > 1}, pp {layout['pp'] > 1}"
    yield f"recompute {layout.get('recompute')}"
    yield f"software {job.software}"
    yield f"size {2 ** round(np.log2(job.shape.num_parameters / 1e9))}B"


def _print_residuals(sample: Sample, ratios: Array) -> None:
    by_feature: dict[str, list[int]] = {}
    for index, run in enumerate(sample.runs):
        for feature in _features(run):
            by_feature.setdefault(feature, []).append(index)
    for feature, rows in sorted(by_feature.items()):
        mask = np.zeros(len(ratios), dtype=bool)
        mask[rows] = True
        macro = macro_average(errors_by_source(sample, ratios, mask).values())
        assert macro is not None
        sources = len(set(sample.sources[mask]))
        print(f"{feature:100} {len(rows):4} of {sources:2}: {macro.mape:7.1%} {macro.bias:+7.1%}")


def _write_left_out(found: dict[str, dict[str, Errors]]) -> None:
    lines = [
        f'"{what}",{name},{one.n},{one.mape:.4f},{one.p90:.4f},{one.bias:.4f},{one.coverage:.4f}'
        for what, errors in found.items()
        for name, one in errors.items()
    ]
    LEFT_OUT.write_text("\n".join(["left_out,name,n,mape,p90,bias,coverage", *lines]) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=24, help="of a source that are used, at most (24)")
    parser.add_argument("--steps", type=int, default=5, help="of the minimiser, at most (5)")
    parser.add_argument("--leave-out", action="store_true", help="one fit per source and per kind, without it")
    parser.add_argument("--residuals", action="store_true", help="errors of the present coefficients by feature")
    parser.add_argument("--write", action="store_true", help=f"write the errors on what is left out to {LEFT_OUT.name}")
    options = parser.parse_args(arguments)
    sample = Sample(read_runs())
    present = sample.log_ratios(COEFFICIENTS)
    _print_errors("present coefficients", errors_by_source(sample, present))
    if options.residuals:
        _print_residuals(sample, present)
        return 0
    some = sample.only(spread(sample.runs, options.rows))
    whole = fit(some, steps=options.steps)
    with_experts = Sample(read_runs(("moe",)))
    experts = with_experts.only(spread(with_experts.runs, options.rows))
    routed = fit(experts, steps=2, parameters=EXPERTS).coefficients
    _print_coefficients(replace(whole.coefficients, **{name: getattr(routed, name) for name in EXPERTS}))
    _print_errors("fitted", errors_by_source(sample, sample.log_ratios(whole.coefficients)))
    if options.leave_out:
        found = _left_out(sample, Sample(read_runs(labels=False)), some, whole)
        found |= _experts_left_out(with_experts, Sample(read_runs(("moe",), labels=False)), experts)
        if options.write:
            _write_left_out(found)
    return 0


def _experts_left_out(labelled: Sample, hidden: Sample, some: Sample) -> dict[str, dict[str, Errors]]:
    """Errors on each source of models with experts after a fit of `EXPERTS` to some rows of the others."""
    samples = {EXPERTS_LEFT_OUT: labelled, f"{EXPERTS_LEFT_OUT}, labels hidden": hidden}
    found: dict[str, dict[str, Errors]] = {name: {} for name in samples}
    for source in np.unique(labelled.sources):
        used = np.array([run.source != source for run in some.runs])
        coefficients = fit(some, used, steps=2, parameters=EXPERTS).coefficients
        for name, sample in samples.items():
            found[name] |= errors_by_source(sample, sample.log_ratios(coefficients), sample.sources == source)
    for name, errors in found.items():
        _print_errors(f"fitted without the {name}", errors)
    return found


def _left_out(labelled: Sample, hidden: Sample, some: Sample, whole: Fit) -> dict[str, dict[str, Errors]]:
    """Errors on each source and kind after a fit to some rows without them, as they are and without their labels."""
    samples = {"": labelled, ", labels hidden": hidden}
    sources = {name: np.zeros(len(sample.runs)) for name, sample in samples.items()}
    kinds: dict[str, dict[str, Errors]] = {name: {} for name in samples}
    for what, belongs in ({source: _of_source(source) for source in np.unique(labelled.sources)} | KINDS).items():
        unseen = {run.id for run in labelled.runs if belongs(run)}
        coefficients = fit(
            some, np.array([run.id not in unseen for run in some.runs]), steps=3, start=whole
        ).coefficients
        for name, sample in samples.items():
            rows = np.array([run.id in unseen for run in sample.runs])
            ratios = np.zeros(len(rows))
            ratios[rows] = sample.only(rows).log_ratios(coefficients)
            if what not in KINDS:
                sources[name] += ratios
                continue
            by_source = errors_by_source(sample, ratios, rows)
            _print_errors(f"fitted without: {what}{name}", by_source)
            macro = macro_average(by_source.values())
            assert macro is not None
            kinds[name][what] = replace(macro, n=sum(one.n for one in by_source.values()))
    found: dict[str, dict[str, Errors]] = {}
    for name, sample in samples.items():
        found |= {f"source{name}": errors_by_source(sample, sources[name]), f"kind{name}": kinds[name]}
        _print_errors(f"fitted without the source{name}", found[f"source{name}"])
        _print_software(sample, sources[name])
        _print_errors(f"fitted without the kind, by source{name}", kinds[name])
    return found


def _of_source(source: str) -> Callable[[MeasuredRun], bool]:
    return lambda run: run.source == source


def _print_software(sample: Sample, left_out: Array) -> None:
    """tau_0 and u_k of `plan/uncertainty.py`, before the last factor, and the share of rows inside 80 %."""
    shares = (sample.parts_s / sample.parts_s.sum(axis=0)).T
    rates = np.array(PRIOR.rates) ** 2

    def squares(rows: NDArray[np.bool_]) -> list[float]:
        """q_s of every source that has any of these rows."""
        found = []
        for source in np.unique(sample.sources[rows]):
            own = rows & (sample.sources == source)
            explained = float(shares[own].mean(axis=0) ** 2 @ rates) + PRIOR.noise**2 / own.sum()
            found.append(float(left_out[own].mean()) ** 2 - explained)
        return found

    everything = squares(np.ones(len(sample.runs), dtype=bool))
    tau = max(float(np.mean(everything)), 0.0)
    print(f"\nsoftware, between sources: {np.sqrt(tau):.3f}; what kinds add:")
    for name, belongs in (KINDS | _BUS).items():
        found = squares(np.array([belongs(run) for run in sample.runs]))
        added = (_SOURCES_IN_ADVANCE * tau + sum(found)) / (_SOURCES_IN_ADVANCE + len(found)) - tau
        print(f"{name:40} {len(found):5} sources {np.sqrt(max(0.0, added)):8.3f}")


if __name__ == "__main__":
    sys.exit(main())
