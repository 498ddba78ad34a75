"""`trainworks checkpoint` and `export`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainworks.cli.arguments import OptionalRun
from trainworks.cli.options import AsJson, RunsOption, find
from trainworks.cli.output import show_facts
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainworks.api.checkpointing.checkpoints import CheckpointFacts
    from trainworks.api.checkpointing.copies import CopyFacts
    from trainworks.report.rendering.document import Document


def checkpoint_command(
    action: Annotated[
        Literal["ls", "verify", "copy", "restore", "prune"],
        typer.Argument(metavar="ls|verify|copy|restore|prune", help="Action.", show_default=False),
    ],
    run: OptionalRun = None,
    step: Annotated[
        int | None, typer.Option("--step", help="With `verify` and `copy`: the checkpoint of this step.")
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="With `copy`: a folder or `s3://bucket/prefix`.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="PLACE", help="With `restore`: folder or store of the checkpoint.")
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="With `prune`: complete checkpoints to keep.")] = 1,
    copies: Annotated[
        bool, typer.Option("--copies", help="Of the places in `checkpoint.copies`; `prune`: too.")
    ] = False,
    restore: Annotated[
        bool, typer.Option("--restore", help="With `verify`: bring the newest copy of each place here, and load it.")
    ] = False,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`ls` checks manifests and sizes; `verify` reads every file, and exits with 1 if a checkpoint is damaged.

    `copy` writes a verified copy of the newest complete checkpoint to another place, `restore` brings a copy back, and
    `resume` then continues from the newest. `prune` deletes older checkpoints of a run that is not live. `verify
    --restore` proves that the copies in `checkpoint.copies` come back and load.
    """
    from trainworks.api.checkpointing import checkpoints as api
    from trainworks.report.artifacts import checkpoints_document, copies_document
    from trainworks.report.rendering.progress_bar import byte_bar
    from trainworks.units import format_bytes

    found = find(run, runs)
    if action == "copy":
        copied = api.copy_checkpoint(found, to=_given(to, "`copy` needs a folder", "--to FOLDER"), step=step)
        say(f"{found.id}: {copied.place or copied.folder}")
    elif action == "restore":
        given = _given(source, "`restore` needs the folder of a checkpoint", "--from FOLDER")
        say(f"{found.id}: {api.restore_checkpoint(given, found).folder}")
    elif action == "prune":
        say(f"{found.id}: {format_bytes(api.prune_checkpoints(found, keep=keep, copies=copies))} freed")
    elif copies or restore:
        there = api.checkpoint_copies(found, rehearsed=restore)
        _show(there, copies_document, as_json=as_json)
        if any(each.problem for each in there):
            raise typer.Exit(1)
    elif action == "verify":
        with byte_bar("verifying") as progress:
            verified = api.verify_checkpoints(found, step=step, progress=progress)
        _show(verified, checkpoints_document, as_json=as_json)
        if any(each.damage for each in verified):
            raise typer.Exit(1)
    else:
        _show(api.checkpoints(found), checkpoints_document, as_json=as_json)


def _given(value: str | None, problem: str, option: str) -> str:
    if value is None:
        raise UsageError(problem, hint=f"add `{option}`")
    return value


def _show(
    found: Sequence[CheckpointFacts] | Sequence[CopyFacts], document: Callable[..., Document], *, as_json: bool
) -> None:
    rows = [each.row() for each in found]
    show_facts(rows, lambda: document(rows, time.time()), as_json=as_json)


def export_command(
    run: OptionalRun = None,
    *,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="New folder for the model.")],
    step: Annotated[
        int | None, typer.Option("--step", help="Step of the checkpoint. [default: the newest complete one]")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="Take the checkpoint with the best evaluation.")] = False,
    dtype: Annotated[
        Literal["fp32", "bf16", "fp16"], typer.Option("--dtype", help="Number format of the weights.")
    ] = "fp32",
    merge: Annotated[
        bool, typer.Option("--merge", help="Add the adapter to the weights of its checkpoint: a whole model.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the loss of the files with that of the run; exits with 1 if not.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write `onnx/model.onnx` in fp32, too.")] = False,
    push: Annotated[
        str | None, typer.Option("--push", metavar="OWNER/NAME", help="Upload the folder to the Hugging Face Hub.")
    ] = None,
    public: Annotated[bool, typer.Option("--public", help="With `--push`: a new repository is public.")] = False,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """The folder gets safetensors files with Hugging Face names, config.json, the tokenizer and a model card.

    `AutoModelForCausalLM.from_pretrained(FOLDER)` opens it, and `model: {hf: FOLDER, weights: pretrained}` trains on
    from it. `masked-lm` and `image-classification` have their own Auto classes; a `module` exports only its weights,
    under its own names. A run with an `adapter` exports it as `peft` stores it, or the whole model with `--merge`. The
    folder is complete or absent. Checkpoints of every layout work; 5 GB of the model are in memory at a time.
    """
    from trainworks.api.checkpointing.exports import HandOver, export_model
    from trainworks.errors import UsageError
    from trainworks.report.rendering.progress_bar import byte_bar
    from trainworks.units import format_bytes

    found = find(run, runs)
    if best and step is not None:
        raise UsageError("`--best` and `--step` exclude each other")
    then = HandOver(check=check, onnx=onnx, push=push, public=public)
    with byte_bar("reading and writing") as progress:
        made = export_model(
            found.run_dir, to, step=step, best=best, dtype=dtype, merge=merge, then=then, progress=progress
        )
    if as_json:
        typer.echo(json.dumps({key: value for key, value in made.items() if key not in ("step", "folder")}, indent=2))
        return
    size = f"{made['tensors']:,} tensors, {format_bytes(made['bytes'])} of {made['dtype']} in {made['files']:,} file(s)"
    say(f"step {made['step']:,} of {found.id}: {size}")
    if compared := made.get("check"):
        losses = f"loss {compared['loss']:.6f}, the run's {compared['recorded']:.6f}"
        say(f"{losses}: the same within {compared['tolerance']:.2g} on {compared['samples']:,} held-out samples")
    if (error := made.get("onnx_difference")) is not None:
        say(f"onnx/model.onnx: logits in onnxruntime differ by {error:.1e} of the largest")
    if pushed := made.get("pushed"):
        say(pushed)
    typer.echo(made["folder"])
