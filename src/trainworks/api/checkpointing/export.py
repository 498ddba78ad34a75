"""Export a checkpoint as a Hugging Face model; the worker has the libraries for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainworks.api.worker_answer import ask
from trainworks.api.worker_tasks import ByteProgress, require_packages
from trainworks.errors import UsageError
from trainworks.record.evaluations import best_evaluation
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir


def export_model(
    run_dir: RunDir,
    to: Path,
    *,
    step: int | None,
    best: bool = False,
    dtype: str,
    merge: bool = False,
    progress: ByteProgress,
) -> dict[str, Any]:
    """Write a checkpoint of a run as a Hugging Face model; returns the step, and what was written.

    Args:
        run_dir: directory of a run of a workload.
        to: new folder.
        step: of the checkpoint; the newest complete one when None.
        best: take the checkpoint with the best evaluation instead.
        dtype: number format of the weights.
        merge: add an adapter to the weights of its checkpoint.
        progress: receives the bytes done.

    Raises:
        UsageError: the run has no model, or no such checkpoint.
        MissingExtraError: the libraries of the worker are not installed.
    """
    if run_dir.read_resolved().plan is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload has a model to export")
    chosen = _step(run_dir, _best_step(run_dir) if best else step)
    require_packages("torch", "transformers")
    folder = str(to.expanduser().absolute())
    request = {"run": str(run_dir.path.absolute()), "step": chosen, "to": folder, "dtype": dtype, "merge": merge}
    return ask("export", request, progress, module="export") | {"step": chosen, "folder": folder}


def _best_step(run_dir: RunDir) -> int:
    best = best_evaluation(run_dir)
    if best is None:
        raise UsageError(f"run {run_dir.run_id} has no evaluation yet", hint="set `workload.eval` in the run file")
    return best.step


def _step(run_dir: RunDir, wanted: int | None) -> int:
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir)]
    if not steps:
        raise UsageError(f"run {run_dir.run_id} has no complete checkpoint yet", hint="wait for the first one")
    if wanted is not None and wanted not in steps:
        known = ", ".join(f"{step:,}" for step in steps)
        raise UsageError(f"run {run_dir.run_id} has no checkpoint of step {wanted:,}", hint=f"there are: {known}")
    return steps[-1] if wanted is None else wanted
