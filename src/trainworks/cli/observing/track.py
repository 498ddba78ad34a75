"""`trainworks track`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, option_errors, runs_folder
from trainworks.cli.output import show


def track_command(
    run: OptionalRun = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="TRACKER", help="tensorboard, mlflow or wandb. [default: those of the run file]"),
    ] = None,
    uri: Annotated[str | None, typer.Option(help="Tracking server of MLflow. [default: $MLFLOW_TRACKING_URI]")] = None,
    experiment: Annotated[
        str | None, typer.Option(help="Experiment of MLflow, project of W&B. [default: name of the run file]")
    ] = None,
    register_as: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Registered model of MLflow that gets the newest checkpoint.")
    ] = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Sends what the tracker lacks, of a run of the past or of a live one, and continues where the last call stopped.

    A run with `track:` in its run file is sent while it runs; this sends what could not be sent then.
    """
    with option_errors():
        report = trainworks.track(
            run, to or (), uri=uri, experiment=experiment, register_as=register_as, folder=runs_folder(runs)
        )
    show(report, as_json=as_json)
