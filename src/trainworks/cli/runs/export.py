"""`trainworks export`."""

from __future__ import annotations

import importlib.util
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

from trainworks.api.worker_call import ask
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.errors import MissingExtraError, UsageError
from trainworks.record.manifest import complete_checkpoints
from trainworks.record.run_dir import RunDir
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import say
from trainworks.units import format_bytes

__all__ = ["command"]


class Dtype(StrEnum):
    """Number format of the written weights."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


def command(
    run: OptionalRun = None,
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="New folder for the model.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Step of the checkpoint. [default: the newest complete one]")
    ] = None,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights.")] = Dtype.FP32,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """The folder gets safetensors files with Hugging Face names, config.json and the tokenizer.

    `AutoModelForCausalLM.from_pretrained(FOLDER)` opens it, and `model: {hf: FOLDER, weights: pretrained}` trains on
    from it. `masked-lm` and `image-classification` have their own Auto classes; a `module` exports only its weights,
    under its own names. The folder is complete or absent. Checkpoints of every layout work; 5 GB of the model are in
    memory at a time.
    """
    run_dir = find(run, runs)
    if run_dir.read_resolved().plan is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload has a model to export")
    chosen = _step(run_dir, step)
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, "train")
    to = to.expanduser().absolute()
    request = {"run": str(run_dir.path.absolute()), "step": chosen, "to": str(to), "dtype": dtype.value}
    made = _ask(request)
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    size = f"{made['tensors']:,} tensors, {format_bytes(made['bytes'])} of {made['dtype']} in {made['files']:,} file(s)"
    say(f"step {chosen:,} of {run_dir.run_id}: {size}")
    typer.echo(to)


def _step(run_dir: RunDir, wanted: int | None) -> int:
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir)]
    if not steps:
        raise UsageError(f"run {run_dir.run_id} has no complete checkpoint yet", hint="wait for the first one")
    if wanted is not None and wanted not in steps:
        known = ", ".join(f"{step:,}" for step in steps)
        raise UsageError(f"run {run_dir.run_id} has no checkpoint of step {wanted:,}", hint=f"there are: {known}")
    return steps[-1] if wanted is None else wanted


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    columns = (BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=SafeConsole(stderr=True), transient=True) as bar:
        task = bar.add_task("reading and writing", total=None)
        return ask(
            "export", request, lambda done, total: bar.update(task, completed=done, total=total), module="export"
        )
