"""`trainworks health`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.options import AsJson, option_errors
from trainworks.cli.output import show
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say


def health_command(
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE", help="With --nodes: JSON of each node.")] = None,
    expect: Annotated[
        str | None,
        typer.Option(metavar="NODE|RUN_FILE|STACK_FILE", help="What the node should have: `8x H100-SXM-80GB, 8x NDR`."),
    ] = None,
    nodes: Annotated[bool, typer.Option("--nodes", help="Compare the nodes that wrote these files.")] = False,
    reader: Annotated[
        Literal["text", "prolog", "healthcheck", "npd"],
        typer.Option("--as", help="Answer as Slurm or node-problem-detector wants it."),
    ] = "text",
    drain: Annotated[
        str | None,
        typer.Option(
            "--drain", metavar="NAME|RUN_FILE", help="With --nodes: start no job of this cluster where a check failed."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Takes under two seconds, and changes nothing without --drain. Exit code 1 if a check failed, or if nodes differ.

    As `prolog` the same, with a line for each failure; Slurm then drains the node. As `healthcheck` it drains the node
    itself, and exits with 0. As `npd` it prints one line; exit code 1 is a problem, 2 and more mean not known.
    """
    if nodes != bool(files) or (drain and not nodes):
        hint = "trainworks health --nodes node*.json --drain slurm" if drain else "trainworks health --nodes node*.json"
        raise UsageError("`--nodes` and files belong together", hint=hint)
    if files:
        raise typer.Exit(_compare(files, drain, as_json=as_json))
    is_text = reader == "text" or as_json
    with option_errors():
        result = trainworks.health(expect, with_history=is_text)  # the other readers get failures alone
    if is_text:
        show(result, as_json=as_json)
    else:
        from trainworks.report.proving import health as words

        for line in words.answer_lines(result, reader):
            typer.echo(line)
    if reader == "healthcheck" and not is_text:
        from trainworks.api.proving.health import drain_unhealthy

        if drain_unhealthy(result, words.drain_reason(result)):
            say(words.drain_reason(result), err=True)
        return
    raise typer.Exit(1 if result.failed else 0)


def _compare(files: list[Path], cluster: str | None, *, as_json: bool) -> int:
    """Show the nodes of a fleet, and drain those that fail where a cluster is named; returns the exit code."""
    fleet = trainworks.fleet_health(files)
    show(fleet, as_json=as_json)
    if cluster is not None:
        from trainworks.api.proving.health import drain_failing

        with option_errors():
            for node in drain_failing(fleet, cluster):
                say(f"{node} takes no more jobs", err=True)
    return 1 if fleet.failing or fleet.odd else 0
