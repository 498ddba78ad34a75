"""A workload that trains for a few steps after a benchmark, and the verdict on its step time."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from trainworks.config.spec import Spec
from trainworks.files import write_atomic
from trainworks.measure.bench.node_record import FOLDER
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.units import format_duration

STEPS = 30
"""Steps of the training; the first of them warm up, and the median of the others counts."""


class PlannedStep(Spec):
    """The step time that a plan predicts."""

    cluster: str
    """Hardware that the plan counts on; empty for rates that the nodes themselves have measured."""
    step_s: float
    low_s: float
    high_s: float
    """Ends of the 80 % interval."""


class ShortTraining(Spec):
    """What became of the training."""

    run: str
    """Folder of its run, below that of the benchmark; empty where nothing trained."""
    planned: PlannedStep | None = None
    step_s: float | None = None
    """Median of the steady steps; None where there are none."""
    verdict: BenchVerdict
    reason: str
    """One sentence."""


def judge_training(run: str, planned: PlannedStep, step_s: float, *, is_busy: bool) -> ShortTraining:
    """Hold a measured step time against its plan, on the scale of the plan's own uncertainty.

        pass   step <= high                  high: upper end of the plan's 80 % interval
        weak   step <= high² / planned       twice as far from the plan, as a ratio
        fail   longer

    With a log-normal error, one healthy cluster of ten is beyond `high`, and one of two hundred fails. A faster step
    passes. Where other programs use the cores, a slow one has no verdict.

    >>> plan = PlannedStep(cluster="4x DGX H100", step_s=1.0, low_s=0.8, high_s=1.25)
    >>> [judge_training("r", plan, each, is_busy=False).verdict.value for each in (0.7, 1.2, 1.5, 1.6)]
    ['pass', 'pass', 'weak', 'fail']
    """
    low, high = format_duration(planned.low_s), format_duration(planned.high_s)
    said = f"{format_duration(planned.step_s)} a step planned (80 %: {low} to {high})"
    if step_s <= planned.high_s:
        verdict, reason = BenchVerdict.PASS, said
    elif is_busy:
        verdict, reason = BenchVerdict.BUSY, f"{said}, while other programs used the cores"
    else:
        is_weak = step_s <= planned.high_s**2 / planned.step_s
        verdict, reason = BenchVerdict.WEAK if is_weak else BenchVerdict.FAIL, f"{said}: it is slower"
    return ShortTraining(run=run, planned=planned, step_s=step_s, verdict=verdict, reason=reason)


def write_training(run_folder: Path, training: ShortTraining) -> None:
    """Keep it in the run directory of the benchmark."""
    write_atomic(run_folder / FOLDER / "training.json", training.model_dump_json())


def read_training(run_folder: Path) -> ShortTraining | None:
    """What the benchmark of a run directory trained; None where it did not, or another version wrote it."""
    try:
        return ShortTraining.model_validate_json((run_folder / FOLDER / "training.json").read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
