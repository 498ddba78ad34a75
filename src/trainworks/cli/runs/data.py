"""`trainworks data`."""

from __future__ import annotations

import importlib.util
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from trainworks.api.worker_call import ask
from trainworks.cli.options import AsJson
from trainworks.config.data import Data
from trainworks.config.load import invalid_value, load_run_file
from trainworks.errors import MissingExtraError, UsageError
from trainworks.host.corpus import anchored_data, check_sources
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import say
from trainworks.units import format_bytes, format_count, format_duration

__all__ = ["command"]

_RUN_FILES = (".yaml", ".yml")


class DataAction(StrEnum):
    """What to do with data."""

    PREPARE = "prepare"
    VERIFY = "verify"


def command(
    action: Annotated[DataAction, typer.Argument(metavar="prepare|verify", help="Action.", show_default=False)],
    target: Annotated[
        str, typer.Argument(metavar="RUN_FILE|SOURCE", help="Run file, or a source as in `data.source`.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FOLDER|ADDRESS", help="Destination of the shards, e.g. `s3://bucket/data`."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Processes that tokenize. [default: one per core]")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="A tokenizer.json. [default: train a tokenizer]")
    ] = None,
    vocabulary: Annotated[int | None, typer.Option("--vocabulary", help="Vocabulary of a trained tokenizer.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="Column or key of the text.")] = None,
    split: Annotated[str | None, typer.Option("--split", help="Split of a dataset.")] = None,
    pack: Annotated[
        int | None,
        typer.Option("--pack", metavar="TOKENS", min=2, help="Pack documents into sequences of this length."),
    ] = None,
    images: Annotated[
        bool, typer.Option("--images", help="The source is a folder of images, one folder per class.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """`prepare` writes shards with checksums, and continues after an interruption; `verify` reads them back.

    A run prepares its data itself. Prepare it in advance if it is large, if several runs share it, or to upload it to a
    store. `verify` exits with 1 if a shard is damaged.
    """
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingExtraError("tokenizers", "train")
    options = {"tokenizer": tokenizer, "vocabulary": vocabulary, "column": column, "split": split}
    if pack is not None:
        options |= {"pack": True, "sequence_length": pack}
    data = _data(target, {name: value for name, value in options.items() if value is not None}, images=images)
    if action is DataAction.PREPARE:
        _prepare(data, target, to, processes, as_json=as_json)
    else:
        _verify(data, as_json=as_json)


def _data(target: str, options: dict[str, Any], *, images: bool) -> Data:
    """Of the run file, or of a source with options."""
    if Path(target).suffix in _RUN_FILES:
        if options or images:
            raise UsageError("options of the data stand in the run file", hint="leave them out of the command")
        run_file, source = load_run_file(Path(target))
        if run_file.workload is None or not run_file.workload.data.sources:
            raise UsageError(f"`{target}` has no `workload.data.source`", place=source.place(("workload", "data")))
        return anchored_data(run_file.workload.data)
    try:
        data = Data.model_validate({"source": target} | options | ({"image_size": 224} if images else {}))
    except ValidationError as error:
        detail = error.errors()[0]
        message, hint = invalid_value(detail, detail["loc"])
        raise UsageError(message, hint=hint) from None
    return anchored_data(data)


def _prepare(data: Data, target: str, to: str | None, processes: int | None, *, as_json: bool) -> None:
    check_sources(data)
    shards_of_images = data.image_size is not None and len(data.sources) == 1
    request = {"data": data.model_dump(mode="json"), "to": to, "processes": processes, "images": shards_of_images}
    with _bar("preparing") as bar:
        made = ask("prepare", request, lambda done, total: _advance(bar, done, total))
    if as_json:
        typer.echo(json.dumps(made, indent=2))
        return
    amount = f"{made['num_items']:,} images of {made['classes']} classes"
    if made["num_tokens"]:
        amount = f"{format_count(made['num_tokens'])} tokens"
        if made["num_bytes_of_text"]:
            amount += f" of {format_bytes(made['num_bytes_of_text'])} of text"
    where = f"in {made['num_shards']} shards" if made["num_shards"] else f"of {len(data.sources)} sources"
    say(f"{amount} {where}, {format_duration(made['seconds'])}")
    if made["padding_tokens"]:
        say(f"packed: {made['padding_tokens'] / made['num_items']:.2%} of the tokens are filler")
    say(f"folder       {made['folder']}")
    say(f"fingerprint  {made['fingerprint']}")


def _verify(data: Data, *, as_json: bool) -> None:
    with _bar("verifying") as bar:
        addresses = [source.source for source in data.sources]
        found = ask("verify", {"addresses": addresses}, lambda done, total: _advance(bar, done, total))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        for damage in found["damaged"]:
            say(f"{damage['folder']}/{damage['shard']}: {damage['problem']}")
        wrong = f"{len(found['damaged'])} damaged" if found["damaged"] else "all as written"
        say(f"{found['shards']} shards, {format_bytes(found['num_bytes'])}: {wrong}")
    if found["damaged"]:
        raise typer.Exit(1)


def _bar(what: str) -> Progress:
    columns = (
        TextColumn(what),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    bar.add_task(what, total=None)
    return bar


def _advance(bar: Progress, done: int, total: int) -> None:
    bar.update(bar.task_ids[0], completed=done, total=total)
