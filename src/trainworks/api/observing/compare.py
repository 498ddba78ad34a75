"""Compare two runs: settings, plan, step parts, losses and cost."""

from __future__ import annotations

from pathlib import Path

from trainworks.api.run_handle import Run, as_run
from trainworks.report.runs.run_comparison import RunComparison, compare_reports

__all__ = ["RunComparison", "compare", "compare_reports"]


def compare(first: Run | str, second: Run | str, *, folder: Path | str = "runs") -> RunComparison:
    """Show what two runs were given, planned and measured differently.

    Args:
        first: a run, or its id or path, or the number of its job.
        second: the other one; differences are relative to the first.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    >>> import tempfile, trainworks
    >>> one, other = (trainworks.run(["true"], folder=tempfile.mkdtemp(), name=name) for name in ("one", "other"))
    >>> [setting.name for setting in compare(one, other).settings]
    ['name']
    """
    runs = [as_run(each, folder) for each in (first, second)]
    return compare_reports([(run.resolved, run.report()) for run in runs])
