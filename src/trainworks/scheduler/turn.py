"""One turn of a job: a stretch in which a cluster's scheduler lets it hold its nodes; a job may have several."""

from __future__ import annotations

import sys

from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.job.state import CAUSES, Cause, JobState, parse_cause
from trainworks.record.events import Event
from trainworks.record.resolved import Processes, ResolvedRun
from trainworks.record.run_dir import RunDir

__all__ = ["back_in_the_queue", "plan", "planner_of", "processes_on", "starts_that_count"]


def planner_of(run_dir: RunDir) -> list[str]:
    """The command that plans a workload on the first of the nodes that it got, with what is measured on all of them."""
    return process.python_module("trainworks.cli.plan_worker", str(run_dir.path))


def plan(command: list[str]) -> None:
    """Run the planner; the plan goes into the log, and into the resolved run.

    Raises:
        EnvironmentProblem: the workload cannot be trained on these nodes.
    """
    output = process.run(command)
    sys.stdout.write(output.stdout)
    sys.stdout.flush()
    if output.exit_code != 0:
        said = output.stderr.strip().splitlines() or ["error: no reason given"]
        reason = next((line for line in said if line.startswith("error: ")), said[-1]).removeprefix("error: ")
        hint = next((line.removeprefix("hint: ") for line in said if line.startswith("hint: ")), None)
        raise EnvironmentProblem(f"it cannot be trained on the nodes that it got: {reason}", hint=hint)


def processes_on(
    resolved: ResolvedRun, *, engine: str, num_nodes: int, cores_per_node: int, accelerators_per_node: int
) -> Processes:
    """The ranks of a run on the nodes that it got.

    Those of a workload are decided when it is planned, together with its layout; those of a command follow what it got,
    one per accelerator unless the run file says how many.

    Args:
        resolved: the run.
        engine: who gave the nodes.
        num_nodes: how many.
        cores_per_node: of each.
        accelerators_per_node: of each.

    Raises:
        EnvironmentProblem: a workload got other nodes than it was planned for.
    """
    planned = resolved.processes
    if resolved.run_file.workload is not None:
        if num_nodes != planned.nodes:
            message = f"the run is planned for {planned.nodes} nodes, and {engine} gave it {num_nodes}"
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


def back_in_the_queue(cause: Cause) -> tuple[JobState, Cause, str]:
    """State, cause and words of a job whose turn ended so, and that has another one."""
    state = JobState.PREEMPTED if cause is Cause.PREEMPTED else JobState.QUEUED
    return state, cause, CAUSES[cause].words


def starts_that_count(events: list[Event], *, in_place: bool) -> int:
    """Starts of a job so far, without those that ended because another job took the place.

    Args:
        events: of the run, which may have been a job before; the restart count of "submitted" tells them apart.
        in_place: whether every start of the ranks counts, or every turn.
    """
    turns: list[list[Event]] = [[]]
    for event in events:
        if event["kind"] == "submitted":
            turns = [[]] if not event.get("restarts") else [*turns, []]
        turns[-1].append(event)
    return sum(_starts_in(turn) if in_place else 1 for turn in turns if not _was_free(turn))


def _starts_in(turn: list[Event]) -> int:
    return max(1, [event["kind"] for event in turn].count("attempt"))


def _was_free(turn: list[Event]) -> bool:
    states = [event for event in turn if event["kind"] == "state"]
    cause = parse_cause(states[-1]["cause"]) if states else None
    return cause is not None and not CAUSES[cause].counts_as_restart
