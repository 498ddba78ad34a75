"""`trainworks storage`."""

from __future__ import annotations

from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Settings
from trainworks.cli.options import AsJson, RunFilePath, option_errors, read_settings
from trainworks.cli.output import Html, Pdf, check_pages, show


def storage_command(
    run_file: RunFilePath,
    settings: Settings = None,
    on: Annotated[
        str | None, typer.Option(metavar="CLUSTER", help="Plan for this cluster: `16 nodes of DGX H100`.")
    ] = None,
    dataset_size: Annotated[str | None, typer.Option(metavar="SIZE", help="Size of the stored data: `10 TB`.")] = None,
    files: Annotated[str | None, typer.Option(metavar="COUNT", help="Number of files, e.g. `14M`.")] = None,
    stall: Annotated[
        str | None,
        typer.Option(
            metavar="SHARE", help="For saves that stop the training: the share of the time that they may take."
        ),
    ] = None,
    restart: Annotated[str, typer.Option(metavar="TIME", help="Time to read the newest checkpoint, at most.")] = "5m",
    explain: Annotated[
        str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure: `checkpoint write`.")
    ] = None,
    html: Html = None,
    pdf: Pdf = None,
    as_json: AsJson = False,
) -> None:
    """Computes read and checkpoint rates and the needs of each node, and rates every kind of storage."""
    check_pages(html, pdf)
    values = read_settings(settings)
    with option_errors():
        plan = trainworks.storage(
            run_file, settings=values, on=on, dataset_size=dataset_size, files=files, stall=stall, restart=restart
        )
    show(plan, as_json=as_json, figure=explain, html=html, pdf=pdf)
