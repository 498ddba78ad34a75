"""Submission of a run to the queue of a backend."""

from __future__ import annotations

from trainworks.api.notices import Notify, warn
from trainworks.backends.backend import Backend
from trainworks.backends.ownership import is_private
from trainworks.backends.remote import hand_over
from trainworks.backends.store_place import store_url
from trainworks.backends.submission import check_dependencies
from trainworks.host.clock import SystemClock
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.store import open_store
from trainworks.record.run_dir import RunDir

_SHARED_STORE = (
    "other users can write this job store: they can change what it says of this job, but not what the job runs"
)
_LOCAL = "local"


def submit_job(
    backend: Backend,
    spec: JobSpec,
    run_dir: RunDir,
    *,
    notify: Notify = warn,
    first_of_array: RunDir | None = None,
    is_task: bool = False,
) -> None:
    """Put a run into the queue of a backend.

    Args:
        backend: the backend.
        spec: the job.
        run_dir: its run directory.
        notify: takes remarks; what is true for all jobs of an array is said with the first one.
        first_of_array: run directory of the first job of the array; None for the first itself.
        is_task: the job is a task of a pipeline. One behind a task that has failed is in the queue as a failed job,
            however soon that happened; any other job that waits for a failed one is refused.

    Raises:
        TrainworksError: the job was not accepted; the run directory is as it was.
    """
    if spec.depends_on and not is_task:
        check_dependencies(open_store(store_url()), spec, backend.name)
    if first_of_array is None and not is_private(store_url()):
        notify(_SHARED_STORE)
    if backend.name == _LOCAL:
        backend.submit(backend.render(spec, run_dir), run_dir)
        return
    row = hand_over(open_store(store_url()), backend, spec, run_dir, SystemClock())
    if row.handle is None and not row.state.is_final:
        problem = f"{row.reason or f'{row.engine} did not answer'}; job {row.id} ({row.run_id}) is accepted"
        notify(f"{problem}, and `trainworks ps` finds it there or submits it, once")
