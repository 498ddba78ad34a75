"""`trainworks checkpoint`."""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find
from trainworks.cli.output import show_document
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trainworks.api.checkpointing.checkpoints import CheckpointFacts
    from trainworks.api.checkpointing.copies import CopyFacts
    from trainworks.report.rendering.document import Document


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
    from trainworks.report.checkpoints import copies_document, document
    from trainworks.report.rendering.progress_bar import byte_bar
    from trainworks.units import format_bytes

    found = find(run, runs)
    if action is CheckpointAction.COPY:
        copied = api.copy_checkpoint(found, to=_given(to, "`copy` needs a folder", "--to FOLDER"), step=step)
        say(f"{found.id}: {copied.place or copied.folder}")
    elif action is CheckpointAction.RESTORE:
        given = _given(source, "`restore` needs the folder of a checkpoint", "--from FOLDER")
        say(f"{found.id}: {api.restore_checkpoint(given, found).folder}")
    elif action is CheckpointAction.PRUNE:
        say(f"{found.id}: {format_bytes(api.prune_checkpoints(found, keep=keep, copies=copies))} freed")
    elif copies or restore:
        there = api.checkpoint_copies(found, rehearsed=restore)
        _show(there, copies_document, as_json=as_json)
        if any(each.problem for each in there):
            raise typer.Exit(1)
    elif action is CheckpointAction.VERIFY:
        with byte_bar("verifying") as progress:
            verified = api.verify_checkpoints(found, step=step, progress=progress)
        _show(verified, document, as_json=as_json)
        if any(each.damage for each in verified):
            raise typer.Exit(1)
    else:
        _show(api.checkpoints(found), document, as_json=as_json)


def _given(value: str | None, problem: str, option: str) -> str:
    if value is None:
        raise UsageError(problem, hint=f"add `{option}`")
    return value


def _show(
    found: Sequence[CheckpointFacts] | Sequence[CopyFacts], document: Callable[..., Document], *, as_json: bool
) -> None:
    rows = [each.row() for each in found]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        show_document(document(rows, time.time()))
