"""One allocation of a job: from getting its nodes to losing them. A requeued job has several."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainworks.errors import EnvironmentProblem, NodeLostError
from trainworks.host import process
from trainworks.jobs.spec_of_run import spec_of_run
from trainworks.record.events.log import Event, read_events
from trainworks.record.exit_code import LINK_LOST
from trainworks.record.processes import Processes
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.record.resolved import Plan, ResolvedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """The nodes of a job for one turn, the one that runs the supervisor first."""

    job: str
    nodes: tuple[str, ...]
    addresses: tuple[str, ...]
    turn: int | None = None
    """Number of times that the engine has requeued the job under this id; None if the id does not say that."""
    cores_per_node: int = 1
    accelerators_per_node: int = 0
    cores: tuple[int, ...] = ()
    """Cores of each node, where the engine says them; `cores_per_node` are those of the first one."""

    def cores_of(self, node: int) -> int:
        """Cores of a node; those of the first one where only these are known."""
        return self.cores[node] if self.cores else self.cores_per_node


def plan(run_dir: RunDir, on_first_node: Callable[[list[str]], list[str]]) -> ResolvedRun:
    """Plan a workload on the first node of its job: the planner prints the plan into the log, and resolves the run.

    `on_first_node` gives the command that runs the planner there.

    Raises:
        EnvironmentProblem: the resolved run names no planner, or it cannot be trained on these nodes.
        NodeLostError: the connection to that node was lost.
    """
    if not (planner := run_dir.read_resolved().planner):
        raise EnvironmentProblem(
            "cannot plan the workload on its nodes: the resolved run names no planner",
            hint="submit it again with this version of Trainworks",
        )
    run_dir.plan_error_file.unlink(missing_ok=True)
    output = process.run(on_first_node(process.python_module(*planner, str(run_dir.path))))
    sys.stdout.write(output.stdout)
    sys.stdout.flush()
    if output.exit_code == 0:
        return run_dir.read_resolved()
    if output.exit_code == LINK_LOST:
        raise NodeLostError("the connection to the first node was lost while the workload was planned there")
    sys.stderr.write(output.stderr)
    message, hint = f"the planner ended with exit code {output.exit_code}", "read its error in the log"
    if run_dir.plan_error_file.exists():
        error = json.loads(run_dir.plan_error_file.read_bytes())
        message, hint = error["message"], error["hint"]
    raise EnvironmentProblem(f"cannot train on the allocated nodes: {message}", hint=hint)


def processes_on(resolved: ResolvedRun, got: Allocation, engine: str) -> Processes:
    """Ranks of a run on its allocated nodes.

    Those of a workload are decided when it is planned, together with its layout; those of a command follow what it got,
    one per accelerator unless the run file says how many. Each role has the nodes, ranks and accelerators that it
    requested, and threads for the cores that it got, or requested where the engine does not say those of each node.

    Raises:
        EnvironmentProblem: a workload got other nodes than it was planned for, or roles another number of them.
    """
    planned, num_nodes, accelerators_per_node = resolved.processes, len(got.nodes), got.accelerators_per_node
    if resolved.run_file.workload is not None:
        if num_nodes != planned.nodes and resolved.fewer_nodes(num_nodes) is None:
            message = f"the run is planned for {planned.nodes} nodes, and {engine} gave it {num_nodes}"
            raise EnvironmentProblem(message, hint="leave `job.min_nodes` out")
        return planned
    if planned.roles:
        return _roles_on(resolved, got, engine)
    ranks = planned.processes_per_node
    if planned.starts == "per_rank" and resolved.run_file.cluster.processes_per_node == "auto":
        ranks = accelerators_per_node or ranks
    shared_by = ranks if planned.starts == "per_rank" else max(1, accelerators_per_node)
    changes = {
        "nodes": num_nodes,
        "processes_per_node": ranks,
        "threads_per_process": max(1, got.cores_per_node // shared_by),
        "device": "cuda" if accelerators_per_node else "cpu",
        "accelerators_per_node": accelerators_per_node,
    }
    return planned.model_copy(update=changes)


def _roles_on(resolved: ResolvedRun, got: Allocation, engine: str) -> Processes:
    """Ranks of all roles; those of a node share the cores that it got, or what its role requests if no engine says.

    Raises:
        EnvironmentProblem: they got another number of nodes.
    """
    planned, roles = resolved.processes, dict[str, Processes]()
    if len(got.nodes) != planned.nodes:
        message = f"the roles have {planned.nodes} nodes together, and {engine} gave the job {len(got.nodes)}"
        raise EnvironmentProblem(message, hint="trainworks retry")
    for group, role in zip(planned.groups(), spec_of_run(resolved).roles, strict=True):
        ranks = group.processes
        cores = min(got.cores[node] for node in group.nodes) if got.cores else role.node.cores or 1
        shared_by = ranks.processes_per_node if ranks.starts == "per_rank" else max(1, ranks.accelerators_per_node)
        threads = max(1, int(cores // shared_by))
        roles[role.name] = ranks.model_copy(update={"threads_per_process": threads})
    return Processes.of_roles(roles)


def plan_on(resolved: ResolvedRun, got: Allocation) -> Plan | None:
    """The plan of a run on its allocated nodes; None for a command that asked for another number of them."""
    return resolved.plan if resolved.is_workload or len(got.nodes) == resolved.processes.nodes else None


def signs_of_life(run_dir: RunDir) -> float:
    """Time of the last status or event of a run: the end of an allocation whose supervisor was killed."""
    events = read_events(run_dir.events_file)
    return max([run_dir.read_status().updated_at, *(float(event["t"]) for event in events[-1:])])


def unhealthy_nodes(events: Sequence[Event]) -> list[str]:
    """Names of the nodes that failed the check of a job, or that their cloud took back, since a user submitted it.

    One for each time.
    """
    found: list[str] = []
    names: Sequence[str] = ()
    places: Sequence[int] = ()
    for event in events:
        if event["kind"] == "submitted":
            names = event.get("hosts", ())
            places = range(len(names))
            found = found if event.get("restarts") else []
        elif event["kind"] == "resized":
            places = event["places"]
        elif event["kind"] == "nodes_unhealthy":
            found += [names[node] for node in event["nodes"]]
        elif event["kind"] == "notice_answered":
            found.append(names[places[event["node"]]])
    return found
