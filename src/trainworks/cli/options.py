"""Options and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.record.run_dir import RunDir, find_run

__all__ = ["AsJson", "OptionalRun", "RunFilePath", "RunsOption", "find", "runs_folder"]

RunsOption = Annotated[
    Path | None, typer.Option("--runs", envvar="TRAINWORKS_RUNS", help="Folder of all runs; `runs` when left out.")
]
OptionalRun = Annotated[str | None, typer.Argument(metavar="[RUN]", help="Run id or folder; the newest when left out.")]
RunFilePath = Annotated[Path, typer.Argument(metavar="RUN_FILE", help="YAML run file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def runs_folder(option: Path | None, written: str = "runs") -> Path:
    """Where runs are kept: the option or $TRAINWORKS_RUNS, else what the run file says."""
    return option or Path(written)


def find(run: str | None, runs: Path | None) -> RunDir:
    """The run that an argument names."""
    return find_run(runs_folder(runs), run)
