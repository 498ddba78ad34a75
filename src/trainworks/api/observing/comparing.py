"""Runs compared: two side by side, or any number over each other."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from trainworks.api.run_handle import Run, as_run
from trainworks.report.pages.overlay import OverlaidRun, RunOverlay
from trainworks.report.runs.run_comparison import RunComparison, compare_reports, losses_of, settings_of

__all__ = ["compare"]


@overload
def compare(first: Run | str, second: Run | str, *, folder: Path | str = "runs") -> RunComparison: ...


@overload
def compare(
    first: Run | str, second: Run | str, third: Run | str, /, *more: Run | str, folder: Path | str = "runs"
) -> RunOverlay: ...


def compare(
    first: Run | str, second: Run | str, *more: Run | str, folder: Path | str = "runs"
) -> RunComparison | RunOverlay:
    """Show what runs were given, planned and measured differently.

    Two have every difference with its figure. More lie over each other, and those that differ by their seed alone have
    one curve, the mean, with its spread.

    Args:
        first: a run, or its id or path, or the number of its job.
        second: the other one; differences are relative to the first.
        more: further runs.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    >>> import tempfile, trainworks
    >>> one, other = (trainworks.run(["true"], folder=tempfile.mkdtemp(), name=name) for name in ("one", "other"))
    >>> [setting.name for setting in compare(one, other).settings]
    ['name']
    """
    runs = [as_run(each, folder) for each in (first, second, *more)]
    reports = [(run.resolved, run.report()) for run in runs]
    if not more:
        return compare_reports(reports)
    return RunOverlay(
        tuple(OverlaidRun("", report, settings_of(resolved), losses_of(report)) for resolved, report in reports)
    )
