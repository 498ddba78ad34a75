"""`trainworks health`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, option_errors
from trainworks.cli.output import show
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


class HealthFormat(enum.StrEnum):
    """Who reads the answer."""

    TEXT = "text"
    PROLOG = "prolog"
    HEALTHCHECK = "healthcheck"
    NPD = "npd"


def command(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="With --nodes: JSON of each node.")] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="NODE|RUN_FILE", help="What the node should have: `8x H100-SXM-80GB, 8x NDR`."),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Compare the nodes that wrote these files.")] = False,
    reader: Annotated[
        HealthFormat, typer.Option("--as", help="Answer as Slurm or node-problem-detector wants it.")
    ] = HealthFormat.TEXT,
    as_json: AsJson = False,
) -> None:
    """Reads, changes nothing, and takes under two seconds. Exit code 1 if a check failed, or if nodes differ.

    As `prolog` the same, with a line for each failure; Slurm then drains the node. As `healthcheck` it drains the node
    itself, and exits with 0. As `npd` it prints one line; exit code 1 is a problem, 2 and more mean not known.
    """
    if nodes != bool(files):
        raise UsageError("`--nodes` and files belong together", hint="trainworks health --nodes node*.json")
    if files:
        fleet = trainworks.fleet_health(files)
        show(fleet, as_json=as_json)
        raise typer.Exit(1 if fleet.failing or fleet.odd else 0)
    with option_errors():
        result = trainworks.health(expect)
    from trainworks.report.proving import health as words

    if reader is HealthFormat.TEXT or as_json:
        show(result, as_json=as_json)
    elif reader is HealthFormat.NPD:
        typer.echo(words.npd_line(result))
    elif reader is HealthFormat.PROLOG:
        for line in words.prolog_lines(result):
            typer.echo(line)
    else:
        from trainworks.api.proving.health import drain_unhealthy

        if drain_unhealthy(result, words.drain_reason(result)):
            say(words.drain_reason(result), err=True)
        return
    raise typer.Exit(1 if result.failed else 0)
