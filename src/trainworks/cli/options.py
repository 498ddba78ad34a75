"""Options and arguments that several commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import trainworks
from trainworks.errors import ArgumentError, DiskFullError, EnvironmentProblem, UsageError
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from trainworks.api.run_handle import Run
    from trainworks.report.rendering.console import SafeConsole


RunsOption = Annotated[
    Path | None, typer.Option("--runs", envvar="TRAINWORKS_RUNS", help="Folder of all runs. [default: runs]")
]
RunFilePath = Annotated[Path, typer.Argument(metavar="RUN_FILE", help="YAML run file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="NAME|RUN_FILE",
        help="Another cluster than this machine: `slurm`, or the cluster of a run file.",
        show_default=False,
    ),
]
Prices = Annotated[
    str | None, typer.Option("--prices", metavar="FILE|skypilot", help="Offers from a CSV, or from SkyPilot's tables.")
]
Env = Annotated[
    list[str] | None,
    typer.Option("--env", metavar="NAME[=VALUE]", help="Set a variable of the command; without a value, the shell's."),
]
Assume = Annotated[
    list[str] | None, typer.Option("--assume", metavar="NAME=VALUE", help="Replace an assumption of the catalogue.")
]


def read_settings(texts: list[str] | None, example: str = "optimizer.lr=1e-4") -> dict[str, str]:
    """The settings of `--set KEY=VALUE`, by key; later ones win.

    Raises:
        UsageError: a text is not KEY=VALUE; the hint shows `example`.
    """
    settings: dict[str, str] = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"`{text}` is not a setting", place="--set", hint=f"write it like `--set {example}`")
        settings.pop(key, None)  # a later one also wins over keys inside it
        settings[key] = value
    return settings


def runs_folder(option: Path | None, written: str = "runs") -> Path:
    """Where runs are kept: the option or $TRAINWORKS_RUNS, else what the run file says."""
    return option or Path(written)


def wide_console() -> SafeConsole:
    """A console as wide as the terminal; where there is none, wide enough that no figure is cut."""
    from trainworks.report.rendering.console import SafeConsole

    return SafeConsole() if sys.stdout.isatty() or "COLUMNS" in os.environ else SafeConsole(width=240)


def find(run: str | None, runs: Path | None) -> Run:
    """The run that an argument names; see `find_run`."""
    return trainworks.find_run(run, runs_folder(runs), notify=warn)


def find_each(names: list[str] | None, runs: Path | None, *, live: bool = False) -> list[Run]:
    """The runs that arguments name, all of an array by its id, or only those that live; the newest run without any."""
    return trainworks.find_runs(names or [], runs_folder(runs), live=live, notify=warn)


@contextmanager
def option_errors(
    option: str | None = None, path: Path | None = None, *, positional: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Place errors at the option that caused them.

    Every error of the block is about `option`, or about that of its argument when left out; `positional` has names on
    the command line of arguments without an option. `path` is the file that the option makes the block write.

    Raises:
        UsageError: an argument is not valid.
        EnvironmentProblem: the file cannot be written.
    """
    try:
        yield
    except ArgumentError as error:
        place = option or (positional or {}).get(error.argument, error.option)
        raise UsageError(error.message, place=place, hint=error.hint) from None
    except DiskFullError as error:
        hint = "free some space, or write it elsewhere"
        raise DiskFullError(error.message, place=option or error.place, hint=hint if path else error.hint) from None
    except OSError as error:
        if path is None:
            raise
        raise EnvironmentProblem(f"cannot write `{path}`: {error.strerror}", place=option) from None


def announce(message: str) -> None:
    """Print a line to stderr before a step that takes long."""
    say(message, err=True)


def warn(message: str) -> None:
    """Print a warning to stderr."""
    say(f"warning: {message}", err=True)


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a file that cannot be written, before anything is computed.

    Raises:
        UsageError: its folder does not exist, or the path is not a file.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"`{path.parent}` is not a folder", place=option)
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is not a file", place=option, hint="name a file to write")


def refuse_unused(option: str, others: Mapping[str, object]) -> None:
    """Refuse the options that a mode of a command would ignore.

    `others` has the value of each option that the mode of `option` does not use; one that is not given is None, False
    or 0.

    Raises:
        UsageError: one of them is given.
    """
    for name, value in others.items():
        if value:
            raise UsageError(f"`{option}` does not use `{name}`", place=name, hint="leave one of them out")
