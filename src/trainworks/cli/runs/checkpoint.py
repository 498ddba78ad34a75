"""`trainworks checkpoint`."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.cli.output import show_document
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.checkpointing.checkpoints import CheckpointFacts


class CheckpointAction(StrEnum):
    """What to do with checkpoints."""

    LS = "ls"
    VERIFY = "verify"
    COPY = "copy"
    RESTORE = "restore"
    PRUNE = "prune"


def command(
    action: Annotated[
        CheckpointAction,
        typer.Argument(metavar="ls|verify|copy|restore|prune", help="Action.", show_default=False),
    ],
    run: OptionalRun = None,
    step: Annotated[
        int | None, typer.Option("--step", help="With `verify` and `copy`: the checkpoint of this step.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="With `copy`: where to.")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FOLDER", help="With `restore`: folder of the checkpoint.")
    ] = None,
    keep: Annotated[int, typer.Option("--keep", min=1, help="With `prune`: complete checkpoints to keep.")] = 1,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """`ls` checks manifests and sizes; `verify` reads every file, and exits with 1 if a checkpoint is damaged.

    `copy` writes a verified copy of the newest complete checkpoint to another disk, `restore` brings a copy back, and
    `resume` then continues from the newest. `prune` deletes older checkpoints of a run that is not live.
    """
    from trainworks.api.checkpointing.checkpoints import (
        checkpoints,
        copy_checkpoint,
        prune_checkpoints,
        restore_checkpoint,
        verify_checkpoints,
    )
    from trainworks.report.rendering.progress_bar import byte_bar
    from trainworks.units import format_bytes

    found = find(run, runs)
    if action is CheckpointAction.COPY:
        if to is None:
            raise UsageError("`copy` needs a folder", hint="add `--to FOLDER`")
        say(f"{found.id}: {copy_checkpoint(found, to=to, step=step).folder}")
    elif action is CheckpointAction.RESTORE:
        if source is None:
            raise UsageError("`restore` needs the folder of a checkpoint", hint="add `--from FOLDER`")
        say(f"{found.id}: {restore_checkpoint(source, found).folder}")
    elif action is CheckpointAction.PRUNE:
        say(f"{found.id}: {format_bytes(prune_checkpoints(found, keep=keep))} freed")
    elif action is CheckpointAction.VERIFY:
        with byte_bar("verifying") as progress:
            verified = verify_checkpoints(found, step=step, progress=progress)
        _show(verified, as_json=as_json)
        if any(each.damage for each in verified):
            raise typer.Exit(1)
    else:
        _show(checkpoints(found), as_json=as_json)


def _show(found: list[CheckpointFacts], *, as_json: bool) -> None:
    rows = [_row(each) for each in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    from trainworks.report.checkpoints import document

    show_document(document(rows, time.time()))


def _row(each: CheckpointFacts) -> dict[str, Any]:
    manifest = each.manifest
    return {
        "step": each.step,
        "folder": str(each.folder),
        "bytes": each.num_bytes,
        "saved_at": manifest.created_at if manifest else None,
        "layout": manifest.layout.describe() if manifest else None,
        "problem": str(each.damage) if each.damage else None,
    }
