"""Change the priority, the time limit and other values of waiting jobs that need no new plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainworks.api.jobs import Job, find_job, is_array_id, jobs_of_array
from trainworks.api.notices import Notify, warn
from trainworks.api.resuming.changes import RunChange, changes_between
from trainworks.backends.editing import EDITABLE
from trainworks.config.load import with_settings, yaml_value
from trainworks.errors import UsageError, suggest

_INSTEAD = {"job.hold": "use `trainworks hold JOB` and `trainworks release JOB`"}


@dataclass(frozen=True, slots=True)
class EditedJob:
    """A waiting job, and which of its values have changed."""

    job: Job
    changes: tuple[RunChange, ...]


def edit(
    name: str, settings: Mapping[str, Any], folder: Path | str = "runs", *, notify: Notify = warn
) -> list[EditedJob]:
    """Change values of a job that waits, or of every waiting job of an array.

    Each job changes as a whole or not at all; the jobs of an array change in order, until one is refused. A job keeps
    its number, its run directory and, unless the priority changes, its place in the queue.

    Args:
        name: of a run as for `find_job`, or id of an array.
        settings: other values by key of the run file: `{"job.priority": 90, "job.time_limit": "2h"}`. The keys are
            `name`, `job.team`, `job.priority`, `job.preemptible`, `job.time_limit`, `job.grace`, `job.exclude`,
            `job.depends_on`, `recover.max_restarts` and `recover.restart_window`.
        folder: folder of all runs.
        notify: receives warnings.

    Raises:
        NotOwnerError: the job belongs to another user.
        RunFileError: a value is not valid.
        UnknownRunError: no such job.
        UsageError: a key needs a new plan, the job does not wait, or its backend cannot change it.
    """
    values = {key: yaml_value(key, value) for key, value in settings.items()}
    for key in values:
        _check_key(key)
    if not is_array_id(name):
        return [_edited(find_job(name, folder, notify=notify), values)]
    if "job.depends_on" in values:
        message = f"`job.depends_on` orders the jobs of {name}, and cannot change for all of them"
        raise UsageError(message, hint="edit one job of the array by its number")
    waiting = [job for job in jobs_of_array(name, notify=notify) if job.state.waits]
    if not waiting:
        raise UsageError(f"no job of {name} waits", hint=f"trainworks ps --array {name}")
    return [_edited(job, values) for job in waiting]


def _check_key(key: str) -> None:
    if key not in EDITABLE:
        known = ", ".join(f"`{name}`" for name in EDITABLE)
        otherwise = _INSTEAD.get(key) or f"stop the job and submit it again; a waiting job can change {known}"
        hint = suggest(key, EDITABLE, otherwise=otherwise, cutoff=0.8)
        raise UsageError(f"`{key}` cannot change in a waiting job", place=f"--set {key}", hint=hint)


def _edited(job: Job, values: Mapping[str, Any]) -> EditedJob:
    before, after = job.edit(lambda run_file: with_settings(run_file, values))
    return EditedJob(job, tuple(changes_between(before, after)))
