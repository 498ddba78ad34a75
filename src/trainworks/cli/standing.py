"""Where a run stands, held against the job store: a run directory alone may say that a job waits that no queue has."""

from __future__ import annotations

import importlib
from typing import Any

from trainworks.errors import EnvironmentProblem
from trainworks.jobs.state import JobState
from trainworks.record.run_dir import RunDir

__all__ = ["standing"]

_NOT_SUBMITTED = "not submitted: the job store does not have it"


def standing(run_dir: RunDir, state: JobState) -> tuple[JobState, str | None]:
    """The state of a run, and a note: one that says it waits, and is in no store, was never submitted.

    Args:
        run_dir: of the run.
        state: as its own record has it.
    """
    if not state.waits:
        return state, None
    jobs: Any = importlib.import_module("trainworks.cli.jobs")  # opens a database: not before it is needed
    try:
        return (state, None) if jobs.job_of_run(run_dir) is not None else (JobState.CREATED, _NOT_SUBMITTED)
    except EnvironmentProblem as problem:
        return state, problem.message
