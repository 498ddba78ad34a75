"""What a job makes of the nodes that it got."""

from __future__ import annotations

import pytest

from tests.fakes import resolved_command
from trainworks.agent.allocation import Allocation, plan, processes_on
from trainworks.agent.supervisor import Supervisor, supervise
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, NodeLostError
from trainworks.plan.run.processes import choose_role_processes, requested_host
from trainworks.record.exit_code import LINK_LOST
from trainworks.record.run_dir import RunDir


def test_the_ranks_of_a_role_share_the_cores_that_it_requests() -> None:
    gpus = {"accelerators": "h100:8", "cpus": 96}
    roles = {
        "fetch": {"run": "true"},
        "server": {"run": "true", "nodes": 2, "resources": {"cpus": 4}},
        "launched": {"run": "torchrun train.py", "resources": gpus},
        "ranks": {"run": "python train.py", "resources": gpus, "processes_per_node": 4},
    }
    run_file = RunFile.model_validate({"name": "t", "roles": roles, "cluster": {"engine": "kubernetes"}})
    asked = resolved_command(run_file=run_file, processes=choose_role_processes(run_file, requested_host(run_file)))
    names = tuple("abcde")
    ranks = processes_on(asked, Allocation(job="7", nodes=names, addresses=names, cores_per_node=1), "Kubernetes")
    assert (ranks.nodes, ranks.world_size) == (5, 8)
    each = {name: (role.processes_per_node, role.threads_per_process) for name, role in ranks.roles.items()}
    assert each == {"fetch": (1, 1), "server": (1, 4), "launched": (1, 12), "ranks": (4, 24)}
    assert [role.device for role in ranks.roles.values()] == ["cpu", "cpu", "cuda", "cuda"]


def test_a_connection_that_is_lost_while_a_workload_is_planned_is_a_lost_node(run_dir: RunDir) -> None:
    run_dir.write_resolved(resolved_command(run_dir.run_id, planner=("planner",)))
    with pytest.raises(NodeLostError, match="the connection to the first node was lost"):
        plan(run_dir, lambda command: ["sh", "-c", f"kill -{-LINK_LOST} $$"])
    with pytest.raises(EnvironmentProblem, match="the planner ended with exit code 3"):
        plan(run_dir, lambda command: ["sh", "-c", "exit 3"])


def test_a_job_that_lost_a_node_before_its_ranks_started_says_so(run_dir: RunDir) -> None:
    def lost(lock: int) -> Supervisor:
        raise NodeLostError("the connection to box1 was lost before the ranks started")

    run_dir.write_resolved(resolved_command(run_dir.run_id))
    supervise(run_dir, lost)
    status = run_dir.read_status()
    assert (status.state, status.cause) == ("FAILED", "node_lost")
