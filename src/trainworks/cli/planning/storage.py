"""`trainworks storage`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, RunFilePath, option_errors
from trainworks.cli.output import show

__all__ = ["command"]

On = Annotated[
    str | None, typer.Option("--on", metavar="CLUSTER", help="Plan for this cluster: `16 nodes of DGX H100`.")
]
DatasetSize = Annotated[
    str | None, typer.Option("--dataset-size", metavar="SIZE", help="Size of the stored data: `10 TB`.")
]
Files = Annotated[str | None, typer.Option("--files", metavar="COUNT", help="Number of files, e.g. `14M`.")]
Stall = Annotated[
    str | None,
    typer.Option(
        "--stall", metavar="SHARE", help="For saves that stop the training: the share of the time that they may take."
    ),
]
Restart = Annotated[str, typer.Option("--restart", metavar="TIME", help="Time to read the newest checkpoint, at most.")]
Explain = Annotated[
    str | None,
    typer.Option("--explain", metavar="FIGURE", help="Print the derivation of a figure: `checkpoint write`."),
]


def command(
    run_file: RunFilePath,
    on: On = None,
    dataset_size: DatasetSize = None,
    files: Files = None,
    stall: Stall = None,
    restart: Restart = "5m",
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Computes read and checkpoint rates and the needs of each node, and rates every kind of storage."""
    with option_errors():
        plan = trainworks.storage(run_file, on=on, dataset_size=dataset_size, files=files, stall=stall, restart=restart)
    show(plan, as_json=as_json, figure=explain)
