"""Slurm's own power saving with our two programs: nodes come when a job needs them, and go when none does."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import pytest

from tests.backends.slurm_cluster import Cluster, started, wait_until
from trainworks.deploy.sandbox.slurm import missing_programs
from trainworks.deploy.sandbox.slurm_files import SandboxSize

pytestmark = [pytest.mark.slurm, pytest.mark.slow]
ON_CLOUD = {"slurm": {"partition": "cloud"}}


@pytest.fixture(scope="module")
def _cloud() -> Iterator[Cluster]:
    if os.geteuid() != 0 or missing_programs():
        pytest.skip("NOT TESTED: Slurm; it takes root and Slurm's packages")
    with started(SandboxSize(nodes=3, cloud=2, down_after_s=3, node_timeout_s=60)) as cluster:
        yield cluster


@pytest.fixture
def cloud(_cloud: Cluster) -> Iterator[Cluster]:
    """One node that stays, and two that are not there."""
    wait_until(lambda: states(_cloud) == {"node2": "idle~", "node3": "idle~"})
    programs = {name: _cloud.sandbox.paths.folder / "etc" / name for name in ("resume.sh", "suspend.sh")}
    kept = {path: path.read_text() for path in programs.values()}
    yield _cloud
    _cloud.forget_all()
    for path, text in kept.items():
        path.write_text(text)
    for node, state in states(_cloud).items():
        if state.startswith("down"):
            wait_until(lambda: states(_cloud)[node] == "down~")  # noqa: B023
            _cloud.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def states(cluster: Cluster) -> dict[str, str]:
    """Of the nodes that come and go, in sinfo's words: `~` is powered down, `%` going, `#` coming."""
    said = cluster.call("sinfo", "--noheader", "--Node", "--partition=cloud", "--format=%N %t")
    return dict(line.split() for line in said.splitlines())


def runs(cluster: Cluster) -> list[str]:
    """Nodes whose slurmd is there."""
    return [name for name, up in cluster.sandbox.status().items() if up and name.startswith("slurmd")]


def say(cluster: Cluster, program: str, command: str) -> None:
    """Give a program another command for one node."""
    path = cluster.sandbox.paths.folder / "etc" / program
    before, _, rest = path.read_text().partition("command=")
    path.write_text(f"{before}command={shlex.quote(command)}\n{rest.partition(chr(10))[2]}")


def test_a_job_wakes_its_nodes_runs_and_they_go_again(cloud: Cluster) -> None:
    assert runs(cloud) == ["slurmd-node1"]
    run = cloud.command("echo $SLURMD_NODENAME", nodes=2, **ON_CLOUD).submit()
    assert run.end().raw == "COMPLETED"
    assert sorted(run.rank_log(rank).strip() for rank in range(2)) == ["node2", "node3"]
    wait_until(lambda: states(cloud) == {"node2": "idle~", "node3": "idle~"})
    assert runs(cloud) == ["slurmd-node1"]


def test_a_node_that_cannot_be_started_is_down_with_the_reason_and_its_job_runs_elsewhere(cloud: Cluster) -> None:
    good = (cloud.sandbox.paths.folder / "etc" / "resume.sh").read_text().partition("command=")[2].splitlines()[0]
    say(cloud, "resume.sh", f"[ $NODE != node2 ] || exit 3; {shlex.split(good)[0]}")
    run = cloud.command("echo $SLURMD_NODENAME", nodes=1, **ON_CLOUD).submit()
    wait_until(lambda: states(cloud)["node2"].startswith("down"))
    assert "Reason=trainworks: start ended with code 3, see" in cloud.call("scontrol", "show", "node", "node2")
    wait_until(lambda: run.state == "SUCCEEDED")
    assert run.rank_log(0).strip() == "node3"


def test_a_node_that_cannot_be_stopped_gets_no_job_and_says_so(cloud: Cluster) -> None:
    say(cloud, "suspend.sh", "exit 4")
    cloud.command("true", nodes=1, **ON_CLOUD).submit().end()
    wait_until(lambda: any(state.startswith("down") for state in states(cloud).values()))
    node = next(name for name, state in states(cloud).items() if state.startswith("down"))
    assert "Reason=trainworks: stop ended with code 4, see" in cloud.call("scontrol", "show", "node", node)
    cloud.sandbox.kill_node(node)
