"""Arguments of the public functions: run files, clusters and quantities; an error names the argument."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.explaining import explaining_names
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.load import NO_SETTINGS, Settings, with_settings
from trainworks.config.run_description import is_run_description, load_tasks
from trainworks.config.run_file import Cluster, RunFile
from trainworks.config.source import Source
from trainworks.config.stack import is_stack_file
from trainworks.errors import ArgumentError, RunFileError, UsageError
from trainworks.units import Money, parse_duration, parse_share

RunInput = RunFile | Path | str
"""A run file, or its path."""
Quantity = float | str
"""A number in base units, or text with a unit: `3600` or `"1h"`."""
Progress = Callable[[float, str], None]
"""Called with the share of the work that is done, and its name."""

_T = TypeVar("_T")


def no_progress(share: float, text: str = "") -> None:
    """Ignore the progress."""


@contextmanager
def argument(name: str) -> Iterator[None]:
    """Attribute the errors of a block to an argument; those of a file keep their lines.

    Raises:
        ArgumentError: instead of a UsageError.
    """
    try:
        yield
    except RunFileError:
        raise
    except UsageError as error:
        raise ArgumentError(error.message, argument=name, hint=error.hint) from None


def read_tasks(path: Path, settings: Settings = NO_SETTINGS) -> list[tuple[RunFile, Source]]:
    """Read a file of any kind that describes runs: one task, or those of a pipeline; the settings are for each.

    Raises:
        UsageError: the file cannot be read.
        RunFileError: the file has problems.
    """
    with explaining_names():
        return load_tasks(path, settings)


def load_run(run: RunInput, settings: Settings = NO_SETTINGS) -> tuple[RunFile, Source | None]:
    """Read a file that describes one run, with its settings; an object is returned with them.

    Raises:
        UsageError: the file cannot be read, or is a pipeline.
        RunFileError: the file has problems.
    """
    if isinstance(run, RunFile):
        return with_settings(run, settings), None
    first, *others = read_tasks(Path(run), settings)
    if others:
        raise UsageError(
            f"`{run}` is a pipeline of {1 + len(others)} tasks", hint="write the task to a file of its own"
        )
    return first


def check_settings(run: RunInput | None, settings: Settings) -> None:
    """Refuse settings without a run file that they change.

    Raises:
        ArgumentError: there are some.
    """
    if settings and run is None:
        raise ArgumentError("settings change a run file, and none is given", argument="set", hint="name a run file")


def named_cluster(text: str) -> Cluster:
    """The cluster of a file that describes a run, by its path, else that of a stack file or of a name such as `slurm`.

    Raises:
        UsageError: the file cannot be read, or the name is of no backend.
        RunFileError: the file has problems.
    """
    describes_a_run = is_run_description(text) and not is_stack_file(text)
    return load_run(text)[0].cluster if describes_a_run else Cluster.named(text)


def on_cluster(run_file: RunFile, on: str | None) -> RunFile:
    """Replace the cluster of a run file.

    Raises:
        ArgumentError: the text does not describe a cluster.
    """
    if on is None:
        return run_file
    cluster_argument(on)
    cluster = Cluster(engine="described", of=on, price=run_file.cluster.hour_price)
    return run_file.model_copy(update={"cluster": cluster})


def cluster_argument(on: str) -> ClusterDescription:
    """Read the description of a cluster, or its stack file, from the argument `on`.

    Raises:
        ArgumentError: the text does not describe a cluster.
        RunFileError: the stack file has problems.
    """
    with argument("on"):
        return read_cluster(on)


def described_run(
    run: RunInput, on: str | None, *, task: str, settings: Settings = NO_SETTINGS
) -> tuple[RunFile, Source | None]:
    """Read a run file whose cluster, or its replacement, is a described one; of a command what it trains.

    Args:
        run: a run file.
        on: replaces its cluster.
        task: subject of the error, such as `storage is planned`.
        settings: other values by key of the run file.

    Raises:
        UsageError: the run file has no described cluster, and `on` is missing.
    """
    run_file, source = load_run(run, settings)
    run_file = on_cluster(run_file, on)
    if run_file.cluster.of is None:
        raise UsageError(
            f"{task} for a described cluster, and `cluster` is `{run_file.cluster.engine}`",
            place=source.place(("cluster",)) if source else None,
            hint='describe one in `cluster`, or with `--on "16 nodes of DGX H100"`',
        )
    return run_file.as_planned, source


def quantity(name: str, value: Quantity | None, parse: Callable[[str], float], *, zero: bool = False) -> float | None:
    """Read a quantity in base units.

    Args:
        name: of the argument.
        value: a number in base units, or text; None stays None.
        parse: reads the text.
        zero: whether 0 is valid.

    Raises:
        ArgumentError: the text cannot be read, or the number is not positive.
    """
    if value is None:
        return None
    with argument(name):
        number = parse(value) if isinstance(value, str) else float(value)
    if not math.isfinite(number) or number < 0 or (not number and not zero):
        least = "must not be negative" if zero else "must be greater than 0"
        raise ArgumentError(f"`{value}` {least}", argument=name)
    return number


def money(name: str, value: Quantity | None, *, zero: bool = False) -> Money | None:
    """Read an amount of money: `"50000 USD"`, `"500万元"`, or a number in US dollars; errors as of `quantity`."""
    if value is None:
        return None
    with argument(name):
        amount = Money.parse(value) if isinstance(value, str) else Money(float(value), "USD")
    return dataclasses.replace(amount, amount=quantity(name, amount.amount, float, zero=zero) or 0.0)


def seconds(name: str, value: Quantity | None, *, zero: bool = False) -> float | None:
    """Read a duration: `"30d"` or a number of seconds."""
    return quantity(name, value, parse_duration, zero=zero)


def share(name: str, value: Quantity | None) -> float | None:
    """Read a share: `"90%"` or a number from 0 to 1."""
    number = quantity(name, value, parse_share)
    if number is not None and number > 1:
        raise ArgumentError(f"`{value}` is not between 0 and 1", argument=name, hint="write it like `90%`")
    return number


def check_number(name: str, value: float | None, low: float, high: float) -> float | None:
    """Check that a number lies between two limits.

    Raises:
        ArgumentError: it does not.
    """
    if value is not None and not low <= value <= high:
        hint = "give a number between the two limits"
        raise ArgumentError(f"{value:g} is not between {low:,g} and {high:,g}", argument=name, hint=hint)
    return value
