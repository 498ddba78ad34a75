"""From a sizing or a network to a stack file that `deploy` takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import trainworks
from trainworks.api.deploying import check_stack, render_stack
from trainworks.api.proposal import stack_yaml
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.stack import load_stack
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.deploy.fabric.network import networks_of
from trainworks.deploy.fabric.switches import rails, switches
from trainworks.deploy.hardware import gres_of, hardware_of
from trainworks.deploy.proposed_stack import proposed_stack
from trainworks.deploy.rollout import batches
from trainworks.errors import RunFileError, UsageError
from trainworks.plan.network.addresses import address_plan
from trainworks.plan.network.cables import cable_plan
from trainworks.plan.network.design import NetworkDesign

RUN = "examples/plan-llama-2-7b.yaml"


def written(folder: Path, text: str) -> Path:
    """A stack file with this text."""
    path = folder / "stack.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def filled_in(text: str) -> str:
    """The file after a person has looked at every marked line."""
    return re.sub(rf"\s*{FILL_IN}.*", "", text)


def test_a_proposal_becomes_a_stack_that_is_checked_filled_in_and_rendered(tmp_path: Path) -> None:
    proposal = trainworks.size(RUN, deadline="3d", only=["H100-SXM-80GB"], contract=["on-demand"])
    stack = written(tmp_path, stack_yaml(proposal))
    assert {one.rule for one in check_stack(stack).findings if one.severity == "error"} == {"TW740"}
    with pytest.raises(RunFileError, match="needs your own value: your public key"):
        render_stack(stack)
    files = render_stack(written(tmp_path, filled_in(stack.read_text())))
    nodes = re.findall(r"NodeName=(gpu\S+)", files["roles/scheduler/files/slurm.conf"])
    assert nodes and f"{proposal.chosen.num_nodes}" in nodes[0]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("4 nodes of DGX H100", "driver: '620'"),
        ("4 nodes of DGX A100", "driver: '620'"),
        ("2x p3.16xlarge", "driver: '580'"),
        ("8 nodes of DGX B200", "driver: '620'"),
        ("32x H100", "fill in: your machine"),
    ],
)
def test_releases_fit_the_gpus_and_are_supported(tmp_path: Path, cluster: str, expected: str) -> None:
    text = proposed_stack(parse_cluster(cluster))
    assert expected in text
    findings = check_stack(written(tmp_path, filled_in(text))).findings
    assert [one.message for one in findings if one.severity != "note"] == []


def test_every_placeholder_is_named_with_its_line_by_check_and_by_render(tmp_path: Path) -> None:
    text = stack_yaml(trainworks.network(on="16 nodes of DGX A100"))
    stack = written(tmp_path, text)
    marked = [number for number, line in enumerate(text.splitlines(), 1) if FILL_IN in line]
    assert len(marked) == 4
    assert [one.line for one in check_stack(stack).findings if one.rule == "TW740"] == marked
    with pytest.raises(RunFileError) as caught:
        render_stack(stack)
    lines = [re.search(r":(\d+)", str(one.place)) for one in caught.value.problems]
    assert [int(line[1]) for line in lines if line] == marked


def test_a_machine_that_is_assumed_is_marked(tmp_path: Path) -> None:
    text = proposed_stack(parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x HDR"))
    line = next(line for line in text.splitlines() if "machine:" in line)
    assert line.endswith("machine: 'DGX A100 80GB'  # fill in: your machine; this one of the catalogue is assumed")


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ("8 nodes of GB300 NVL72 tray", (2, 72, "gpu:gb300:4")),
        ("4x Standard_ND96isr_H100_v5", (2, 24, "gpu:h100:8")),
        ("8 nodes of 8x H100-SXM-80GB", (2, 56, "gpu:h100:8")),
    ],
)
def test_the_hardware_is_that_of_the_catalogue(tmp_path: Path, cluster: str, expected: tuple[int, int, str]) -> None:
    stack, _ = load_stack(written(tmp_path, proposed_stack(parse_cluster(cluster))))
    found = hardware_of(next(stack.groups("compute")))
    assert found.accelerators is not None
    assert (found.sockets, found.cores_per_socket, gres_of(found.accelerators)) == expected


@pytest.mark.parametrize("cluster", ["4x Standard_ND96isr_H100_v5", "4 nodes of 8x H100-SXM-80GB over 8x NDR"])
def test_gpus_behind_nvswitches_get_a_fabric_manager_however_their_node_is_described(
    tmp_path: Path, cluster: str
) -> None:
    variables = render_stack(written(tmp_path, filled_in(proposed_stack(parse_cluster(cluster)))))[
        "group_vars/nodes_gpu.yaml"
    ]
    assert yaml.safe_load(variables)["gpu_fabric_manager"] is True


DESIGNS = [
    ("64 nodes of DGX H100 over 4x HDR", {}),
    ("64 nodes of DGX H100", {}),
    ("72 nodes of DGX H100 over 4x NDR", {"topology": "spine-leaf"}),
    ("48 nodes of DGX H100 over 8x 400GbE", {"topology": "rail-optimised", "oversubscription": 2.0}),
    ("31 nodes of DGX H100", {"topology": "rail-optimised", "spare_slots": 1}),
    ("40 nodes of 8x A100-SXM-80GB over 1x 100GbE", {"topology": "spine-leaf", "switch": "32x 100 Gb/s"}),
    ("20 nodes of 8x H100-SXM-80GB over 1x EFA 400", {"switch": "16x 400 Gb/s", "topology": "spine-leaf"}),
    ("300 nodes of DGX H100 over 8x 400GbE", {"topology": "3-tier"}),
    ("36 nodes of GB300 NVL72 tray", {}),
    ("1 node of DGX H100", {}),
]


def leaves_by_cables(design: NetworkDesign) -> dict[int, str]:
    """Switch of the first adapter of each node, by the cable plan."""
    joined = [each for each in cable_plan(design) if re.fullmatch(r"nic1(/1)?", each.from_port)]
    joined = [each for each in joined if each.tier.startswith("node") and each.from_device.startswith("node")]
    return {int(each.from_device.removeprefix("node")): each.to_device for each in joined}


@pytest.mark.parametrize(("on", "options"), DESIGNS, ids=[on for on, _ in DESIGNS])
def test_every_file_of_a_render_has_the_network_that_was_proposed(
    tmp_path: Path, on: str, options: dict[str, object]
) -> None:
    stack, cluster = tmp_path / "stack.yaml", parse_cluster(on)
    if cluster.num_nodes == 1:
        stack.write_text(filled_in(proposed_stack(cluster)))
        assert [len(each.leaves) for each in networks_of(load_stack(stack)[0])] == [1]
        return
    plan = trainworks.network(on=on, **options)  # type: ignore[arg-type]
    stack.write_text(filled_in(stack_yaml(plan)))
    (network,) = networks_of(load_stack(stack)[0])
    for name in ("topology", "nodes", "nics", "switches", "cables", "nodes_per_set", "spare_slots", "split"):
        assert getattr(network.design, name) == getattr(plan.design, name), name
    files = render_stack(stack)
    racks = [
        sorted(number for number, leaf in leaves_by_cables(plan.design).items() if leaf == name)
        for name in dict.fromkeys(leaves_by_cables(plan.design).values())
    ]
    topology = files["roles/scheduler/files/topology.conf"]
    if "BlockName" not in topology:  # racks of one scale-up domain are blocks, as tests/deploy/test_racks.py has it
        written_racks = re.findall(r"SwitchName=leaf\d+ Nodes=(\S+)", topology)
        assert [[int(name.removeprefix("gpu")) for name in rack.split(",")] for rack in written_racks] == racks
    computing = [each for each in batches(load_stack(stack)[0], None) if each.computes]
    assert [[int(name.removeprefix("gpu")) for name in each.hosts] for each in computing] == racks
    switches = {name.removeprefix("switches/").split(".")[0] for name in files if name.startswith("switches/")}
    if switches:
        assert len(switches) == plan.design.num_switches
        assert set(leaves_by_cables(plan.design).values()) <= switches


@pytest.mark.parametrize("on", ["48 nodes of DGX H100 over 8x 400GbE", "16 nodes of DGX A100"])
def test_the_drawing_of_a_network_has_the_addresses_that_deploy_renders(tmp_path: Path, on: str) -> None:
    plan = trainworks.network(on=on)
    drawn = {
        (one.network, one.devices): [str(one.first + one.step * index) for index in range(one.count)]
        for one in address_plan(plan.design, plan.support)
    }
    stack = load_stack(written(tmp_path, filled_in(stack_yaml(plan))))[0]
    assert list(stack.hosts("compute").values()) == drawn["management", "nodes"]
    if stack.fabric is None or stack.fabric.link != "roce":
        assert not [network for network, _ in drawn if network == "compute"]
        return
    assert [str(rail.address) for rail in rails(stack)] == drawn["compute", "adapters"]
    assert [str(switch.loopback) for switch in switches(stack)] == drawn["compute", "switches"]


def test_the_network_of_the_issue_is_applied_rack_by_rack(tmp_path: Path) -> None:
    text = stack_yaml(trainworks.network(on="64 nodes of DGX H100 over 4x HDR"))
    stack, _ = load_stack(written(tmp_path, text))
    assert [len(batch.hosts) for batch in batches(stack, None)] == [2, *[5] * 12, 4]


def test_a_network_that_its_design_cannot_be_is_refused_at_its_line(tmp_path: Path) -> None:
    text = filled_in(stack_yaml(trainworks.network(on="16 nodes of DGX A100")))
    for old, new, message in [
        ("topology: star", "topology: starr", "no topology `starr`"),
        ("port: 'InfiniBand HDR'", "port: HDD", "`HDD` is not a network"),
        ("nics: 8", "nics: 4", "`design` has 4 adapters of a node, and `devices` names 8"),
    ]:
        assert old in text
        with pytest.raises(RunFileError, match=message):
            check_stack(written(tmp_path, text.replace(old, new)))


def test_accelerators_of_another_vendor_are_refused() -> None:
    with pytest.raises(UsageError, match="a stack is proposed for GPUs of NVIDIA"):
        proposed_stack(parse_cluster("4 nodes of 8x MI300X over 8x NDR"))


def test_a_cluster_beyond_the_network_of_the_file_is_refused() -> None:
    with pytest.raises(UsageError, match="do not fit the network"):
        proposed_stack(parse_cluster("1x DGX H100").model_copy(update={"num_nodes": 70_000}))
