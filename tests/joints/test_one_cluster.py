"""Forty clusters from words to a bill and back: every number that two views of a cluster share is equal."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import fields
from functools import cached_property
from itertools import product
from pathlib import Path
from random import Random

import pytest
import yaml

import trainworks
from tests.plan.shapes import workload
from trainworks.api.deploying import render_stack
from trainworks.api.planning.described import job_plan
from trainworks.api.proposal import stack_yaml
from trainworks.catalog.catalog import load_catalog, system_of
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.catalog.stack_cluster import cluster_of_stack, read_cluster
from trainworks.config.run_file import RunFile
from trainworks.config.slurm.sbatch_amounts import expand_nodes
from trainworks.config.stack import Stack, load_stack
from trainworks.config.stack_parts.words import FILL_IN
from trainworks.deploy.fabric.network import networks_of
from trainworks.deploy.proposed_stack import proposed_stack
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.described_nodes import with_described_nodes
from trainworks.jobs.spec_of_run import spec_of
from trainworks.measure.health.expectation import expectation_of
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.degrees import resolved_of
from trainworks.plan.network.addresses import address_plan
from trainworks.plan.network.cables import cable_plan, nodes_by_leaf
from trainworks.plan.network.design import NetworkDesign

COUNTS = (2, 3, 5, 8, 16, 31, 48, 64, 100, 127)
MACHINES = ("DGX H100", "DGX A100", "DGX B200", "GB200 NVL72 tray")
NODES = (*MACHINES, "8x A100-SXM-80GB", "4x L40S", "8x H100", "2x A100-PCIE-40GB")
FABRICS = ("", "8x HDR", "4x NDR", "8x RoCE 400", "2x RoCE 100", "1x 100GbE", "4x 200 Gb/s")
SWITCHING = ("", " at 2:1", " with SHARP", " at 1.5:1 with SHARP")
ODD = ("3 racks of GB200 NVL72", "64x H100-SXM-80GB", "1 node of DGX H100", "40 nodes of 8x A100 over HDR at 3:1")


def words() -> list[str]:
    """Thirty-six clusters of all kinds, and four with words of their own."""
    every = [
        f"{count} nodes of {node}{f' over {fabric}' if fabric else ''}{switching}"
        for count, node, fabric, switching in product(COUNTS, NODES, FABRICS, SWITCHING)
        if (fabric or node in MACHINES) and ("SHARP" not in switching or fabric in ("", "8x HDR", "4x NDR"))
    ]
    return [*Random(1).sample(every, 36), *ODD]


class Views:
    """One cluster in all of its views, each made as a command makes it."""

    def __init__(self, text: str, folder: Path) -> None:
        self.text = text
        self.words = parse_cluster(text)
        self.network = trainworks.network(on=text) if self.words.num_nodes > 1 else None
        self.path = folder / "stack.yaml"

    @cached_property
    def stack(self) -> Stack:
        text = proposed_stack(self.words) if self.network is None else stack_yaml(self.network)
        self.path.write_text(re.sub(rf"\s*{FILL_IN}.*", "", text), encoding="utf-8")
        return load_stack(self.path)[0]

    @cached_property
    def files(self) -> dict[str, str]:
        assert self.stack
        return render_stack(self.path)

    def run_file(self, of: str | None = None, **keys: object) -> RunFile:
        return RunFile.model_validate({"name": "demo", "cluster": {"engine": "slurm", "of": of or self.text}} | keys)

    @cached_property
    def planned(self) -> ClusterPlan:
        return self.plan(self.text)

    def plan(self, of: str) -> ClusterPlan:
        planned = trainworks.plan(self.run_file(of, workload=self.workload), without_learning=True)
        assert isinstance(planned, ClusterPlan)
        return planned

    @property
    def workload(self) -> dict[str, object]:
        work = workload(global_batch=self.words.num_accelerators * 8, precision="bf16")
        return work.model_dump(exclude_defaults=True)


@pytest.fixture(scope="module", params=words())
def views(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Views:
    return Views(request.param, tmp_path_factory.mktemp("stack"))


def hardware(cluster: ClusterDescription) -> str:
    """All numbers of a cluster, without the names of topology and switch that a stack file has decided."""
    return cluster.model_copy(update={"topology": "auto", "switch": None, "spare_slots": 0}).same_hardware()


def test_its_name_describes_it_again(views: Views) -> None:
    for cluster in (views.words, views.words.with_nodes(views.words.num_nodes)):
        assert hardware(parse_cluster(cluster.name)) == hardware(views.words)


def test_its_network_joins_all_of_its_adapters(views: Views) -> None:
    if (network := views.network) is None:  # a single node
        return
    cluster, design = views.words, network.design
    assert hardware(design.cluster) == hardware(cluster)
    assert design.endpoints == cluster.num_nodes * cluster.nics
    assert design.endpoint_bytes_per_s * cluster.nics == cluster.node_bytes_per_s
    cables = {(cable.tier, cable.cable) for cable in cable_plan(design)}  # one carries several links where it is split
    assert Counter(tier for tier, _ in cables) == design.cables
    bill = {(row["part"], row["item"]): int(row["count"]) for row in csv.DictReader(io.StringIO(network.bill_csv))}
    (nics,) = (count for (part, item), count in bill.items() if part == "compute" and item.startswith("NIC"))
    assert nics == design.endpoints
    assert design.switch is not None
    assert bill["compute", design.switch.name] == design.num_switches
    lengths = [count for (part, item), count in bill.items() if part == "compute" and "cable" in item]
    assert sum(lengths) == design.num_cables
    cages = sum(count for (part, item), count in bill.items() if part == "compute" and "transceiver" in item)
    assert design.num_cables <= cages <= 2 * design.num_cables
    assert bill["total", "purchase"] == 1
    drawn = {(one.network, one.devices): one.count for one in address_plan(design, network.support)}
    assert drawn["management", "nodes"] == cluster.num_nodes


def test_its_stack_describes_the_same_cluster_and_network(views: Views) -> None:
    assert hardware(cluster_of_stack(views.stack)) == hardware(views.words)
    (network,) = networks_of(views.stack)
    assert len(network.names) == views.words.num_nodes
    assert (network.design is None) is (views.network is None)
    if network.design is not None and views.network is not None:
        for field in fields(NetworkDesign):
            mine, theirs = (getattr(each, field.name) for each in (network.design, views.network.design))
            assert field.name == "cluster" or mine == theirs, field.name


def test_its_rendered_files_have_its_nodes_accelerators_adapters_and_switches(views: Views) -> None:
    cluster, files = views.words, views.files
    computing = yaml.safe_load(files["inventory.yaml"])["all"]["children"]["compute"]["hosts"]
    assert len(computing) == cluster.num_nodes
    slurm = files["roles/scheduler/files/slurm.conf"]
    (line,) = re.findall(r"^NodeName=(gpu\S+).* Gres=gpu:\w+:(\d+)", slurm, re.MULTILINE)
    assert (list(expand_nodes(line[0])), int(line[1])) == (list(computing), cluster.accelerators_per_node)
    (devices,) = re.findall(r"File=/dev/nvidia(?:\[0-(\d+)\]|0)", files["roles/scheduler/files/gres.conf"])
    assert int(devices or 0) + 1 == cluster.accelerators_per_node
    topology = files["roles/scheduler/files/topology.conf"]
    together = re.findall(r"(?:SwitchName=leaf|BlockName=rack)\d+ Nodes=(\S+)", topology)
    nodes, system = list(range(cluster.num_nodes)), system_of(cluster.node.name) if cluster.node else None
    if system is not None and system.form == "rack":  # blocks are racks, whatever the leaves
        parts = [nodes[start : start + system.nodes] for start in range(0, len(nodes), system.nodes)]
    else:
        parts = [nodes] if views.network is None else nodes_by_leaf(views.network.design)
    assert [len(part.split(",")) for part in together] == [len(part) for part in parts]
    if nccl := files.get("roles/fabric/files/nodes_gpu/nccl.conf"):
        (adapters,) = re.findall(r"NCCL_IB_HCA==(\S+)", nccl)
        assert len(adapters.split(",")) == cluster.nics
        assert ("NCCL_COLLNET_ENABLE=1" in nccl) is cluster.in_network_reduction
    rails = [name for name in files if re.search(r"/50-rail\d+\.network$", name)]
    assert len(rails) in (0, cluster.num_nodes * cluster.nics)
    switches = [name for name in files if name.startswith("switches/")]
    assert len(switches) in (0, views.network.design.num_switches if views.network else 0)


def test_a_job_requests_it_and_no_more(views: Views) -> None:
    cluster = views.words
    asked = spec_of(with_described_nodes(views.run_file(run="true")), run_id="demo-1", working_folder="/")
    assert (asked.min_nodes, asked.max_nodes) == (cluster.num_nodes, cluster.num_nodes)
    assert asked.node.accelerators == cluster.accelerators_per_node
    assert asked.node.accelerator == cluster.accelerator.name
    types = re.findall(r" Gres=gpu:(\w+):", views.files["roles/scheduler/files/slurm.conf"])
    assert matching_names(asked.node.accelerator, types) == types


def test_health_and_bench_expect_it_of_its_nodes(views: Views) -> None:
    expected = expectation_of(views.words)
    assert (expected.accelerators, expected.accelerator) == (views.words.accelerators_per_node, views.words.accelerator)
    assert expected.nics in (None, views.words.nics)
    of_stack = expectation_of(cluster_of_stack(views.stack))
    for name in ("accelerators", "accelerator", "nics", "nic_bytes_per_s"):
        assert getattr(expected, name) in (None, getattr(of_stack, name)), name


def test_its_price_and_the_step_on_it_are_one(views: Views) -> None:
    """As planned, as priced, and as told before a submission."""
    cluster, planned = views.words, views.planned
    run_file = views.run_file(workload=views.workload)
    assert hardware(planned.job.cluster.model_copy(update={"spread_share": cluster.spread_share})) == hardware(cluster)
    found = job_plan(run_file, None, None, learning=False)
    told = found and found.forecast()
    assert told is not None
    assert told.step_s == planned.best[0].step_time_s
    assert told.layout == resolved_of(planned.best[0].layout, None)
    offered = accelerator_price(cluster, load_catalog().offers.values())
    assert (told.usd is None) == (offered is None or told.train_s is None)
    if offered is not None and told.usd is not None and told.train_s is not None:
        assert told.finish_s is not None
        assert told.usd == pytest.approx(offered.value * cluster.num_accelerators * told.finish_s[1] / 3600)
        hour = trainworks.cost(on=views.text, hours_per_year=1).comparison
        cheapest = min(line.costs["on-demand"].value for line in hour.lines if "on-demand" in line.costs)
        assert cheapest == pytest.approx(offered.value * cluster.num_accelerators)


def test_its_stack_file_is_the_same_cluster_for_every_command(views: Views) -> None:
    assert views.stack
    file, cluster = str(views.path), read_cluster(str(views.path))
    assert hardware(cluster) == hardware(views.words)
    if views.network is not None:
        design = trainworks.network(on=file).design
        for field in fields(NetworkDesign):
            mine, theirs = (getattr(each, field.name) for each in (design, views.network.design))
            assert field.name == "cluster" or mine == theirs, field.name
    assert views.plan(file).best[0].step_time_s == views.planned.best[0].step_time_s
    completed = with_described_nodes(views.run_file(file, run="true"))
    assert hardware(parse_cluster(completed.cluster.of or "")) == hardware(views.words)
    spec = spec_of(completed, run_id="demo-1", working_folder="/")
    assert (spec.min_nodes, spec.node.accelerators) == (cluster.num_nodes, cluster.accelerators_per_node)
    mine, theirs = (trainworks.cost(on=on, hours_per_year=1).comparison.lines for on in (file, views.text))
    assert [line.costs for line in mine] == [line.costs for line in theirs]
