"""Rebuild a deleted or damaged job store from run directories.

A run directory has the job spec and how the run ended. Whether a job still waits or runs, its backend tells, where the
job is found by its tag. This module submits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainworks.agent.launch import run_mark
from trainworks.backends.local.machine import LocalNode, wanted_of
from trainworks.backends.registry import backend_of_run
from trainworks.errors import TrainworksError
from trainworks.host import process
from trainworks.host.users import this_host, user_name
from trainworks.jobs.job_row import JobChanges, Placement
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.jobs.state import Cause, JobState, parse_state
from trainworks.jobs.store import JobStore
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

if TYPE_CHECKING:
    from trainworks.record.resolved import ResolvedRun


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A run directory and the state of its job in the store."""

    run_dir: RunDir
    state: JobState | None
    """None if the store has no such job."""
    note: str = ""


def rebuild(store: JobStore, runs: Iterable[RunDir], machine: Sequence[LocalNode]) -> list[Rebuilt]:
    """Add the jobs of submitted runs that the store does not have. `machine` has the nodes of this machine, for its own
    jobs that run.
    """
    known = store.run_dirs()
    return [_rebuilt(store, run, machine) for run in runs if str(run.path.resolve()) not in known]


def _rebuilt(store: JobStore, run_dir: RunDir, machine: Sequence[LocalNode]) -> Rebuilt:
    """Add one run; an error with it does not affect the others."""
    try:
        resolved = run_dir.read_resolved()
        found = _found(store, run_dir, resolved, run_dir.read_status(), machine)
    except (TrainworksError, OSError) as error:
        return Rebuilt(run_dir, None, str(error))
    if found is None:
        return Rebuilt(run_dir, None, "not submitted")
    end, columns = found
    uid, backend = run_dir.path.stat().st_uid, resolved.run_file.cluster.engine
    store.restore(
        spec_of_run(resolved),
        run_dir=str(run_dir.path.resolve()),
        owner=user_name(uid),
        engine=backend,
        submitted_at=resolved.created_at,
        end=end,
        columns=columns | JobChanges(uid=uid, host=this_host() if backend == "local" else None),
    )
    return Rebuilt(run_dir, parse_state(end.state))


def _found(
    store: JobStore, run_dir: RunDir, resolved: ResolvedRun, status: RunStatus, machine: Sequence[LocalNode]
) -> tuple[End, JobChanges] | None:
    """State and columns of the job; None if no queue has accepted it."""
    state = parse_state(status.state)
    cluster = resolved.run_file.cluster
    if state.is_final:
        words = cluster.model_dump_json(exclude_unset=True) if cluster.engine != "local" else None
        return status.end, {"cluster": words}
    if cluster.engine == "local":
        columns = _local(run_dir, spec_of_run(resolved), state, status, machine)
        return None if columns is None else (End(state, at=status.updated_at), columns)
    handle = backend_of_run(resolved, store=store).find(run_dir)
    words = cluster.model_dump_json(exclude_unset=True)
    if handle is not None:  # the next look at the backend says more
        return End(JobState.QUEUED, at=status.updated_at), {"cluster": words, "handle": handle}
    if state in (JobState.CREATED, JobState.QUEUED):
        return None
    message = f"{cluster.engine} does not have the job any more, and its run directory does not say how it ended"
    return End(JobState.FAILED, Cause.UNKNOWN, message, exit_code=1, at=status.updated_at), {"cluster": words}


def _local(
    run_dir: RunDir, spec: JobSpec, state: JobState, status: RunStatus, machine: Sequence[LocalNode]
) -> JobChanges | None:
    """Columns of a local job; None if it does not wait with its variables or run."""
    if state.holds_resources:
        # the accelerators that its processes see are divided among its nodes
        fewest, _, wanted = wanted_of(spec, list(machine))
        names = [node.name for node in machine][:fewest]
        seen = process.variable_of(process.processes_with(run_mark(run_dir)), "CUDA_VISIBLE_DEVICES")
        devices = sorted({int(device) for text in seen for device in text.split(",") if device.isdecimal()})
        placement = [
            Placement(name, wanted.cores or 0.0, tuple(devices[number :: len(names)]))
            for number, name in enumerate(names)
        ]
        return {"started_at": status.updated_at, "attempt": 1, "placement": placement}
    return {} if state.waits and run_dir.environment_file.exists() else None
