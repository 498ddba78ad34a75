"""Change a waiting job: its row in the job store and the resolved run in its run directory, as one.

The changed resolved run is first written beside the old one. Then one statement changes the row, which is what counts.
Then the file takes its place. If the process is killed in between, the row tells which of the two files is right:
`finish_edit` puts it in place before the job starts, and before it changes again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from trainworks.backends.backend import Backend
from trainworks.backends.ownership import check_may_change
from trainworks.backends.submission import check_dependencies, check_waits, submit_lock
from trainworks.errors import EnvironmentProblem, NotOwnerError, UsageError
from trainworks.host.clock import Clock
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.job_spec import JobSpec, parse_dependency
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir
from trainworks.system import user_id

if TYPE_CHECKING:
    from trainworks.config.run_file import RunFile

EDITABLE = MappingProxyType(
    {
        "name": "name",
        "job.team": "team",
        "job.priority": "priority",
        "job.preemptible": "preemptible",
        "job.time_limit": "time_limit_s",
        "job.grace": "grace_s",
        "job.exclude": "exclude",
        "job.depends_on": "depends_on",
        "recover.max_restarts": "max_restarts",
        "recover.restart_window": "restart_window_s",
    }
)
"""Keys of the run file that a waiting job can change without a new plan, and their fields of the job spec."""


def edited_spec(spec: JobSpec, run_file: RunFile) -> JobSpec:
    """The job spec with the editable fields of a run file; all other fields stay."""
    new = spec_of(run_file, run_id=spec.run_id, working_folder=spec.working_folder)
    return replace(spec, **{field: getattr(new, field) for field in EDITABLE.values()})


def edit_job(
    store: JobStore, backend: Backend, row: JobRow, handle: str, change: Callable[[RunFile], RunFile], clock: Clock
) -> tuple[RunFile, RunFile]:
    """Change a waiting job; returns its run file before and after.

    A remote backend gets the change first. After a kill between its answer and the change of the row, the same edit
    again completes it. `change` changes `EDITABLE` keys of a run file.

    Raises:
        NotOwnerError: the job belongs to another user.
        UsageError: the job does not wait, or the backend refuses the changed job.
        EnvironmentProblem: another process submits or edits the job now.
    """
    check_may_change(row)
    if row.uid != user_id():  # an administrator does not write into the owner's run directory
        raise NotOwnerError(f"cannot edit job {row.id} ({row.run_id}): it belongs to {row.owner}", hint="ask its owner")
    run_dir = RunDir(Path(row.run_dir))
    with submit_lock(run_dir):
        row = store.get(row.id) or row
        check_waits(row, "edit")
        finish_edit(run_dir, row.spec)
        resolved = run_dir.read_resolved()
        run_file = change(resolved.run_file)
        spec = edited_spec(row.spec, run_file)
        if spec != row.spec:
            _check(store, backend, row, spec)
            run_dir.write_edited(resolved.model_copy(update={"run_file": run_file}))
            _commit(store, backend, row, handle, spec, clock)
    return resolved.run_file, run_file


def _check(store: JobStore, backend: Backend, row: JobRow, spec: JobSpec) -> None:
    """Refuse what a submission refuses, and a job that would wait for itself."""
    backend.check(spec)
    if spec.depends_on == row.spec.depends_on:
        return
    awaited, seen = check_dependencies(store, spec, row.engine), set[int]()
    while awaited:
        job = awaited.pop()
        if job.id == row.id:
            message = f"`job.depends_on` makes job {row.id} ({row.run_id}) wait for itself"
            raise UsageError(message, place="--set job.depends_on", hint="name jobs that do not wait for this one")
        if job.id not in seen and not job.state.is_final:
            names = (parse_dependency(text).job for text in job.spec.depends_on)
            awaited += [found for name in names if (found := store.find(name, uid=job.uid))]
        seen.add(job.id)


def _commit(store: JobStore, backend: Backend, row: JobRow, handle: str, spec: JobSpec, clock: Clock) -> None:
    try:
        backend.edit(handle, row.spec, spec)
        waited = store.change(
            row.id, now=clock.now(), waits_since_attempt=row.attempt, spec=spec, name=spec.name, priority=spec.priority
        )
    finally:
        finish_edit(RunDir(Path(row.run_dir)), (store.get(row.id) or row).spec)
    if not waited:
        check_waits(store.get(row.id) or row, "edit")
        raise UsageError(f"job {row.id} ({row.run_id}) started while it was edited", hint="trainworks ps")


def finish_edit(run_dir: RunDir, spec: JobSpec) -> None:
    """Put the changed resolved run in place if the row of the job has its values; delete it otherwise.

    Call it with the lock of the submission, or with the spec of a job that has started: no edit changes that one.
    """
    edited = run_dir.read_edited()
    if edited is None:
        return
    if edited_spec(spec, edited.run_file) == spec:
        run_dir.adopt_edited()
    else:
        run_dir.edited_file.unlink(missing_ok=True)


def finish_interrupted_edit(store: JobStore, row: JobRow) -> None:
    """Finish an edit whose process was killed, of a job of this user; nothing if one is going on."""
    run_dir = RunDir(Path(row.run_dir))
    if row.uid == user_id() and run_dir.edited_file.exists():
        with suppress(EnvironmentProblem), submit_lock(run_dir):
            finish_edit(run_dir, (store.get(row.id) or row).spec)
