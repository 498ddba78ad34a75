"""Print a result: as text, as JSON, as the derivation of one figure, or as an HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from trainworks.cli.options import option_errors, wide_console
from trainworks.plan.trace import Traced
from trainworks.report.explain import explain
from trainworks.report.rendering.renderer import build_document
from trainworks.report.rendering.text import print_document
from trainworks.results import Result

__all__ = ["show"]


def show(result: Result, *, as_json: bool = False, figure: str | None = None, plot: Path | None = None) -> None:
    """Print a result on stdout, as text unless an option says otherwise; write the page of `--plot` as well.

    Args:
        result: what a use case returned.
        as_json: print JSON.
        figure: print the derivation of the figure of this name.
        plot: file for the HTML page.

    Raises:
        UsageError: no figure has that name.
        EnvironmentProblem: the page cannot be written.
    """
    if plot is not None:
        with option_errors("--plot", plot):
            result.write_html(plot)
    if figure is not None:
        typer.echo(explain(_figures(result), figure))
    elif as_json:
        typer.echo(json.dumps(result.to_json(), indent=2))
    else:
        print_document(build_document(result), wide_console())


def _figures(result: Result) -> Sequence[Traced]:
    figures: Sequence[Traced] = getattr(result, "figures", ())
    return figures
