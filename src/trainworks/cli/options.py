"""Options and arguments that several commands share."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trainworks.errors import UnknownRunError
from trainworks.record.run_dir import RunDir, find_run
from trainworks.report.console import SafeConsole

__all__ = [
    "AsJson",
    "Assume",
    "OptionalRun",
    "Prices",
    "RunFilePath",
    "RunsOption",
    "find",
    "runs_folder",
    "wide_console",
]

RunsOption = Annotated[
    Path | None, typer.Option("--runs", envvar="TRAINWORKS_RUNS", help="Folder of all runs; `runs` when left out.")
]
OptionalRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run id or folder; the newest when left out.")]
RunFilePath = Annotated[Path, typer.Argument(metavar="RUN_FILE", help="YAML run file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Prices = Annotated[
    str | None, typer.Option("--prices", metavar="FILE|skypilot", help="Offers from a CSV, or from SkyPilot's tables.")
]
Assume = Annotated[
    list[str] | None, typer.Option("--assume", metavar="NAME=VALUE", help="Replace an assumption of the catalogue.")
]


def runs_folder(option: Path | None, written: str = "runs") -> Path:
    """Where runs are kept: the option or $TRAINWORKS_RUNS, else what the run file says."""
    return option or Path(written)


def wide_console() -> Console:
    """As wide as the terminal; where there is none, wide enough that no figure is cut."""
    return SafeConsole() if sys.stdout.isatty() or "COLUMNS" in os.environ else SafeConsole(width=240)


def find(run: str | None, runs: Path | None) -> RunDir:
    """The run that an argument names: one of this folder, or that of a job, by its number or run."""
    try:
        return find_run(runs_folder(runs), run)
    except UnknownRunError:
        jobs = importlib.import_module("trainworks.cli.jobs")  # opens a database: not before it is needed
        found: RunDir | None = jobs.run_of_job(run) if run else None
        if found is None:
            raise
        return found
