"""Six published reference designs against ours, row by row; what differs has its reason beside it.

Counts of switches and cables of other published networks are in tests/validation/reference_networks.csv.
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import pytest

from trainworks.api.network import network
from trainworks.plan.network.bill import OrderLine, compute_lines, support_lines
from trainworks.plan.network.plan import NetworkPlan

ROWS = list(csv.DictReader(Path(__file__).with_name("reference_designs.csv").read_text(encoding="utf-8").splitlines()))
NAMES = [f"{row['cluster']}, {row['figure']}" for row in ROWS]
FAMILIES = {
    "DGX H100 SuperPOD",
    "DGX B200 SuperPOD",
    "RoCE: DGX B300 with Spectrum-4",
    "RoCE: Meta's 24k cluster",
    "GB200 NVL72",
    "100,000 accelerators on Ethernet",
    "Starter of 8 nodes",
}


@cache
def designed(cluster: str, topology: str, switch: str, spare_slots: str, nodes_per_rack: str) -> NetworkPlan:
    return network(
        on=cluster,
        topology=topology,
        switch=switch or None,
        spare_slots=int(spare_slots),
        nodes_per_rack=int(nodes_per_rack) or None,
    )


@cache
def ordered(*asked: str) -> list[OrderLine]:
    plan = designed(*asked)
    network = compute_lines(plan.design, plan.prices, nodes_per_rack=plan.nodes_per_rack)
    return [*plan.room, *network, *support_lines(plan.design, plan.support)]


def ours(row: dict[str, str]) -> int:
    asked = row["cluster"], row["topology"], row["switch"], row["spare_slots"], row["nodes_per_rack"]
    plan, figure = designed(*asked), row["figure"]
    design, support = plan.design, plan.support
    counts = {
        **design.switches,
        **design.cables,
        "tiers": len(design.switches),
        "accelerators": design.cluster.num_accelerators,
        "scale-up domains": -(-design.cluster.num_accelerators // design.cluster.scale_up_domain),
        "compute racks": round(support.racks.value),
        "compute cables": design.num_cables,
        "cables between switches": sum(count for name, count in design.cables.items() if "node" not in name),
        "storage switches": round(support.storage_leaves.value + support.storage_spines.value),
        "management switches": round(support.management_switches.value),
        "in-band switches": 0,
        "switch ports": design.switch.ports if design.switch else 0,
    }
    return counts[figure] if figure in counts else listed(figure, ordered(*asked), plan)


def listed(figure: str, lines: list[OrderLine], plan: NetworkPlan) -> int:
    """A figure of the order list: racks of switches, watts, or transceivers by the ends that they are at."""
    if figure.startswith("power"):
        parts = [line for line in lines if line.each_w and (line.item != _switch(plan) or "switches" in figure)]
        return round(sum(line.count * (line.each_w or 0) for line in parts if line.part == "compute") / 1000)
    if figure == "switch racks":
        return next(line.count for line in lines if line.item == "rack for switches")
    counts = {line.item: line.count for line in lines if line.part == "compute" and "transceiver" in line.item}
    twin, single = counts.get("transceiver of 2 x 400 Gb/s", 0), counts.get("transceiver of 400 Gb/s", 0)
    of_nodes = plan.design.endpoints // 2
    ends = {"of nodes": of_nodes, "of switches": twin - of_nodes, "of spare slots": single}
    return ends[figure.removeprefix("transceivers ")]


def _switch(plan: NetworkPlan) -> str:
    return plan.design.switch.name if plan.design.switch else ""


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_a_published_figure_differs_by_what_is_written_beside_it(row: dict[str, str]) -> None:
    assert ours(row) - int(row["published"]) == int(row["difference"] or 0)
    assert bool(row["reason"]) == bool(row["difference"])


def test_every_row_has_a_source_with_its_place_and_its_address() -> None:
    assert {row["family"] for row in ROWS} == FAMILIES
    assert all(row["source"] and row["url"].startswith("https://") for row in ROWS)
    assert {row["confidence"] for row in ROWS} <= {"high", "medium", "low"}


def test_vendors_own_networks_are_what_auto_designs() -> None:
    own = [row for row in ROWS if "SuperPOD" in row["family"] or row["family"].endswith(("Spectrum-4", "NVL72"))]
    assert {row["topology"] for row in own} == {"auto"}
    counted = [row for row in own if row["figure"] in ("leaf", "spine", "core", "node-leaf", "leaf-spine")]
    assert len(counted) > 100
    assert not any(row["difference"] for row in counted)
