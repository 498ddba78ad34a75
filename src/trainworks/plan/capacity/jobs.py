"""A trace of jobs: team, accelerators, submission time and run time of each.

A trace is CSV text with a header. `submit_s`, `accelerators` and `duration_s` are required. Columns may be in any
order; unknown columns are errors, because a misspelt one would be ignored silently.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import UsageError, suggest

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_LARGEST_S = 1e11
"""Seconds beyond which a time is a mistake: 3,170 years, after every clock's zero."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One line of a trace."""

    submit_s: float
    accelerators: int
    duration_s: float
    """Run time on the accelerators, without waiting and restarts."""
    team: str = ""
    priority: int = 0
    """A higher one goes first."""
    deadline_s: float | None = None
    """Latest end, in seconds after the submission."""
    preemptible: bool = False
    """True if the job may run on spot nodes."""
    checkpoint_s: float | None = None
    """Time between the checkpoints included in `duration_s`; None if the job has no interval of its own."""


@dataclass(frozen=True, slots=True)
class JobTrace:
    """Jobs in the order of submission, as arrays; the first is submitted at zero."""

    submit_s: Floats
    accelerators: Integers
    duration_s: Floats
    team: tuple[str, ...]
    priority: Integers
    deadline_s: Floats
    """Infinite where there is none."""
    preemptible: NDArray[np.bool_]
    checkpoint_s: Floats
    """NaN where the job has no interval of its own."""

    def __len__(self) -> int:
        return len(self.team)

    @property
    def span_s(self) -> float:
        """Time from the first submission to the end of the last job, if no job had to wait."""
        return float(np.max(self.submit_s + self.duration_s))

    @property
    def work_accelerator_s(self) -> float:
        """Accelerators times seconds that all jobs ask for."""
        return float(np.dot(self.accelerators, self.duration_s))

    def peak(self, demand: NDArray[Any] | None = None) -> int:
        """Most accelerators in use at once, if no job had to wait.

        Args:
            demand: of each job instead of its accelerators, such as its nodes.
        """
        amounts = self.accelerators if demand is None else demand
        at_s = np.concatenate([self.submit_s, self.submit_s + self.duration_s])
        change = np.concatenate([amounts, -amounts])
        order = np.lexsort((change, at_s))  # of events at one time those that give back come first
        return int(np.max(np.cumsum(change[order])))


def trace_of(jobs: Sequence[TraceJob]) -> JobTrace:
    """The trace of some jobs, in any order.

    Raises:
        UsageError: there is none.
    """
    if not jobs:
        raise UsageError("the trace has no jobs", hint="give at least one job")
    rows = sorted(jobs, key=lambda job: job.submit_s)
    return JobTrace(
        submit_s=np.array([job.submit_s - rows[0].submit_s for job in rows]),
        accelerators=np.array([job.accelerators for job in rows], dtype=np.int64),
        duration_s=np.array([job.duration_s for job in rows], dtype=np.float64),
        team=tuple(job.team for job in rows),
        priority=np.array([job.priority for job in rows], dtype=np.int64),
        deadline_s=np.array([math.inf if job.deadline_s is None else job.deadline_s for job in rows]),
        preemptible=np.array([job.preemptible for job in rows], dtype=np.bool_),
        checkpoint_s=np.array([math.nan if job.checkpoint_s is None else job.checkpoint_s for job in rows]),
    )


def parse_trace(text: str, *, name: str) -> JobTrace:
    """The trace in a CSV text; `name` is what errors call it.

    Empty optional cells mean the default. Lines that begin with `#` are comments.

    Raises:
        UsageError: a column or value is missing, unknown or out of its limits, with its line.
    """
    numbered = enumerate(text.removeprefix("\ufeff").splitlines(), 1)
    lines = [(number, line) for number, line in numbered if line.strip() and not line.lstrip().startswith("#")]
    if not lines:
        raise UsageError("the trace has no jobs", place=f"{name}:1", hint=f"its header is `{','.join(COLUMNS)}`")
    header = _cells(lines[0][1], f"{name}:{lines[0][0]}")
    _check_header(header, f"{name}:{lines[0][0]}")
    jobs = [_job(header, _cells(line, f"{name}:{number}"), f"{name}:{number}") for number, line in lines[1:]]
    if not jobs:
        raise UsageError(
            "the trace has a header but no jobs", place=f"{name}:{lines[0][0]}", hint="give a line per job"
        )
    return trace_of(jobs)


def trace_text(jobs: Sequence[TraceJob]) -> str:
    """The CSV text of some jobs, with all columns; `parse_trace` reads it."""
    lines = [",".join(COLUMNS)]
    for job in jobs:
        values = [getattr(job, column) for column in COLUMNS]
        cells = ("" if value is None else f"{value:d}" if isinstance(value, bool) else f"{value}" for value in values)
        lines.append(",".join(cells))
    return "".join(f"{line}\n" for line in lines)


def _cells(line: str, place: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]))]
    except csv.Error as error:
        raise UsageError(f"not CSV: {error}", place=place) from None


def _check_header(header: list[str], place: str) -> None:
    for column in header:
        if column not in COLUMNS:
            hint = suggest(column, COLUMNS, otherwise=f"known are {', '.join(COLUMNS)}")
            raise UsageError(f"unknown column `{column}`", place=place, hint=hint)
        if header.count(column) > 1:
            raise UsageError(f"duplicate column `{column}`", place=place, hint="keep one of them")
    missing = [column for column in _REQUIRED if column not in header]
    if missing:
        raise UsageError(f"no column `{missing[0]}`", place=place, hint=f"the header can be `{','.join(COLUMNS)}`")


def _job(header: list[str], cells: list[str], place: str) -> TraceJob:
    if len(cells) != len(header):
        raise UsageError(f"{len(cells)} cells, the header has {len(header)}", place=place, hint="quote a name with `,`")
    row = dict(zip(header, cells, strict=True))
    return TraceJob(
        **{column: _cell(column, cell, place) for column, cell in row.items() if cell or column in _REQUIRED}
    )


def _cell(column: str, cell: str, place: str) -> Any:
    read, limit = COLUMNS[column]
    try:
        return read(cell)
    except ValueError:
        raise UsageError(f"invalid {column} `{cell}`: it must be {limit}", place=f"{place}  {column}") from None


def _number(
    low: float, high: float = _LARGEST_S, *, above: bool = False, kind: type[float] = float
) -> Callable[[str], float]:
    def read(cell: str) -> float:
        value = kind(cell)
        if not low <= value <= high or (above and value == low):
            raise ValueError
        return value

    return read


def _yes_or_no(cell: str) -> bool:
    if cell.lower() not in ("1", "0", "true", "false", "yes", "no"):
        raise ValueError
    return cell.lower() in ("1", "true", "yes")


_REQUIRED = ("submit_s", "accelerators", "duration_s")
COLUMNS: dict[str, tuple[Callable[[str], Any], str]] = {
    "submit_s": (_number(0), "a number of seconds from 0, of any clock"),
    "accelerators": (_number(1, 1e6, kind=int), "a whole number from 1 to 1,000,000"),
    "duration_s": (_number(0, above=True), "a number of seconds above 0"),
    "team": (str, "a name"),
    "priority": (
        _number(-1e6, 1e6, kind=int),
        "a whole number from -1,000,000 to 1,000,000, the higher the sooner",
    ),
    "deadline_s": (_number(0, above=True), "a number of seconds after the submission, above 0"),
    "preemptible": (_yes_or_no, "1 or 0"),
    "checkpoint_s": (_number(0, above=True), "a number of seconds above 0"),
}
"""Parser of the cells of each column, and the values it accepts."""
