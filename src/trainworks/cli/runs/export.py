"""`trainworks export`."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.report.rendering.printable import say


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
    best: Annotated[bool, typer.Option("--best", help="Take the checkpoint with the best evaluation.")] = False,
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Number format of the weights.")] = Dtype.FP32,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter to the weights of its checkpoint: a whole model.")
    ] = False,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """The folder gets safetensors files with Hugging Face names, config.json and the tokenizer.

    `AutoModelForCausalLM.from_pretrained(FOLDER)` opens it, and `model: {hf: FOLDER, weights: pretrained}` trains on
    from it. `masked-lm` and `image-classification` have their own Auto classes; a `module` exports only its weights,
    under its own names. A run with an `adapter` exports it as `peft` stores it, or the whole model with `--merge`. The
    folder is complete or absent. Checkpoints of every layout work; 5 GB of the model are in memory at a time.
    """
    from trainworks.api.checkpointing.export import export_model
    from trainworks.errors import UsageError
    from trainworks.report.rendering.progress_bar import byte_bar
    from trainworks.units import format_bytes

    found = find(run, runs)
    if best and step is not None:
        raise UsageError("`--best` and `--step` exclude each other")
    with byte_bar("reading and writing") as progress:
        made = export_model(found.run_dir, to, step=step, best=best, dtype=dtype.value, merge=merge, progress=progress)
    step, folder = made.pop("step"), made.pop("folder")
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    size = f"{made['tensors']:,} tensors, {format_bytes(made['bytes'])} of {made['dtype']} in {made['files']:,} file(s)"
    say(f"step {step:,} of {found.id}: {size}")
    typer.echo(folder)
