"""The learning-rate range test: one short run in which the rate rises until the loss diverges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainworks.api.run_request import RunTarget, read_run
from trainworks.api.runs import submit
from trainworks.config.load import with_settings
from trainworks.errors import RunFailedError, UsageError
from trainworks.plan.sweeps.range_test import RangeTestResult, has_diverged, read_range_test
from trainworks.record.metric_columns import MetricColumns, Steps

_STEPS = 100


def learning_rate_range(
    target: RunTarget,
    low: float,
    high: float,
    *,
    steps: int = _STEPS,
    folder: Path | str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RangeTestResult:
    """Train for a few steps while the learning rate rises exponentially from `low` to `high`.

    The run ends when its loss has diverged. It neither warms up nor evaluates.

    Args:
        target: a run file of a workload.
        low: first learning rate.
        high: last learning rate.
        steps: length of the test.
        folder: folder of all runs, instead of the run file's `checkpoint.to`.
        progress: called with steps done and steps in all.

    Raises:
        UsageError: the target is a command, or the ends are not positive and ascending.
        RunFailedError: the run failed before its loss could be read.
    """
    if not 0 < low < high:
        raise UsageError(f"`{low:g},{high:g}` is not a range of learning rates", hint="write it like `1e-6,1`")
    request = read_run(target)
    if request.run_file.workload is None:
        raise UsageError("a range test trains a workload, and the run file has a command")
    settings: dict[str, Any] = {
        "workload.optimizer.lr": high,
        "workload.optimizer.min_lr_ratio": low / high,
        "workload.optimizer.schedule": "range-test",
        "workload.optimizer.warmup": None,
        "workload.eval": None,
        "workload.sample_prompt": None,
        "workload.train_for": f"{steps} steps",
        "guard.nonfinite": "stop",
    }
    changed = with_settings(request.run_file, settings)
    started = submit(replace(request, run_file=changed), name=f"{changed.name}-lr-range", folder=folder)
    columns = MetricColumns(started.run_dir.metrics_file)
    for _ in started.poll(poll_s=0.3):
        found = _rows(columns)
        progress(len(found), steps)
        if has_diverged(found["loss"].tolist()) and not started.state.is_final:
            started.stop(at_once=True)
    found = _rows(columns)
    if len(found) == 0:
        started.check()
        raise RunFailedError(f"run {started.id} ended without a step")
    return RangeTestResult(started.id, read_range_test(found["lr"].tolist(), found["loss"].tolist()))


def _rows(columns: MetricColumns) -> Steps:
    columns.look()
    steps = columns.steps()
    return steps.where(~steps.is_lost())
