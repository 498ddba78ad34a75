"""Slurm's own power saving with our two programs: nodes come when a job needs them, and go when none does.

Slurm looks every 30 s at the jobs whose nodes start, so that two jobs on two pairs of nodes show everything at once.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.backends.slurm_cluster import Cluster, Run, started, wait_until
from trainworks.deploy.sandbox.slurm import missing_programs
from trainworks.deploy.sandbox.slurm_files import SandboxSize

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@dataclass(frozen=True)
class Scene:
    """One node that stays, and four that are not there; node4 cannot be started, node2 cannot be stopped."""

    cluster: Cluster
    running_at_first: list[str]
    both: Run
    """On node2 and node3."""
    one: Run
    """On node4 or node5."""
    node4: str
    """What Slurm says of it before the start of its node is given up, which replaces the reason."""


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0 or missing_programs():
        pytest.skip("NOT TESTED: Slurm; it takes root and Slurm's packages")
    with started(SandboxSize(nodes=5, cloud=4, down_after_s=3, node_timeout_s=60)) as cluster:
        assert set(states(cluster).values()) == {"idle~"}
        running_at_first = running(cluster)
        fail(cluster, "resume.sh", "node4", 3)
        fail(cluster, "suspend.sh", "node2", 4)
        both, one = submit(cluster, 2, without="node[4-5]"), submit(cluster, 1, without="node[2-3]")
        wait_until(lambda: states(cluster)["node4"].startswith("down"))
        node4 = cluster.call("scontrol", "show", "node", "node4")
        yield Scene(cluster, running_at_first, both, one, node4)
        cluster.forget_all()


def submit(cluster: Cluster, nodes: int, without: str) -> Run:
    """Submit a job to the nodes that start on demand."""
    slurm = {"partition": "cloud", "options": [f"--exclude={without}"]}
    return cluster.command("echo $SLURMD_NODENAME", nodes=nodes, slurm=slurm).submit()


def states(cluster: Cluster) -> dict[str, str]:
    """Of the nodes that come and go, in sinfo's words: `~` is powered down, `%` going, `#` coming."""
    said = cluster.call("sinfo", "--noheader", "--Node", "--partition=cloud", "--format=%N %t")
    return dict(line.split() for line in said.splitlines())


def running(cluster: Cluster) -> list[str]:
    """Nodes whose slurmd is there."""
    return [name for name, up in cluster.sandbox.status().items() if up and name.startswith("slurmd")]


def fail(cluster: Cluster, program: str, node: str, code: int) -> None:
    """Let the command of a program fail for one node."""
    path = cluster.sandbox.paths.folder / "etc" / program
    before, _, rest = path.read_text().partition("command=")
    command, _, rest = rest.partition("\n")
    failing = f"[ $NODE != {node} ] || exit {code}; {shlex.split(command)[0]}"
    path.write_text(f"{before}command={shlex.quote(failing)}\n{rest}")


def test_a_job_wakes_its_nodes_runs_and_they_go_again(scene: Scene) -> None:
    assert scene.running_at_first == ["slurmd-node1"]
    assert scene.both.end().raw == "COMPLETED"
    assert sorted(scene.both.rank_log(rank).strip() for rank in range(2)) == ["node2", "node3"]
    wait_until(lambda: states(scene.cluster)["node3"] == "idle~")
    assert "slurmd-node3" not in running(scene.cluster)


def test_a_node_that_cannot_be_started_is_down_with_the_reason_and_its_job_runs_elsewhere(scene: Scene) -> None:
    assert "Reason=trainworks: start ended with code 3, see" in scene.node4
    wait_until(lambda: scene.one.state == "SUCCEEDED")
    assert scene.one.rank_log(0).strip() == "node5"


def test_a_node_that_cannot_be_stopped_gets_no_job_and_says_so(scene: Scene) -> None:
    wait_until(lambda: states(scene.cluster)["node2"].startswith("down"))
    assert "Reason=trainworks: stop ended with code 4, see" in scene.cluster.call("scontrol", "show", "node", "node2")
