"""`trainworks env`."""

from __future__ import annotations

import json

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find


def command(run: OptionalRun = None, runs: RunsOption = None, as_json: AsJson = False) -> None:
    """Prints a lock file that installs the same packages again: `trainworks env RUN > requirements.lock`.

    Its first lines are comments with Python, CUDA and driver, and with nodes that have other packages.
    """
    found = trainworks.env(find(run, runs))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        typer.echo(found.lock, nl=False)
