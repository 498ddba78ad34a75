"""Jobs with roles on a real Slurm of four nodes: one allocation of equal nodes, or a heterogeneous job of others."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import Any

import pytest

from tests.backends.slurm_cluster import Cluster, Run, wait_until
from trainworks.host import process
from trainworks.jobs.environment import ROLE
from trainworks.jobs.state import JobState
from trainworks.record.events.log import read_events
from trainworks.recover.restarts import lives_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

UNTIL_TOLD = 'until test -e "$TRAINWORKS_RUN_DIR/told"; do sleep 0.1; done'
PLACE = (
    'echo "$TRAINWORKS_ROLE $TRAINWORKS_ROLE_INDEX/$TRAINWORKS_ROLE_SIZE $RANK/$WORLD_SIZE $SLURMD_NODENAME'
    ' [$CUDA_VISIBLE_DEVICES] $OMP_NUM_THREADS"'
)
SERVER = {"run": f"{PLACE}; echo up; exec sleep 600", "nodes": 2, "decides": False, "resources": {"cpus": 4}}
GPUS = {"cpus": 6, "accelerators": "h100:2"}


def up(run: Run, rank: int, times: int = 1) -> None:
    """Wait until a rank has said `up` so often."""
    log = run.run_dir.rank_log(rank)
    wait_until(lambda: log.exists() and log.read_text().splitlines().count("up") == times)


def ports_of(run: Run, rank: int) -> list[str]:
    """What a rank printed behind `at`."""
    return [line for line in run.rank_log(rank).splitlines() if line.startswith("at ")]


def test_roles_of_different_nodes_are_one_heterogeneous_job_that_is_held_edited_released_and_entered(
    cluster: Cluster,
) -> None:
    says = 'echo "at $TRAINWORKS_ADDRESSES_SERVER"; srun --overlap -n1 bash -c \'echo "in $TRAINWORKS_ROLE"\''
    trainer = {"run": f"{PLACE}; {says}; {UNTIL_TOLD}", "processes_per_node": 1, "resources": GPUS}
    run = cluster.roles(trainer=trainer, server=SERVER, job={"hold": True}).submit()
    assert run.submit().status.state is JobState.QUEUED
    edited = replace(run.spec, exclude=("node1",), time_limit_s=900.0)
    run.backend.edit(run.handle, run.spec, edited)
    run.backend.release(run.handle)
    for rank in (1, 2):
        up(run, rank)
    wait_until(lambda: run.run_dir.rank_log(0).exists() and "in trainer" in run.rank_log(0))
    status = run.status
    assert (status.state, len(status.nodes), "node1" in status.nodes) == (JobState.RUNNING, 3, False)
    first, *others = status.nodes
    assert run.rank_log(0).splitlines()[0] == f"trainer 0/1 0/1 {first} [0,1] 6"
    assert [run.rank_log(rank).splitlines()[0] for rank in (1, 2)] == [
        f"server {rank}/2 {rank}/2 {node} [] 4" for rank, node in enumerate(others)
    ]
    (at,) = ports_of(run, 0)
    addresses = [place.partition(":")[0] for place in at.removeprefix("at ").split(",")]
    assert addresses == [f"127.0.1.{node.removeprefix('node')}" for node in others]
    inside = run.backend.enter(
        run.run_dir, run.handle, ["sh", "-c", 'echo "$TRAINWORKS_ROLE $SLURMD_NODENAME"'], node=2
    )
    done = subprocess.run(inside, env=cluster.env, capture_output=True, text=True, check=False)
    assert done.stdout == f"server {others[1]}\n", done.stderr
    (listed,) = [job for job in run.backend.queue() if job.id == run.handle]
    assert (listed.nodes, listed.cores, listed.accelerators) == (status.nodes, 14.0, 2)
    assert [job for node in run.backend.nodes() for job in node.jobs] == [run.handle] * len({*status.nodes})
    (run.run_dir.path / "told").touch()
    assert (run.end().state, run.state) == (JobState.SUCCEEDED, "SUCCEEDED")
    wait_until(lambda: not run.processes())


@pytest.mark.parametrize("resources", [GPUS, {"cpus": 4}], ids=["heterogeneous", "equal"])
def test_a_server_that_is_killed_starts_again_alone_and_a_stop_ends_all_roles(
    cluster: Cluster, resources: dict[str, Any]
) -> None:
    server = SERVER | {"run": f'echo "at $TRAINWORKS_PORT"; {SERVER["run"]}', "restarts": 1}
    saves = "trap 'echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    run = cluster.roles(trainer={"run": saves, "resources": resources}, server=server).submit()
    for rank in range(3):
        up(run, rank)
    marks = {"SLURM_JOB_ID": run.handle, ROLE: "server", "TRAINWORKS_ROLE_INDEX": "1"}
    (killed,) = process.processes_with(marks)
    killed.kill()
    for rank in (1, 2):
        up(run, rank, times=2)
    assert ports_of(run, 1) == [ports_of(run, 1)[0]] * 2 and run.rank_log(0) == "up\n"
    lives = lives_of(read_events(run.run_dir.events_file))
    assert [life.begin for life in lives] == ["submitted", "role started again alone"]
    run.backend.stop(run.handle)
    assert (run.end().state, run.rank_log(0).splitlines()[-1]) == (JobState.STOPPED, "saved")
    wait_until(lambda: not run.processes())


@pytest.mark.lane("nightly")
def test_a_lost_node_of_any_role_puts_the_whole_job_back_into_the_queue(cluster: Cluster) -> None:
    once = 'test -e "$TRAINWORKS_RUN_DIR/told" && exit 0; touch "$TRAINWORKS_RUN_DIR/told"; echo up; sleep 600'
    run = cluster.roles(trainer={"run": once, "resources": GPUS}, server=SERVER, restarts=1).submit()
    for rank in range(3):
        up(run, rank)
    lost = run.status.nodes[2]
    cluster.sandbox.kill_node(lost)
    try:
        status = run.end()
        assert (status.state, status.restarts, lost in status.nodes) == (JobState.SUCCEEDED, 1, False)
        assert [event["cause"] for event in run.events("state") if event["state"] == "QUEUED"] == ["node_lost"]
    finally:
        cluster.sandbox.start_node(lost)


@pytest.mark.lane("nightly")
@pytest.mark.parametrize("alone", [True, False], ids=["its role alone", "the whole job"])
def test_a_server_that_does_not_listen_is_gone_before_it_starts_again(cluster: Cluster, *, alone: bool) -> None:
    """It starts again because of the other one; its agent would give it the grace of the job."""
    server = SERVER | {"run": "trap '' TERM; echo up; exec sleep 600", "restarts": int(alone)}
    trainer = {"run": "echo up; sleep 600", "resources": GPUS}
    run = cluster.roles(trainer=trainer, server=server, job={"grace": "10 min"}, restarts=int(not alone)).submit()
    for rank in range(3):
        up(run, rank)
    marks = {"SLURM_JOB_ID": run.handle, ROLE: "server"}
    before = {one.pid for one in process.processes_with(marks)}
    (killed,) = process.processes_with(marks | {"TRAINWORKS_ROLE_INDEX": "1"})
    killed.kill()
    for rank in range(3):
        up(run, rank, times=1 if rank == 0 and alone else 2)
    wait_until(lambda: not before.intersection(one.pid for one in process.processes_with(marks)))
    assert len(process.processes_with(marks)) == 2
    run.backend.stop(run.handle, at_once=True)
    assert run.end().state is JobState.STOPPED
