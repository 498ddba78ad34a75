"""Rebuild a deleted or damaged job store from run directories.

A run directory has the job spec and how the run ended. Whether a job still waits or runs, its backend tells, where the
job is found by its tag. This module submits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainworks.agent.launch import run_mark
from trainworks.backends.local.machine import LocalNode, wanted_of
from trainworks.backends.registry import backend_of_run
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.users import this_host, user_name
from trainworks.jobs.job_row import Placement
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

if TYPE_CHECKING:
    from trainworks.record.resolved import ResolvedRun

_NOT_SUBMITTED = "not submitted"


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A run directory and the state of its job in the store."""

    run_dir: RunDir
    state: JobState | None
    """None if the store has no such job."""
    note: str = ""


def rebuild(store: JobStore, runs: Iterable[RunDir], machine: Sequence[LocalNode]) -> list[Rebuilt]:
    """Add the jobs of run directories that the store does not have.

    Args:
        store: of all jobs; what it has is left as it is.
        runs: that were submitted.
        machine: nodes of this machine, for its own jobs that run.
    """
    known = store.run_dirs()
    return [_rebuilt(store, run, machine) for run in runs if str(run.path.resolve()) not in known]


def _rebuilt(store: JobStore, run_dir: RunDir, machine: Sequence[LocalNode]) -> Rebuilt:
    """Add one run; an error with it does not affect the others."""
    try:
        resolved = run_dir.read_resolved()
        found = _found(store, run_dir, resolved, machine)
    except (TrainworksError, OSError) as error:
        return Rebuilt(run_dir, None, str(error))
    if found is None:
        return Rebuilt(run_dir, None, _NOT_SUBMITTED)
    uid, backend = run_dir.path.stat().st_uid, resolved.run_file.cluster.engine
    store.restore(
        spec_of_run(resolved),
        run_dir=str(run_dir.path.resolve()),
        owner=user_name(uid),
        uid=uid,
        host=this_host() if backend == "local" else None,
        engine=backend,
        submitted_at=resolved.created_at,
        **found,
    )
    return Rebuilt(run_dir, found["state"])


def _found(
    store: JobStore, run_dir: RunDir, resolved: ResolvedRun, machine: Sequence[LocalNode]
) -> dict[str, Any] | None:
    """Columns of the job; None if no queue has accepted it."""
    status = run_dir.read_status()
    state = parse_state(status.state)
    cluster = resolved.run_file.cluster
    if state.is_final:
        words = cluster.model_dump_json(exclude_unset=True) if cluster.engine != "local" else None
        return _ended(state, status) | {"cluster": words}
    if cluster.engine == "local":
        return _local(run_dir, spec_of_run(resolved), state, status, machine)
    handle = backend_of_run(resolved, store=store).find(run_dir)
    own = {"cluster": cluster.model_dump_json(exclude_unset=True)}
    if handle is not None:  # the next look at the backend says more
        return own | {"state": JobState.QUEUED, "now": status.updated_at, "handle": handle}
    if state in (JobState.CREATED, JobState.QUEUED):
        return None
    message = f"{cluster.engine} does not have the job any more, and its run directory does not say how it ended"
    lost = RunStatus(state=JobState.FAILED, cause=Cause.UNKNOWN, message=message, exit_code=1)
    return own | _ended(JobState.FAILED, lost.model_copy(update={"updated_at": status.updated_at}))


def _ended(state: JobState, status: RunStatus) -> dict[str, Any]:
    return {"state": state, "now": status.updated_at, "ended_at": status.updated_at, **status.columns}


def _local(
    run_dir: RunDir, spec: JobSpec, state: JobState, status: RunStatus, machine: Sequence[LocalNode]
) -> dict[str, Any] | None:
    """Columns of a local job; None if it does not wait with its variables or run."""
    if state.holds_resources:
        placement = _placement(run_dir, spec, machine)
        now = status.updated_at
        return {"state": state, "now": now, "started_at": now, "attempt": 1, "placement": placement}
    return {"state": state, "now": status.updated_at} if state.waits and run_dir.environment_file.exists() else None


def _placement(run_dir: RunDir, spec: JobSpec, machine: Sequence[LocalNode]) -> list[Placement]:
    """Resources of a running job: the accelerators that its processes see, divided among its nodes."""
    fewest, _, wanted = wanted_of(spec, list(machine))
    names = [node.name for node in machine][:fewest]
    devices = sorted(_devices(run_dir))
    return [
        Placement(name, wanted.cores or 0.0, tuple(devices[number :: len(names)])) for number, name in enumerate(names)
    ]


def _devices(run_dir: RunDir) -> set[int]:
    seen = process.variable_of(process.processes_with(run_mark(run_dir)), "CUDA_VISIBLE_DEVICES")
    return {int(device) for text in seen for device in text.split(",") if device.isdecimal()}
