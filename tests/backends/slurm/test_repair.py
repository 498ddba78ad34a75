"""A real Slurm with a node that a reset repairs, one that nothing repairs, and one that a human has drained."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import Cluster, wait_until
from trainworks.recover.repairs import MARK

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

POLICY = """\
max_share: 50%
check: test ! -e {folder}/$NODE.broken -a ! -e {folder}/$NODE.dead
reset: rm -f {folder}/$NODE.broken; echo reset >> {folder}/$NODE.log
reboot: ""
ticket: cp $TICKET {folder}/$NODE.ticket; echo RMA-7
"""


def report(node: str) -> str:
    """What `trainworks health --json` writes on a node with a GPU error."""
    check = {"check": "xid", "verdict": "failed", "problems": ["GPU 0 had XID 48: double-bit ECC error"]}
    return json.dumps({"node": node, "checks": [check], "facts": {}})


@pytest.fixture
def site(cluster: Cluster, tmp_path: Path) -> Iterator[list[str]]:
    """Arguments that repair the nodes 2 and 3 by a policy; what they drained is in service again afterwards."""
    (tmp_path / "policy.yaml").write_text(POLICY.format(folder=tmp_path))
    for node in ("node2", "node3"):
        (tmp_path / f"{node}.json").write_text(report(node))
    sources = [word for node in ("node2", "node3") for word in ("--from", str(tmp_path / f"{node}.json"))]
    yield ["repair", "slurm", *sources, "--policy", str(tmp_path / "policy.yaml"), "--json"]
    for node in cluster.command("true").backend.nodes():
        if node.state in ("drained", "draining"):
            cluster.command("true").backend.undrain(node.name)


def said(cluster: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = cluster.env | {"TRAINWORKS_DATA": str(folder / "data")}
    command = [sys.executable, "-m", "trainworks", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def test_a_node_comes_back_and_another_gets_a_ticket_while_its_job_ends_in_peace(
    cluster: Cluster, site: list[str], tmp_path: Path
) -> None:
    (tmp_path / "node2.broken").touch()
    (tmp_path / "node3.dead").touch()
    job = f"until [ -e {tmp_path}/go ]; do sleep 0.1; done; echo done"
    run = cluster.command(job, nodes=1, slurm={"options": ["--nodelist=node3"]}).start()
    run.backend.drain("node1", "fan 3")

    plan = json.loads(said(cluster, tmp_path, *site, "--dry-run").stdout)
    assert [(each["node"], each["step"]) for each in plan] == [("node2", "drain"), ("node3", "drain")]
    assert [node.state for node in run.backend.nodes()] == ["drained", "free", "mixed", "free"]

    env = cluster.env | {"TRAINWORKS_DATA": str(tmp_path / "data")}
    first = subprocess.Popen([sys.executable, "-m", "trainworks", *site, "--yes"], env=env, stdout=subprocess.DEVNULL)
    wait_until(lambda: run.backend.nodes()[2].state == "draining")
    wait_until((tmp_path / "node2.log").exists)
    first.kill()
    first.wait()
    assert run.state == "RUNNING"
    (tmp_path / "go").touch()
    assert (run.end().nodes, run.state) == (("node3",), "SUCCEEDED")
    assert run.rank_log(0) == "done\n"

    done = said(cluster, tmp_path, *site, "--yes")
    assert {each["node"]: each["step"] for each in json.loads(done.stdout)}["node3"] == "out"
    assert done.returncode == 1
    nodes = {node.name: node for node in run.backend.nodes()}
    assert [node.state for node in nodes.values()] == ["drained", "free", "drained", "free"]
    assert nodes["node1"].reason == "fan 3"
    assert (nodes["node3"].reason or "").startswith(f"{MARK}GPU 0 had XID 48")
    assert json.loads((tmp_path / "node3.ticket").read_text())["node"] == "node3"

    events = json.loads(said(cluster, tmp_path, "repair", "slurm", "--history", "--json").stdout)
    steps = [event["step"] for event in events if event["node"] == "node2"]
    assert steps == ["waits", "drain", "drained", "reset", "check", "release", "back"]


def test_a_node_that_its_check_drains_is_repaired_and_returned_without_being_named(
    cluster: Cluster, site: list[str], tmp_path: Path
) -> None:
    backend = cluster.command("true").backend
    (tmp_path / "node2.broken").touch()
    drain = ["health", "--nodes", str(tmp_path / "node2.json"), "--drain", "slurm"]
    assert said(cluster, tmp_path, *drain).stderr == "node2 takes no more jobs\n"
    done = said(cluster, tmp_path, "repair", "slurm", *site[-3:], "--yes")
    assert (done.returncode, [each["step"] for each in json.loads(done.stdout)]) == (0, ["back"])
    assert (tmp_path / "node2.log").read_text() == "reset\n"
    assert {node.state for node in backend.nodes()} == {"free"}


@pytest.fixture
def reboot_program(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """A RebootProgram that repairs node2, and starts its slurmd anew as after a boot."""
    conf, pid = cluster.sandbox.paths.conf, cluster.sandbox.paths.pid_file("slurmd-node2")
    program = cluster.folder / "reboot.sh"
    boot = f"sleep 1; kill -9 $(cat {pid}); rm {tmp_path}/node2.broken; exec setsid slurmd -N node2 -b -f {conf}"
    program.write_text(f"#!/bin/sh\n({boot}) > {cluster.folder}/reboot.log 2>&1 &\n", encoding="utf-8")
    program.chmod(0o755)
    before = conf.read_text(encoding="utf-8")
    conf.write_text(f"{before}RebootProgram={program}\n", encoding="utf-8")
    cluster.call("scontrol", "reconfigure")
    yield
    conf.write_text(before, encoding="utf-8")
    cluster.call("scontrol", "reconfigure")


@pytest.mark.usefixtures("reboot_program")
def test_slurm_reboots_a_node_and_it_takes_jobs_after_its_check_alone(cluster: Cluster, tmp_path: Path) -> None:
    pid = cluster.sandbox.paths.pid_file("slurmd-node2")
    (tmp_path / "node2.broken").touch()
    (tmp_path / "policy.yaml").write_text(
        f"max_share: 25%\ncheck: 'test ! -e {tmp_path}/$NODE.broken'\nreset: ''\n"
        f"reboot: scontrol reboot $NODE\nuptime: ps -o etimes= -p $(cat {pid})\n"
    )
    (tmp_path / "node2.json").write_text(report("node2"))
    options = ["--from", str(tmp_path / "node2.json"), "--policy", str(tmp_path / "policy.yaml"), "--yes"]
    done = said(cluster, tmp_path, "repair", "slurm", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    events = json.loads(said(cluster, tmp_path, "repair", "slurm", "--history", "--json").stdout)
    steps = ["waits", "drain", "drained", "reboot", "booting", "check", "release", "back"]
    assert [event["step"] for event in events] == steps
    run = cluster.command("true", nodes=1, slurm={"options": ["--nodelist=node2"]}).submit()
    assert (run.end().nodes, run.state) == (("node2",), "SUCCEEDED")
