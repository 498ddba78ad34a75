"""Fit the coefficients of `plan/coefficients.py` to the published step times.

    python benchmarks/fit_planner.py                          prints the present and the fitted coefficients
    python benchmarks/fit_planner.py --leave-one-source-out   and the error on each source after a fit without it

Minimised is, over rows i of sources s and coefficients c with expected values e and widths w,

    sum_s 1/n_s sum_i rho(log(T_i / y_i)) + PULL^2 sum_c (log(c / e_c) / w_c)^2,  rho(r) = 2 d^2 (sqrt(1 + (r/d)^2) - 1)

with d = 10 %: a row that is far off pulls no more than in proportion. The expected values are what one would write down
without these tables, so that a source that is left out has no say. At most `--rows` of a source are used, spread
evenly over it. Needs scipy.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np
from published import LEFT_OUT, STEP_TIMES, rows_of

from trainworks.errors import MissingExtraError, TrainworksError
from trainworks.measure.completions import best_completion
from trainworks.measure.measured_runs import MeasuredRun, read_run
from trainworks.plan.coefficients import COEFFICIENTS, Coefficients
from trainworks.plan.layouts import Array
from trainworks.plan.score import Errors, errors_of, learned_positions, macro_average

__all__ = ["PARAMETERS", "Parameter", "fit", "main"]


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
    "narrow_share": Parameter(0.5, 0.9, 1.0, 0.2),
    "joules_per_flop": Parameter(0.5e-12, 1e-12, 2e-12, 0.3),
    "narrow_energy": Parameter(0.5, 1.4, 2.0, 0.3),
    "depth_half": Parameter(30, 200, 1200, 0.7),
    "wave_loss": Parameter(0.05, 0.5, 1.0, 0.7),
    "unaligned_share": Parameter(0.05, 0.3, 0.9, 0.7),
    "attention_share": Parameter(0.3, 0.7, 1.0, 0.25),
    "attention_backward_share": Parameter(0.4, 0.8, 1.0, 0.25),
    "memory_share": Parameter(0.5, 0.85, 0.95, 0.15),
    "backward_bytes": Parameter(1.2, 1.6, 2.5, 0.2),
    "routed_share": Parameter(0.2, 0.7, 1.0, 0.3),
    "launch_s": Parameter(2e-6, 1.5e-5, 6e-5, 0.8),
    "gap_s": Parameter(5e-7, 3e-6, 1e-5, 0.5),
    "optimizer_bytes": Parameter(25, 45, 90, 0.3),
    "step_s": Parameter(5e-4, 1e-2, 5e-2, 1.0),
    "scale_up_share": Parameter(0.5, 0.8, 1.0, 0.2),
    "scale_out_share": Parameter(0.4, 0.8, 1.0, 0.25),
    "omni_path_share": Parameter(0.05, 0.25, 1.0, 0.4),
    "pipelining": Parameter(0.1, 0.7, 1.2, 0.5),
    "pipelining_inside": Parameter(0.05, 0.4, 1.2, 0.5),
    "tp_hidden": Parameter(0.05, 0.5, 0.95, 0.5),
    "pp_exposed": Parameter(0.1, 0.9, 1.0, 0.5),
    "dp_hidden": Parameter(0.3, 0.8, 1.0, 0.3),
    "old_gather_share": Parameter(0.05, 0.2, 1.0, 0.5),
    "straggle": Parameter(0.001, 0.008, 0.03, 0.6),
}
"""All that is fitted. Bounds are physical: a share is below one, a latency above zero."""

_LOSS_WIDTH = 0.1
_PULL = 0.06
_SMALL_SOURCE_ROWS = 4
_STEP = 0.02
_MARGIN = 1e-6


def read_runs(kinds: Sequence[str]) -> dict[str, list[MeasuredRun]]:
    """By source, rows of these kinds that can be predicted and have a step time."""
    found: dict[str, list[MeasuredRun]] = {}
    for row in rows_of(STEP_TIMES):
        try:
            run = read_run(row)
        except TrainworksError:
            continue
        if run.kind in kinds and run.step_time_s:
            found.setdefault(run.source, []).append(run)
    return found


def spread(runs: dict[str, list[MeasuredRun]], most: int) -> dict[str, list[MeasuredRun]]:
    """At most so many rows of each source."""
    return {source: [rows[at] for at in learned_positions(len(rows), most)] for source, rows in runs.items()}


def log_ratio(run: MeasuredRun, coefficients: Coefficients) -> float:
    """log(predicted / measured)."""
    _, times = best_completion(run.job, run.layout, global_batch=run.global_batch, coefficients=coefficients)
    assert run.step_time_s
    return math.log(float(times.total_s[0]) / run.step_time_s)


def fit(runs: dict[str, list[MeasuredRun]], *, evaluations: int) -> Coefficients:
    """The coefficients that minimise the sum at the head of this module.

    Args:
        runs: by source.
        evaluations: of the Jacobian, at most.
    """
    from scipy.optimize import least_squares  # noqa: PLC0415 - the other benchmarks run without it

    names = list(PARAMETERS)
    low, expected, high = (
        np.log([getattr(p, end) for p in PARAMETERS.values()]) for end in ("low", "expected", "high")
    )
    widths = np.array([parameter.width for parameter in PARAMETERS.values()])

    def residuals(logs: Array) -> Array:
        coefficients = replace(COEFFICIENTS, **dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.concatenate([_row_residuals(runs, coefficients), _PULL * (logs - expected) / widths])

    start = np.clip(expected, low + _MARGIN, high - _MARGIN)
    found = least_squares(residuals, start, bounds=(low, high), max_nfev=evaluations, diff_step=_STEP)
    return replace(COEFFICIENTS, **dict(zip(names, np.exp(found.x).tolist(), strict=True)))


def _row_residuals(runs: dict[str, list[MeasuredRun]], coefficients: Coefficients) -> Array:
    """Whose squares are rho / n_s; a source of few rows counts less."""
    parts = []
    for rows in runs.values():
        weight = min(1.0, len(rows) / _SMALL_SOURCE_ROWS) / len(rows)
        ratios = np.array([log_ratio(run, coefficients) for run in rows])
        rho = 2 * _LOSS_WIDTH**2 * (np.sqrt(1 + (ratios / _LOSS_WIDTH) ** 2) - 1)
        parts.append(np.sign(ratios) * np.sqrt(weight * rho))
    return np.concatenate(parts)


def errors_by_source(runs: dict[str, list[MeasuredRun]], coefficients: Coefficients) -> dict[str, Errors]:
    """Of all rows."""
    found = {}
    for source, rows in runs.items():
        predicted = np.exp([log_ratio(run, coefficients) for run in rows])
        errors = errors_of(predicted, np.ones(len(rows)))
        assert errors is not None
        found[source] = errors
    return found


def _print_coefficients(fitted: Coefficients) -> None:
    print(f"{'coefficient':26} {'low':>9} {'expected':>9} {'high':>9} {'present':>9}    fitted")
    for name, bound in PARAMETERS.items():
        present, new = getattr(COEFFICIENTS, name), getattr(fitted, name)
        print(f"{name:26} {bound.low:9.3g} {bound.expected:9.3g} {bound.high:9.3g} {present:9.3g} -> {new:.3g}")


def _print_errors(title: str, errors: dict[str, Errors]) -> None:
    macro = macro_average(errors.values())
    assert macro is not None
    print(f"\n{title:26} {'n':>5} {'MAPE':>8} {'p90':>8} {'bias':>8}")
    for source, one in [*sorted(errors.items()), ("macro average", macro)]:
        print(f"{source:26} {one.n:5} {one.mape:8.1%} {one.p90:8.1%} {one.bias:+8.1%}")


def _write_left_out(errors: dict[str, Errors]) -> None:
    rows = [f"{source},{one.n},{one.mape:.4f},{one.p90:.4f},{one.bias:.4f}" for source, one in sorted(errors.items())]
    LEFT_OUT.write_text("\n".join(["source,n,mape,p90,bias", *rows]) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experts", action="store_true", help="fit to models with experts, too")
    parser.add_argument("--rows", type=int, default=30, help="of a source that are used, at most (30)")
    parser.add_argument("--evaluations", type=int, default=8, help="steps of the minimiser, at most (8)")
    parser.add_argument("--leave-one-source-out", action="store_true", help="one fit per source, without it")
    parser.add_argument("--write", action="store_true", help=f"write the errors on left-out sources to {LEFT_OUT.name}")
    options = parser.parse_args(arguments)
    if find_spec("scipy") is None:
        print(MissingExtraError("scipy", "test").render(), file=sys.stderr)
        return 3
    runs = read_runs(("yes", "moe") if options.experts else ("yes",))
    some = spread(runs, options.rows)
    fitted = fit(some, evaluations=options.evaluations)
    _print_coefficients(fitted)
    _print_errors("present coefficients", errors_by_source(runs, COEFFICIENTS))
    _print_errors("fitted", errors_by_source(runs, fitted))
    if options.leave_one_source_out:
        unseen = {}
        for source, rows in runs.items():
            others = {name: kept for name, kept in some.items() if name != source}
            unseen |= errors_by_source({source: rows}, fit(others, evaluations=options.evaluations))
            print(f"left out {source}: {unseen[source].mape:.1%}", file=sys.stderr)
        _print_errors("fitted without the source", unseen)
        if options.write:
            _write_left_out(unseen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
