"""Racks that are one scale-up domain: blocks of Slurm, and the nodes of a domain that IMEX knows."""

from __future__ import annotations

import pytest
import yaml

from trainworks.catalog.cluster import parse_cluster
from trainworks.config.stack import Stack
from trainworks.deploy.project import project_files
from trainworks.deploy.proposed_stack import proposed_stack
from trainworks.deploy.racks import racks_of
from trainworks.deploy.slurm_conf import slurm_files
from trainworks.plan.network.design import design_network


def stack_of(on: str, **slurm: str) -> Stack:
    cluster = parse_cluster(on)
    found = yaml.safe_load(proposed_stack(cluster, design_network(cluster)))
    return Stack.model_validate(found | {"slurm": found["slurm"] | slurm})


def test_a_rack_is_a_block_of_slurm_and_not_a_leaf_of_a_tree() -> None:
    files = slurm_files(stack_of("3x GB200 NVL72"))
    lines = files["topology.conf"].splitlines()
    blocks = [line for line in lines if line.startswith("BlockName=")]
    assert [line.partition(" ")[0] for line in blocks] == ["BlockName=rack1", "BlockName=rack2", "BlockName=rack3"]
    assert all(line.count(",") == 17 for line in blocks)
    assert lines[-1] == "BlockSizes=18"
    assert "TopologyPlugin=topology/block" in files["slurm.conf"]
    assert "SwitchType=switch/nvidia_imex" in files["slurm.conf"]
    assert "topology/tree" not in files["slurm.conf"]


def test_a_rack_that_is_not_full_sets_the_size_of_a_block() -> None:
    lines = slurm_files(stack_of("30 nodes of GB200 NVL72 tray"))["topology.conf"].splitlines()
    assert lines[-1] == "BlockSizes=12"


@pytest.mark.parametrize(("on", "release"), [("3x GB200 NVL72", "23.02"), ("40 nodes of DGX H100", "26.05")])
def test_other_nodes_and_older_releases_keep_a_tree_of_switches(on: str, release: str) -> None:
    files = slurm_files(stack_of(on, release=release))
    assert "TopologyPlugin=topology/tree" in files["slurm.conf"]
    assert "BlockName" not in files["topology.conf"]
    assert "imex" not in files["slurm.conf"]


def test_imex_knows_the_nodes_of_its_rack_alone() -> None:
    stack = stack_of("2x GB200 NVL72")
    files = project_files(stack, {}, {})
    racks = [list(nodes.values()) for nodes in racks_of(stack).values()]
    assert [files[f"roles/gpu/files/imex/rack{number}.cfg"].split() for number in (1, 2)] == racks
    hosts = yaml.safe_load(files["inventory.yaml"])["all"]["hosts"]
    assert (hosts["gpu18"]["imex_domain"], hosts["gpu19"]["imex_domain"]) == ("rack1", "rack2")
    assert "imex_domain" not in hosts["login1"]
    branch = yaml.safe_load(files["group_vars/nodes_gpu.yaml"])["gpu_imex_packages"]
    assert branch == [f"nvidia-imex-{stack.gpu.driver}" if stack.gpu else ""]


def test_nodes_beside_the_racks_leave_them_their_imex() -> None:
    cluster = parse_cluster("2x GB200 NVL72")
    found = yaml.safe_load(proposed_stack(cluster, design_network(cluster)))
    hardware = {"sockets": 2, "cores_per_socket": 64, "memory": "500 GiB"}
    found["nodes"].append({"hosts": "cpu1", "address": "10.10.9.1", "roles": ["compute"], "hardware": hardware})
    files = project_files(Stack.model_validate(found), {}, {})
    assert "roles/gpu/files/imex/rack2.cfg" in files
    assert yaml.safe_load(files["group_vars/nodes_gpu.yaml"])["gpu_imex_packages"] != []
    assert "gpu_imex_packages" not in yaml.safe_load(files["group_vars/nodes_cpu1.yaml"])
    # blocks are for a cluster of racks alone: the other node would be in none
    assert "TopologyPlugin=topology/tree" in files["roles/scheduler/files/slurm.conf"]


def test_nodes_without_an_nvlink_domain_between_them_have_no_imex() -> None:
    files = project_files(stack_of("4 nodes of DGX H100"), {}, {})
    assert not any("imex/" in name for name in files)
    assert yaml.safe_load(files["group_vars/nodes_gpu.yaml"])["gpu_imex_packages"] == []
