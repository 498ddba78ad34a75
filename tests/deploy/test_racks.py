"""Racks that are one scale-up domain: blocks of Slurm, and the nodes of a domain that IMEX knows."""

from __future__ import annotations

import pytest
import yaml

from trainworks.catalog.cluster import parse_cluster
from trainworks.config.stack import Stack
from trainworks.deploy.delivered import delivered_files
from trainworks.deploy.project import project_files
from trainworks.deploy.proposed_stack import proposed_stack
from trainworks.deploy.racks import racks_of
from trainworks.deploy.slurm_conf import slurm_files
from trainworks.plan.network.design import design_network
from trainworks.review.check import check_text
from trainworks.review.registry import selected_rules


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
    assert "SwitchType=switch/nvidia_imex" in files["roles/scheduler/files/slurm.conf"]


def mixed(release: str, racks: str = "2x GB200 NVL72", num_others: int = 4) -> Stack:
    """Racks beside H100 and CPU nodes, with a partition for each kind and one for all."""
    cluster = parse_cluster(racks)
    found = yaml.safe_load(proposed_stack(cluster, design_network(cluster)))
    hardware = {"sockets": 2, "cores_per_socket": 64, "memory": "500 GiB"}
    compute = {"roles": ["compute"]}
    found["nodes"] += [
        compute | {"hosts": f"h[1-{num_others}]", "address": "10.10.8.1", "machine": "DGX H100", "fabric": "none"},
        compute | {"hosts": "cpu1", "address": "10.10.9.1", "hardware": hardware},
    ]
    del found["environments"]  # trays are aarch64, and the others are not
    partitions = [{"name": name, "nodes": [name]} for name in ("gpu", "h", "cpu1")] + [{"name": "all"}]
    return Stack.model_validate(found | {"slurm": {"release": release, "partitions": partitions}})


def test_a_partition_of_racks_has_blocks_and_the_others_switches() -> None:
    stack = mixed("25.05")
    files = slurm_files(stack)
    assert "topology.conf" not in files
    switches, racks = yaml.safe_load(files["topology.yaml"])
    assert (switches["topology"], switches["cluster_default"]) == ("switches", True)
    under = ",".join(each["nodes"] for each in switches["tree"]["switches"] if "nodes" in each).split(",")
    assert sorted(under) == sorted(stack.hosts("compute"))
    assert switches["tree"]["switches"][-1]["children"] == f"leaf[1-{len(switches['tree']['switches']) - 1}]"
    assert (racks["topology"], racks["cluster_default"]) == ("racks", False)
    assert racks["block"]["block_sizes"] == [18]
    blocks = {each["block"]: each["nodes"].split(",") for each in racks["block"]["blocks"]}
    assert {name: len(nodes) for name, nodes in blocks.items()} == {"rack1": 18, "rack2": 18}
    conf = files["slurm.conf"]
    assert "SwitchType=switch/nvidia_imex" in conf
    assert "TopologyPlugin" not in conf
    lines = [line for line in conf.splitlines() if line.startswith("PartitionName=")]
    assert ["Topology=racks" in line for line in lines] == [True, False, False, False]


@pytest.mark.parametrize(
    ("num_others", "plugin", "last"), [(4, "block", "BlockSizes=5"), (40, "tree", "SwitchName=spine")]
)
def test_an_older_slurm_has_the_topology_of_most_nodes(num_others: int, plugin: str, last: str) -> None:
    stack = mixed("24.11", num_others=num_others)
    files = slurm_files(stack)
    lines = files["topology.conf"].splitlines()
    assert f"TopologyPlugin=topology/{plugin}\n" in files["slurm.conf"]
    assert "SwitchType=switch/nvidia_imex" in files["slurm.conf"]
    assert "Topology=" not in files["slurm.conf"]
    assert lines[-1].startswith(last)
    # every node is in it: Slurm gives jobs no other
    placed = [name for line in lines if " Nodes=" in line for name in line.partition("Nodes=")[2].split(",")]
    assert sorted(placed) == sorted(stack.hosts("compute"))


def test_a_topology_that_another_replaces_is_removed_and_verified() -> None:
    stack = mixed("26.05")
    files = project_files(stack, {}, {})
    assert "/etc/slurm/topology.yaml" in delivered_files(stack, files, {})["gpu01"]
    assert "topology.yaml" in yaml.safe_load(files["group_vars/all.yaml"])["slurm_files"]
    tasks = yaml.safe_load(files["roles/scheduler/tasks/main.yaml"])
    (removed,) = [task for task in tasks if "Remove the topology" in task["name"]]
    assert "difference(slurm_files)" in removed["loop"]


@pytest.mark.parametrize(
    ("release", "nodes", "message"),
    [
        ("24.11", ", nodes: [gpu]", "Slurm 24.11 has one topology for all nodes"),
        ("26.05", "", "`train` has racks and other nodes"),
        ("26.05", ", nodes: [gpu, cpu]", "`train` has racks and other nodes"),
        ("26.05", ", nodes: [gpu]", None),
    ],
)
def test_check_warns_where_racks_are_no_topology_of_their_own(release: str, nodes: str, message: str | None) -> None:
    text = (
        "os: Ubuntu 24.04\nnodes:\n"
        "  - {hosts: 'gpu[1-18]', machine: GB200 NVL72 tray, roles: [compute]}\n"
        "  - {hosts: 'cpu[1-2]', roles: [compute], hardware: {sockets: 2, cores_per_socket: 64, memory: 500 GiB}}\n"
        f"slurm: {{release: '{release}', partitions: [{{name: train{nodes}}}]}}\n"
    )
    found = check_text(text, selected_rules(["TW753"], ()), name="stack.yaml")
    assert [each.severity for each in found] == ["warning"] * (message is not None)
    assert all(str(message) in each.message for each in found)


def test_nodes_without_an_nvlink_domain_between_them_have_no_imex() -> None:
    files = project_files(stack_of("4 nodes of DGX H100"), {}, {})
    assert not any("imex/" in name for name in files)
    assert yaml.safe_load(files["group_vars/nodes_gpu.yaml"])["gpu_imex_packages"] == []
