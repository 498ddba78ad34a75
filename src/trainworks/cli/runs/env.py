"""`trainworks env`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find, option_errors
from trainworks.units import format_bytes


def command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    prune: Annotated[
        str | None,
        typer.Option("--prune", metavar="TIME", help="Delete environments of this machine, not used for `30d`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prints a lock file that installs the same packages again: `trainworks env RUN > requirements.lock`.

    Its first lines are comments with Python, CUDA and driver, and with nodes that have other packages.
    """
    if prune is not None:
        _prune(prune, as_json=as_json)
        return
    found = trainworks.env(find(run, runs))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        typer.echo(found.lock, nl=False)


def _prune(unused_for: str, *, as_json: bool) -> None:
    with option_errors("--prune"):
        found = trainworks.prune_environments(unused_for)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        typer.echo(f"{'in use ' if one.is_in_use else 'deleted'} {one.key} {format_bytes(one.num_bytes)}")
    freed = sum(one.num_bytes for one in found if not one.is_in_use)
    typer.echo(f"{format_bytes(freed)} freed")
