"""The runs of a folder as a list that shows itself as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainworks.api.run_handle import Run
from trainworks.record.runs_folder import list_runs
from trainworks.report.artifacts import RunTable
from trainworks.report.runs.run_progress import RunFollower


class RunList(RunTable, list[Run]):
    """Runs, newest first. `print` shows a row for each, as `trainworks ls` does; so does the last line of a cell."""

    _repr_pretty_ = RunTable._repr_pretty_

    def rows(self) -> list[Mapping[str, Any]]:
        """State, step, loss, time of the last change and cause of each run; None where a run has none."""
        return [_row(run) for run in self]


def runs(folder: Path | str = "runs") -> RunList:
    """Runs of a folder, newest first.

    Examples:
        >>> import tempfile, trainworks
        >>> folder = tempfile.mkdtemp()
        >>> started = [trainworks.run(["true"], folder=folder) for _ in range(2)]
        >>> [(run.id, str(run.state)) for run in runs(folder)]
        [('true-2', 'SUCCEEDED'), ('true-1', 'SUCCEEDED')]
    """
    return RunList(map(Run, reversed(list_runs(Path(folder)))))


def _row(run: Run) -> Mapping[str, Any]:
    progress = RunFollower(run.run_dir).look()
    state, note = run.standing()
    return {
        "run": run.id,
        "state": str(state),
        "step": progress.latest["step"] if progress.latest else None,
        "loss": progress.latest.get("loss") if progress.latest else None,
        "updated_at": progress.status.updated_at,
        "cause": note or progress.status.cause,
    }
