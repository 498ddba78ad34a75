"""One allocation of a job: from getting its nodes to losing them. A requeued job has several."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from trainworks.errors import EnvironmentProblem
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.jobs.state import CAUSES, Cause, JobState
from trainworks.record.events import read_events
from trainworks.record.run_dir import RunDir

_LOCK_WAIT_S = 60.0
_LOOK_S = 0.2

if TYPE_CHECKING:
    from trainworks.host.clock import Clock
    from trainworks.record.processes import Processes
    from trainworks.record.resolved import ResolvedRun


def planner_of(run_dir: RunDir) -> list[str]:
    """The command of the resolved run that plans a workload on the first node of its job.

    Raises:
        EnvironmentProblem: the resolved run names no planner.
    """
    planner = run_dir.read_resolved().planner
    if not planner:
        raise EnvironmentProblem(
            "cannot plan the workload on its nodes: the resolved run names no planner",
            hint="submit it again with this version of Trainworks",
        )
    return process.python_module(*planner, str(run_dir.path))


def plan(run_dir: RunDir, command: list[str]) -> None:
    """Run the planner, which prints the plan into the log and writes it into the resolved run.

    Raises:
        EnvironmentProblem: the workload cannot be trained on these nodes.
    """
    run_dir.plan_error_file.unlink(missing_ok=True)
    output = process.run(command)
    sys.stdout.write(output.stdout)
    sys.stdout.flush()
    if output.exit_code == 0:
        return
    sys.stderr.write(output.stderr)
    message, hint = f"the planner ended with exit code {output.exit_code}", "read its error in the log"
    if run_dir.plan_error_file.exists():
        error = json.loads(run_dir.plan_error_file.read_bytes())
        message, hint = error["message"], error["hint"]
    raise EnvironmentProblem(f"cannot train on the allocated nodes: {message}", hint=hint)


def processes_on(
    resolved: ResolvedRun, *, backend: str, num_nodes: int, cores_per_node: int, accelerators_per_node: int
) -> Processes:
    """Ranks of a run on its allocated nodes.

    Those of a workload are decided when it is planned, together with its layout; those of a command follow what it got,
    one per accelerator unless the run file says how many.

    Raises:
        EnvironmentProblem: a workload got other nodes than it was planned for.
    """
    planned = resolved.processes
    if resolved.run_file.workload is not None:
        if num_nodes != planned.nodes:
            message = f"the run is planned for {planned.nodes} nodes, and {backend} gave it {num_nodes}"
            raise EnvironmentProblem(message, hint="leave `job.min_nodes` out")
        return planned
    ranks = planned.processes_per_node
    if planned.starts == "per_rank" and resolved.run_file.cluster.processes_per_node == "auto":
        ranks = accelerators_per_node or ranks
    shared_by = ranks if planned.starts == "per_rank" else max(1, accelerators_per_node)
    changes = {
        "nodes": num_nodes,
        "processes_per_node": ranks,
        "threads_per_process": max(1, cores_per_node // shared_by),
        "device": "cuda" if accelerators_per_node else "cpu",
        "accelerators_per_node": accelerators_per_node,
    }
    return planned.model_copy(update=changes)


def take_lock_from_before(run_dir: RunDir, clock: Clock) -> int | None:
    """The lock of the run, once the last allocation has released it; None if that does not happen within a minute.

    A file server may keep the lock of a node that it cannot reach for some time.
    """
    deadline = clock.now() + _LOCK_WAIT_S
    while (lock := take_lock(run_dir.lock_file)) is None and clock.now() < deadline:
        clock.sleep(_LOOK_S)
    return lock


def back_in_the_queue(cause: Cause) -> tuple[JobState, Cause, str]:
    """State, cause and message of a job that lost its allocation and waits for another."""
    state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
    return state, cause, CAUSES[cause].words


def no_restart_left(cause: Cause, max_restarts: int) -> str:
    """Message of a job that lost its allocation and has no restart left."""
    return f"{CAUSES[cause].words}, and no restart is left of `recover.max_restarts: {max_restarts}`"


def signs_of_life(run_dir: RunDir) -> float:
    """Time of the last status or event of a run: the end of an allocation whose supervisor was killed."""
    events = read_events(run_dir.events_file)
    return max([run_dir.read_status().updated_at, *(float(event["t"]) for event in events[-1:])])
