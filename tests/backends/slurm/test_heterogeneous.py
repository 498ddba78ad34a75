"""A job with roles in Slurm's words: one allocation of equal nodes, or the components of a heterogeneous job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm.test_backend import IMPOSSIBLE, backend_of, row
from tests.fakes import FakeClock, FakeSlurm, resolved_command, spec
from trainworks.agent.allocation import Allocation, processes_on
from trainworks.backends.slurm.allocation import StepCommand, StepHosts, allocation, het_groups
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.render import mark_of, render
from trainworks.config.engines import Slurm
from trainworks.config.run_file import RunFile
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host.process import Output
from trainworks.jobs.job_spec import JobSpec, NodeResources, RoleSpec
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.state import JobState
from trainworks.plan.run.processes import choose_role_processes, requested_host
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

GPUS, CORES = NodeResources(cores=8.0, accelerators=4, accelerator="h100"), NodeResources(cores=2.0)
HET = {
    "SLURM_JOB_ID": "7",
    "SLURM_HET_SIZE": "2",
    "SLURMD_NODENAME": "node2",
    "SLURM_JOB_NODELIST": "node2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "node2",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "node[1-2],node4",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_0": "8",
    "SLURM_JOB_CPUS_PER_NODE_HET_GROUP_1": "2(x2),4",
    "SLURM_CPUS_ON_NODE": "8",
    "SLURM_GPUS_ON_NODE": "4",
}


def roles(*nodes: NodeResources, **changes: Any) -> JobSpec:
    """A job with a role of one node, then roles of two."""
    each = [RoleSpec(name=f"role{at}", nodes=2 if at else 1, node=node) for at, node in enumerate(nodes)]
    total = sum(role.nodes for role in each)
    return spec(**{"roles": tuple(each), "min_nodes": total, "max_nodes": total, "node": nodes[0]} | changes)


def script(asked: JobSpec, **options: Any) -> str:
    return render(asked, Slurm(**options), RunDir(Path("/shared/runs/demo-1")), python="/opt/bin/python")


def test_roles_of_different_nodes_are_components_with_all_options_each(golden) -> None:
    asked = roles(GPUS, CORES, exclude=("node7",), time_limit_s=3600.0, depends_on=("17",))
    golden("slurm_roles.sh", script(asked, partition="train", options=("--mail-type=END",)))


@pytest.mark.parametrize(
    ("nodes", "numbers"),
    [
        ((CORES, CORES), ["3"]),
        ((GPUS, CORES, CORES), ["1", "4"]),
        ((GPUS, CORES, GPUS), ["1", "2", "2"]),  # nodes are numbered role by role
    ],
)
def test_roles_side_by_side_with_equal_nodes_share_a_component(
    nodes: tuple[NodeResources, ...], numbers: list[str]
) -> None:
    lines = script(roles(*nodes)).splitlines()
    assert [line.partition("--nodes=")[2] for line in lines if "--nodes=" in line] == numbers
    assert lines.count("#SBATCH hetjob") == len(numbers) - 1


@pytest.mark.parametrize("option", ["--nodes=4", "--gres=gpu:8", "--gpus-per-node=8", "--mem-per-cpu=1G", "--ntasks=4"])
def test_an_option_that_would_make_all_roles_alike_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="cannot be set for a job with roles"):
        script(roles(GPUS, CORES), options=(option,))
    assert option in script(spec(), options=(option,))


def test_memory_is_requested_by_all_roles_or_by_none() -> None:
    with_memory = replace(CORES, memory_bytes=2**30)
    with pytest.raises(UsageError, match="role `role0` requests no memory, and another one does"):
        script(roles(GPUS, with_memory))
    assert script(roles(with_memory, replace(GPUS, memory_bytes=2**31))).count("--mem=") == 2


def test_a_heterogeneous_job_is_one_job_on_the_nodes_of_all_components() -> None:
    parts = [
        row("8", "RUNNING", het_job="7", nodes="node[3-4]"),
        row("9", "PENDING", nodes="", why="Resources"),
        row("7", "RUNNING", het_job="7", nodes="node1", tag="trainworks:x"),
    ]
    seen = backend_of(FakeSlurm(squeue="".join(parts))).poll(["7", "9"])
    assert set(seen) == {"7", "9"} and seen["9"].reason == "Resources"
    assert (seen["7"].state, seen["7"].nodes) == (JobState.RUNNING, ("node1", "node3", "node4"))


def test_a_component_says_why_the_whole_job_waits() -> None:
    parts = [row("7", "PENDING", het_job="7"), row("8", "PENDING", het_job="7", why="Resources")]
    assert backend_of(FakeSlurm(squeue="".join(parts))).poll(["7"])["7"].reason == "Resources"


def test_accounting_has_a_row_for_each_component() -> None:
    rows = "7+0|NODE_FAIL|0:15|1795332189|1795332199|node1\n7+1|NODE_FAIL|0:0|1795332189|1795332199|node[3-4]\n"
    fake = FakeSlurm(squeue=Output(1, "", "slurm_load_jobs error: Invalid job id specified\n"), sacct=rows)
    seen = backend_of(fake).poll(["7"])
    assert (set(seen), seen["7"].nodes, seen["7"].exit_code) == ({"7"}, ("node1", "node3", "node4"), 143)


def test_the_queue_of_all_users_has_it_once() -> None:
    fields = "alice|vision|1000|{cores}|cpu={cores},gres/gpu={gpus}|{nodes}|(null)|lm|/tmp/out|None\n"
    rows = "8|7|RUNNING|" + fields.format(cores=4, gpus=0, nodes="n[2-3]")
    rows += "7|7|RUNNING|" + fields.format(cores=8, gpus=4, nodes="n1")
    (one,) = backend_of(FakeSlurm(squeue=rows)).queue()
    assert (one.id, one.cores, one.accelerators, one.nodes) == ("7", 12.0, 4, ("n1", "n2", "n3"))


def test_it_is_found_by_its_first_component(run_dir: RunDir) -> None:
    mark = mark_of(run_dir)
    assert backend_of(FakeSlurm(squeue=f"18 |{mark}\n17 |{mark}\n")).find(run_dir) == "17"


def test_every_role_gets_the_name_of_its_accelerator_in_the_cluster() -> None:
    fake = FakeSlurm(sinfo="gpu:h100:8\ngpu:a100:4\n")
    asked = roles(replace(GPUS, accelerator="H100"), replace(GPUS, accelerator="gpu"), CORES)
    named = [role.node.accelerator for role in backend_of(fake).adapted(asked).roles]
    assert (named, len(fake.asked("sinfo"))) == (["h100", None, None], 1)
    with pytest.raises(UsageError, match="the cluster has no accelerator `b200`"):
        backend_of(fake).adapted(roles(CORES, replace(GPUS, accelerator="b200")))


@pytest.mark.parametrize(
    ("state", "second", "kind"),
    [("down*", CORES, UnreachableError), ("idle", CORES, SlurmRefusedError), ("down*", GPUS, SlurmRefusedError)],
    ids=["a node of the second role is away", "none is away", "too few have accelerators"],
)
def test_a_refusal_is_final_if_the_nodes_of_a_role_could_never_be_found(
    run_dir: RunDir, clock: FakeClock, state: str, second: NodeResources, kind: type[Exception]
) -> None:
    nodes = (
        f"node1 |idle|0/16/0/16|64000|gpu:h100:8|gpu:h100:0|none \nnode2 |{state}|0/4/0/4|64000|(null)|(null)|none \n"
    )
    one = backend_of(FakeSlurm(sbatch=IMPOSSIBLE, sinfo=nodes), clock)
    with pytest.raises(kind):
        one.submit(one.render(roles(GPUS, second), run_dir), run_dir)


def got_of(env: dict[str, str]) -> Allocation:
    return allocation(env, SlurmClient(run=FakeSlurm(scontrol=""), env={}), FakeClock())


def test_the_batch_script_sees_the_nodes_of_all_components_and_their_cores() -> None:
    """A node may serve two components, and stays in both."""
    got = got_of(HET)
    assert (got.nodes, got.cores) == (("node2", "node1", "node2", "node4"), (8, 2, 2, 4))


def test_an_agent_is_a_step_of_the_component_of_its_node() -> None:
    client = SlurmClient(run=FakeSlurm(), env={})
    hosts = StepHosts(got_of(HET), StepCommand((), ("python3",)), client, het_groups(HET))
    steps = [hosts.command(node, ["python3", "-P", "-m", "agent"]) for node in (0, 2)]
    assert [[word for word in step if "het" in word or "list" in word or "cpus" in word] for step in steps] == [
        ["--het-group=0", "--nodelist=node2", "--cpus-per-task=8"],
        ["--het-group=1", "--nodelist=node2", "--cpus-per-task=2"],
    ]


def resolved() -> ResolvedRun:
    server = {"run": "true", "nodes": 3, "processes_per_node": 2, "decides": False}
    trainer = {"run": "true", "resources": {"cpus": 2, "accelerators": "h100:4"}}
    keys = {"name": "t", "roles": {"trainer": trainer, "server": server}, "cluster": {"engine": "slurm"}}
    run_file = RunFile.model_validate(keys)
    return resolved_command(run_file=run_file, processes=choose_role_processes(run_file, requested_host(run_file)))


def test_the_ranks_of_a_role_share_the_cores_that_its_nodes_got() -> None:
    found = processes_on(resolved(), got_of(HET), "Slurm")
    assert {name: (one.nodes, one.threads_per_process, one.device) for name, one in found.roles.items()} == {
        "trainer": (1, 2, "cuda"),
        "server": (3, 1, "cpu"),
    }
    equal = Allocation(job="7", nodes=("a", "b", "c", "d"), addresses=(), cores=(16,) * 4)
    assert [one.threads_per_process for one in processes_on(resolved(), equal, "Slurm").roles.values()] == [4, 8]
    with pytest.raises(EnvironmentProblem, match="the roles have 4 nodes together, and Slurm gave the job 3"):
        processes_on(resolved(), replace(equal, nodes=("a", "b", "c")), "Slurm")


def test_the_command_that_enters_a_node_names_its_component(run_dir: RunDir) -> None:
    fake = FakeSlurm(squeue="8 |node[3-4]\n7 |node1\n")
    words = backend_of(fake).enter(run_dir, "7", ["sh"], node=2)
    assert {"--jobid=7", "--het-group=1", "--nodelist=node4"} <= set(words)
    alone = backend_of(FakeSlurm(squeue="7 |node[1-2]\n")).enter(run_dir, "7", ["sh"], node=1)
    assert "--nodelist=node2" in alone and not [word for word in alone if word.startswith("--het-group")]


def test_a_run_file_with_roles_can_be_submitted_to_slurm() -> None:
    run = resolved()
    asked = spec_of(run.run_file, run_id="t-1", working_folder="/")
    backend_of(FakeSlurm()).check(asked)
    assert [role.nodes for role in asked.roles] == [1, 3]
