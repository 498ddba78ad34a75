"""`trainworks top`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import AsJson, RunsOption, runs_folder, wide_console
from trainworks.cli.output import show

if TYPE_CHECKING:
    from trainworks.api.observing.top import Overview


def top_command(
    runs: RunsOption = None,
    every: Annotated[float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Shows runs that wait or run, the nodes of this machine's queue, and accelerators; Ctrl-C ends it.

    Without a terminal it prints once. A running run whose last step is old is marked.
    """
    from trainworks.api.observing.top import LiveRuns

    live = LiveRuns(runs_folder(runs))
    if once or as_json or not sys.stdout.isatty():
        show(live.look(), as_json=as_json)
        return
    _watch(live.follow(every))


def _watch(overviews: Iterator[Overview]) -> None:
    """Replace the picture in place until Ctrl-C."""
    from rich.live import Live
    from rich.text import Text

    from trainworks.report.rendering.renderer import build_document
    from trainworks.report.rendering.text import render_text

    console = wide_console()
    with Live(console=console, screen=True, auto_refresh=False) as picture:
        for overview in overviews:
            text = render_text(build_document(overview), width=console.width)
            picture.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)
