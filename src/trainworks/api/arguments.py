"""What several commands do with their options: read them, put them into a run file, and blame them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from trainworks.catalog.cluster import parse_cluster
from trainworks.config.run_file import RunFile
from trainworks.errors import DiskFullError, EnvironmentProblem, UsageError

__all__ = ["blamed_on", "check_writable", "interval_of", "node_mttf_of", "on_cluster", "option_value", "said_by"]

_T = TypeVar("_T")


def option_value(option: str, parse: Callable[[str], _T], text: str | None, *, zero: bool = False) -> _T | None:
    """What an option says; None where it is left out.

    Args:
        option: that is blamed.
        parse: raises a UsageError where it cannot read the text.
        text: as it was written.
        zero: whether nothing is an answer.

    Raises:
        UsageError: the text cannot be read, or says nothing where something is needed.
    """
    if text is None:
        return None
    with said_by(option):
        value = parse(text)
    if not value and not zero:
        raise UsageError(f"`{text}` is nothing", place=option, hint="it has to be above 0")
    return value


def on_cluster(run_file: RunFile, on: str | None) -> RunFile:
    """The run file with the cluster of `--on`, if that was given.

    Raises:
        UsageError: the text describes no cluster; it is blamed here on the option, later on the run file.
    """
    if on is None:
        return run_file
    with said_by("--on"):
        parse_cluster(on)
    cluster = run_file.cluster.model_copy(update={"engine": "described", "of": on})
    return run_file.model_copy(update={"cluster": cluster})


def interval_of(run_file: RunFile, step_time_s: float) -> float | None:
    """Seconds between the checkpoints that the run file asks for; None where that is left to the planner."""
    every = run_file.checkpoint.every
    return every.seconds if every.steps is None else every.steps * step_time_s


def node_mttf_of(run_file: RunFile) -> float | None:
    """Seconds that the run file itself gives; None where a published fleet has to say it."""
    return run_file.recover.node_mttf


@contextmanager
def said_by(option: str) -> Iterator[None]:
    """Errors of reading what an option says name the option.

    Raises:
        UsageError: with the option as its place.
    """
    try:
        yield
    except UsageError as error:
        raise UsageError(error.message, place=option, hint=error.hint) from None


def check_writable(path: Path | None, option: str) -> None:
    """Before anything is computed: a file that cannot be written is refused.

    Raises:
        UsageError: there is no such folder, or the path is no file.
    """
    if path is None:
        return
    if not path.absolute().parent.is_dir():
        raise UsageError(f"`{path.parent}` is no folder", place=option)
    if path.exists() and not path.is_file():
        raise UsageError(f"`{path}` is no file", place=option, hint="name a file to write")


@contextmanager
def blamed_on(option: str, path: Path) -> Iterator[None]:
    """Errors of writing a file name the option that asked for it.

    Raises:
        DiskFullError: no space left.
        EnvironmentProblem: it cannot be written.
    """
    try:
        yield
    except DiskFullError as error:
        raise DiskFullError(error.message, place=option, hint="free some space, or write it elsewhere") from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot write `{path}`: {error.strerror}", place=option) from None
