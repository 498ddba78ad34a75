"""Hosts that ssh reaches: whatever is killed or cut, nothing is left there, and the job goes on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.backends.beds import Job, SshBed, wait_until
from tests.backends.ssh_hosts import NEEDS_SSHD
from tests.gpus.machine import GpuMachine
from trainworks.api.launching.prepared_run import NODE_CHECK
from trainworks.backends.backend import NodeStatus
from trainworks.backends.local.machine import LocalNode, shape_of, shares_of, snapshot_nodes
from trainworks.backends.ssh.backend import SshBackend
from trainworks.backends.ssh.link import ssh_command
from trainworks.backends.ssh.node import HOST
from trainworks.config.engines import Ssh
from trainworks.config.run_file import Cluster, RunFile
from trainworks.errors import InfeasibleError, UsageError
from trainworks.host import process
from trainworks.host.probe import num_cores
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.spec_of_run import spec_of
from trainworks.jobs.state import JobState
from trainworks.queueing.placement import NodeIndex, place
from trainworks.record.events.log import read_events
from trainworks.record.run_dir import RunDir

UP = "echo up; sleep 600"
THEN_ENDS = 'test -e "$TRAINWORKS_RUN_DIR/done-$RANK" && exec echo up; touch "$TRAINWORKS_RUN_DIR/done-$RANK"; ' + UP
DETACHED = "setsid -f sleep 600; " + THEN_ENDS
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a cut link; needs root for a network namespace")


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SshBed]]:
    """Makes hosts that end with the test."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    made: list[SshBed] = []

    def make(count: int = 2, **options: str) -> SshBed:
        made.append(SshBed(tmp_path, count, **options))
        return made[0]

    yield make
    for bed in made:
        bed.close()


def on_host(job: Job, name: str) -> list[psutil.Process]:
    """What a job has running on a host."""
    return process.processes_with(job.bed.marks(job) | {HOST: name})


def is_gone(processes: list[psutil.Process]) -> None:
    """All of these have ended."""
    wait_until(lambda: not any(one.is_running() and one.status() != "zombie" for one in processes))


def causes(job: Job) -> list[object]:
    """Why the job has waited."""
    events = read_events(job.run_dir.events_file)
    return [one["cause"] for one in events if one["kind"] == "state" and one["state"] == "QUEUED"]


@NEEDS_SSHD
def test_a_closed_connection_ends_all_that_ran_there_and_the_job_starts_again(
    hosts: Callable[..., SshBed],
) -> None:
    bed = hosts()
    job = bed.start(DETACHED, restarts=1)
    there = on_host(job, "box2")
    assert any("sleep" in one.name() for one in there)
    for session in bed.site.sessions("box2"):
        session.kill()
    is_gone(there)
    assert job.end().state is JobState.SUCCEEDED
    assert (causes(job), len(bed.store.attempts(job.row.id))) == (["node_lost"], 2)
    wait_until(lambda: bed.left_of(job) == 0)


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_each_node_of_a_role_has_a_host_whose_share_is_its_own(hosts: Callable[..., SshBed]) -> None:
    place = (
        f'echo "$TRAINWORKS_ROLE ${HOST} [${{CUDA_VISIBLE_DEVICES-all}}] $OMP_NUM_THREADS";'
        ' echo "at $TRAINWORKS_ADDRESSES_SERVER"'
    )
    server = {"run": f"{place}; {UP}", "nodes": 2, "decides": False, "restarts": 1, "resources": {"cpus": 0.5}}
    saves = "trap 'echo saved; exit 0' TERM; echo up; while true; do sleep 0.1; done"
    bed = hosts(3)
    job = bed.submit(bed.job_of_roles(trainer={"run": f"{place}; {saves}", "resources": {"cpus": 1}}, server=server))
    job.wait_until_said("up", 3)
    said = [job.said(rank) for rank in range(3)]
    assert [lines[0] for lines in said] == ["trainer box1 [] 1", "server box2 [] 1", "server box3 [] 1"]
    places = [place.partition(":")[0] for place in said[0][1].removeprefix("at ").split(",")]
    assert places == [bed.site.addresses["box2"], bed.site.addresses["box3"]]
    assert [(one.node, one.cores) for one in job.row.placement] == [("box1", 1.0), ("box2", 0.5), ("box3", 0.5)]
    next(one for one in on_host(job, "box3") if one.name() == "sleep").kill()
    wait_until(lambda: [job.said(rank).count("up") for rank in range(3)] == [1, 2, 2])
    assert said[1][1] == job.said(1)[-2]  # the same ports
    job.stop()
    assert (job.end().state, job.said(0)[-1]) == (JobState.STOPPED, "saved")
    wait_until(lambda: bed.left_of(job) == 0)


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_lost_host_of_any_role_starts_the_whole_job_again_on_others(hosts: Callable[..., SshBed]) -> None:
    bed = hosts(3)
    wanted = bed.job_of_roles(trainer={"run": THEN_ENDS}, server={"run": UP, "decides": False})
    resolved = wanted.run_dir.read_resolved()
    recover = resolved.run_file.recover.model_copy(update={"max_restarts": 1})
    run_file = resolved.run_file.model_copy(update={"recover": recover})
    wanted.run_dir.write_resolved(resolved.model_copy(update={"run_file": run_file}))
    job = bed.submit(wanted)
    job.wait_until_said("up", 2)
    bed.site.kill("box2")
    assert job.end().state is JobState.SUCCEEDED
    assert [place.node for place in bed.store.attempts(job.row.id)[-1].placement] == ["box1", "box3"]
    assert causes(job) == ["node_lost"]


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_killed_supervisor_leaves_nothing_on_any_host(hosts: Callable[..., SshBed]) -> None:
    bed = hosts()
    job = bed.start(DETACHED)
    there = on_host(job, "box1") + on_host(job, "box2")
    bed.kill_the_supervisor(job)
    is_gone(there)
    row = job.end()
    assert (row.state, row.end.cause) == (JobState.FAILED, "agent_lost")
    wait_until(lambda: all(node.state == "free" for node in bed.backend.nodes()))


