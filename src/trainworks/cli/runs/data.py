"""`trainworks data`."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

from trainworks.cli.options import AsJson
from trainworks.report.rendering.printable import say


def data_command(
    action: Annotated[
        Literal["prepare", "verify"], typer.Argument(metavar="prepare|verify", help="Action.", show_default=False)
    ],
    target: Annotated[
        str, typer.Argument(metavar="RUN_FILE|SOURCE", help="Run file, or a source as in `data.source`.")
    ],
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="FOLDER|ADDRESS", help="Destination of the shards, e.g. `s3://bucket/data`."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Processes that tokenize or encode. [default: one per core]"),
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
    image_format: Annotated[
        Literal["webp", "jpeg"] | None,
        typer.Option("--format", help="Encode images anew. [default: keep their bytes]", show_default=False),
    ] = None,
    quality: Annotated[
        int | None, typer.Option("--quality", min=1, max=100, help="Quality of `--format`. [default: 80]")
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", metavar="PIXELS", min=8, help="Shrink the shorter side of images to this with `--format`."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """`prepare` writes shards with checksums, and continues after an interruption; `verify` reads them back.

    A run prepares its data itself. Prepare it in advance if it is large, if several runs share it, or to upload it to a
    store. `verify` exits with 1 if a shard is damaged.
    """
    from trainworks.api.data import prepare_data, read_data, read_reencoding, verify_data
    from trainworks.report.data import prepared_lines, verified_lines
    from trainworks.report.rendering.progress_bar import byte_bar

    options = {"tokenizer": tokenizer, "vocabulary": vocabulary, "column": column, "split": split}
    if pack is not None:
        options |= {"pack": True, "sequence_length": pack}
    given = {name: value for name, value in options.items() if value is not None}
    data, evaluation = read_data(target, given, images=images)
    encoding = {"format": image_format, "quality": quality, "size": size}
    reencode = read_reencoding({name: value for name, value in encoding.items() if value is not None}, images=images)
    if action == "prepare":
        with byte_bar("preparing") as progress:
            prepared = prepare_data(
                data, evaluation, to=to, processes=processes, images=images, reencode=reencode, progress=progress
            )
        result, lines, damaged = dict(prepared), prepared_lines(prepared, len(data.sources)), False
    else:
        with byte_bar("verifying") as progress:
            verified = verify_data(data, progress=progress)
        result, lines, damaged = dict(verified), verified_lines(verified), bool(verified["damaged"])
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    for line in [] if as_json else lines:
        say(line)
    if damaged:
        raise typer.Exit(1)