@NEEDS_SSHD
@pytest.mark.lane("test-all")
@pytest.mark.parametrize(
    ("program", "attempts"), [("trainworks.agent.command_agent", 1), ("trainworks.backends.ssh.node", 2)]
)
def test_what_a_killed_program_of_ours_leaves_on_a_host_is_ended_and_the_job_starts_again(
    hosts: Callable[..., SshBed], program: str, attempts: int
) -> None:
    bed = hosts()
    job = bed.start(DETACHED, restarts=1)
    there = on_host(job, "box2")
    killed = 0
    for one in bed.site.processes("box2"):
        with suppress(psutil.NoSuchProcess):
            words = one.cmdline()
            if program in words and words[-1] not in ("watch", "keep"):
                one.kill()
                killed += 1
    assert killed
    is_gone(there)
    assert job.end().state is JobState.SUCCEEDED
    assert len(bed.store.attempts(job.row.id)) == attempts


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_connection_that_is_lost_before_the_ranks_start_is_a_lost_node(hosts: Callable[..., SshBed]) -> None:
    bed = hosts(1)
    python, once = bed.folder / "python", bed.folder / "once"
    ends_once = f'test "$4" = run && mkdir {once} && exit 255'  # the first program of a job there looks for ports
    python.write_text(f'#!/bin/sh\n{ends_once}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    bed.cluster = {**bed.cluster, "ssh": {**bed.cluster["ssh"], "python": str(python)}}
    job = bed.submit(bed.job("echo up", nodes=1, restarts=1))
    assert job.end().state is JobState.SUCCEEDED
    assert (causes(job), job.said(0), once.exists()) == (["node_lost"], ["up"], True)


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_port_that_another_process_of_the_host_has_is_named(hosts: Callable[..., SshBed]) -> None:
    bed = hosts(1)
    with socket.create_server((bed.site.addresses["box1"], 0)) as taken:
        address, port = taken.getsockname()
        bed.cluster = {**bed.cluster, "rendezvous_port": port}
        row = bed.submit(bed.job("true", nodes=1, restarts=1)).end()
    assert (row.state, row.end.cause, row.attempt) == (JobState.FAILED, "environment", 1)
    assert f"box1 has no port for the ranks: cannot listen on {address}:{port}" in (row.end.message or "")


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_job_goes_on_with_fewer_hosts_or_waits_for_the_lost_one(hosts: Callable[..., SshBed]) -> None:
    bed = hosts()
    fewer = bed.start("echo $WORLD_SIZE; " + THEN_ENDS, restarts=1, min_nodes=1)
    bed.site.kill("box2")
    assert fewer.end().state is JobState.SUCCEEDED
    assert [place.node for place in bed.store.attempts(fewer.row.id)[-1].placement] == ["box1"]
    waits = bed.submit(bed.job("true"))
    wait_until(lambda: "box2 is down (it does not answer" in f"{waits.row.reason}", lambda: str(waits.row))
    assert bed.backend.nodes()[1].state == "down"
    bed.site.start("box2")
    assert waits.end().state is JobState.SUCCEEDED


@NEEDS_SSHD
@pytest.mark.lane("test-all")
@needs_root
def test_a_cut_link_ends_the_job_on_both_sides_of_the_cut(hosts: Callable[..., SshBed]) -> None:
    space, outside, inside = f"tw{os.getpid()}", f"twa{os.getpid()}", f"twb{os.getpid()}"

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", space)
    try:
        ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
        ip("addr", "add", "10.213.57.1/24", "dev", outside)
        ip("link", "set", outside, "up")
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", space, "addr", "add", "10.213.57.2/24", "dev", inside)
        ip("-n", space, "link", "set", inside, "up")
        bed = hosts(1, ip="10.213.57.{}", inside=space)
        job = bed.start(DETACHED, nodes=1, restarts=1)
        there = on_host(job, "box1")
        ip("link", "set", outside, "down")
        is_gone(there)
        wait_until(lambda: causes(job) == ["node_lost"])
        ip("link", "set", outside, "up")
        assert job.end().state is JobState.SUCCEEDED
    finally:
        ip("netns", "delete", space)


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_queues_of_other_hosts_share_the_ledger_of_a_host(hosts: Callable[..., SshBed]) -> None:
    bed = hosts()
    bed.resources = {"cpus": num_cores()}
    first = bed.start('echo up; until test -e "$TRAINWORKS_RUN_DIR/heard"; do sleep 0.1; done')
    assert [node.state for node in bed.backend.nodes()] == ["taken", "taken"]
    bed.cluster = {**bed.cluster, "hosts": ["box1"]}
    second = bed.submit(bed.job("true", nodes=1))
    wait_until(lambda: second.row.reason is not None)
    (first.run_dir.path / "heard").touch()
    assert second.end().state is JobState.SUCCEEDED
    ended, began = first.end().ended_at, second.row.started_at
    assert ended is not None and began is not None and began >= ended


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_host_that_fails_the_check_of_a_job_is_left_out_while_others_are_left(hosts: Callable[..., SshBed]) -> None:
    bed = hosts()

    def job(nodes: int) -> Job:
        made = bed.job("true", nodes=nodes, health=f'test "${HOST}" != box1')
        checked = made.run_dir.read_resolved().model_copy(update={"node_check": (NODE_CHECK,)})
        made.run_dir.write_resolved(checked)
        return bed.submit(made)

    one = job(1)
    assert one.end().state is JobState.SUCCEEDED
    assert [place.node for place in bed.store.attempts(one.row.id)[-1].placement] == ["box2"]
    both = job(2).end()
    assert (both.state, both.end.cause) == (JobState.FAILED, "node_unhealthy")
    assert (both.end.message or "").startswith("1 node failed the health check")


@NEEDS_SSHD
@pytest.mark.lane("test-all")
def test_a_broken_accelerator_of_a_host_is_out_of_service_alone_and_the_job_goes_on_elsewhere(
    hosts: Callable[..., SshBed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = GpuMachine(tmp_path / "gpus", 0, monkeypatch)
    for name in ("box1", "box2"):
        machine.describe({}, {}, host=name)
    bed = hosts()

    def job(command: str, gpus: int) -> Job:
        bed.resources = {"accelerators": f"gpu:{gpus}", "cpus": 1}
        made = bed.job(f"echo ${HOST} $CUDA_VISIBLE_DEVICES; {command}", nodes=1, restarts=1)
        looks = made.run_dir.read_resolved().model_copy(update={"accelerator_check": (NODE_CHECK,)})
        made.run_dir.write_resolved(looks)
        return bed.submit(made)

    breaks = f"test ${HOST} = box1 || exit 0; {machine.breaking(0, 2, 'box1')}; exit 1"
    both = job(breaks, 2)
    assert both.end().state is JobState.SUCCEEDED
    assert both.said(0) == ["box1 0,1", "box2 0,1"]
    assert causes(both) == ["gpu_fault"]
    one = job("true", 1)
    assert one.end().state is JobState.SUCCEEDED
    assert one.said(0) == ["box1 1"], "the other accelerator of the host is in service"
    why = "accelerator 0 is drained (gpu-ecc-errors: GPU 0 has 3 uncorrected errors; run t-1)"
    assert {node.name: (node.accelerators, node.reason) for node in bed.backend.nodes()} == {
        "box1": (1, why),
        "box2": (2, None),
    }


@NEEDS_SSHD
@pytest.mark.lane("test-all")
@needs_root
def test_a_host_that_does_not_see_the_run_directory_is_named(hosts: Callable[..., SshBed]) -> None:
    bed = hosts(1)
    bed.site.start("box1", hidden=bed.folder / "runs")
    row = bed.submit(bed.job("true", nodes=1)).end()
    assert (row.state, row.end.cause) == (JobState.FAILED, "launch_failed")
    assert "`box1` cannot run the job: it does not see the run directory" in (row.end.message or "")


def test_what_roles_take_of_their_hosts_and_which_kind_of_accelerator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    trainer = {"run": "true", "resources": {"accelerators": "gpu:2", "cpus": 4}}
    server = {"run": "true", "nodes": 2, "decides": False}

    def spec(**roles: object) -> JobSpec:
        keys = {"name": "t", "roles": roles, "cluster": {"engine": "ssh", "hosts": ["a", "b", "c"]}}
        return spec_of(RunFile.model_validate(keys), run_id="t-1", working_folder="/")

    backend = SshBackend.connect(Cluster.model_validate({"engine": "ssh", "ssh": {"hosts": ["a", "b", "c"]}}))
    asked = backend.adapted(spec(trainer=trainer, server=server))
    box = LocalNode(name="a", cores=8.0, devices=(0, 1), accelerator="h100", memory_bytes=2**30)
    shares = shares_of(asked, [box, replace(box, name="b"), replace(box, name="c")])
    assert [(one.cores, one.accelerators, one.accelerator) for one in shares] == [
        (4.0, 2, None),
        (1.0, 0, None),
        (1.0, 0, None),
    ]
    with pytest.raises(InfeasibleError, match="needs 4 hosts, and 3 may be used"):
        backend.check(spec(trainer=trainer | {"nodes": 2}, server=server))
    kinds = [trainer | {"resources": {"accelerators": kind}} for kind in ("h100:1", "l4:1")]
    hosts = (("a", "NVIDIA H100 80GB HBM3"), ("b", "NVIDIA L4"), ("c", None))
    found = [NodeStatus(name=name, state="idle", accelerator=kind) for name, kind in hosts]
    monkeypatch.setattr(SshBackend, "nodes", lambda self: found)
    named = backend.adapted(spec(one=kinds[0], other=kinds[1], server=server | {"nodes": 1}))
    assert (named.exclude, [role.exclude for role in named.roles]) == ((), [("b", "c"), ("a", "c"), ()])
    machine = [box, replace(box, name="b"), replace(box, name="c", devices=(), accelerator=None)]
    nodes = NodeIndex(snapshot_nodes(machine, {}))
    places = place(nodes.gang(shape_of(named, machine)), nodes.sizes)
    assert [nodes.nodes[index].name for index in places] == ["a", "b", "c"]
    with pytest.raises(UsageError, match="no host has an accelerator `mi300x`"):
        backend.adapted(spec(one=kinds[0], other=trainer | {"resources": {"accelerators": "mi300x:1"}}))


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "a;b", "ada@", "a:0", "$(id)"])
def test_a_host_is_never_an_option_or_a_shell_text(host: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Ssh(hosts=(host,))


def test_words_reach_a_host_as_they_are() -> None:
    words = ["python", "it's", "$(id) `id`", "a b\nc"]
    *command, line = ssh_command(Ssh(hosts=("ada@box:2222",)), "ada@box:2222", words)
    assert command[-6:] == ["-l", "ada", "-p", "2222", "--", "box"]
    shown = subprocess.run(["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True).stdout
    assert shown.split("\0")[:-1] == words


def test_hosts_of_a_run_file_are_all_taken_unless_it_says_how_many() -> None:
    def cluster(**keys: object) -> Cluster:
        given = {"name": "t", "run": "true", "cluster": {"engine": "ssh", "hosts": ["a", "b"], **keys}}
        return RunFile.model_validate(given).cluster

    assert (cluster().nodes, cluster().ssh.hosts, cluster(nodes=1).nodes) == (2, ("a", "b"), 1)
    with pytest.raises(ValueError, match="names `a` twice"):
        cluster(hosts=["a", "a"])
    with pytest.raises(UsageError, match=r"`cluster\.hosts` is missing"):
        SshBackend.connect(Cluster(engine="ssh"))


def test_a_job_that_needs_more_hosts_than_there_are_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    run_file = RunFile.model_validate(
        {"name": "t", "run": "true", "cluster": {"engine": "ssh", "hosts": ["a"], "nodes": 2}}
    )
    spec = spec_of(run_file, run_id="t-1", working_folder="/")
    backend = SshBackend.connect(run_file.cluster)
    with pytest.raises(InfeasibleError, match="needs 2 hosts, and 1 may be used"):
        backend.check(spec)
    assert RunDir(tmp_path / "t-1").path.exists() is False
