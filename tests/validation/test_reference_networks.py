"""Published networks against the planner's: what differs is written down beside them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from trainworks.catalog.cluster import parse_cluster
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.network.switches import find_switch

ROWS = list(csv.DictReader(Path(__file__).with_name("reference_networks.csv").read_text(encoding="utf-8").splitlines()))


def designed(row: dict[str, str]) -> NetworkDesign:
    return design_network(
        parse_cluster(row["cluster"]),
        topology=row["topology"],
        oversubscription=float(row["oversubscription"]),
        switch=find_switch(row["switch"]) if row["switch"] else None,
        spare_slots=int(row["spare_slots"]),
    )


def published(counts: str) -> dict[str, int]:
    return {name: int(number) for name, number in (item.split("=") for item in counts.split())}


def difference(row: dict[str, str]) -> str:
    """Of everything that was published, what the planner has more or less."""
    design = designed(row)
    pairs = [(published(row["switches"]), design.switches), (published(row["cables"]), design.cables)]
    differing = [
        f"{name} {ours.get(name, 0) - number:+d}"
        for theirs, ours in pairs
        for name, number in theirs.items()
        if ours.get(name, 0) != number
    ]
    return " ".join(differing)


@pytest.mark.parametrize("row", ROWS, ids=[row["design"] for row in ROWS])
def test_a_published_network_differs_by_what_is_written_of_it(row: dict[str, str]) -> None:
    assert difference(row) == row["difference"]


@pytest.mark.parametrize("generation", ["H100 with UFM", "B200", "B300 Spectrum", "B300 XDR"])
def test_every_design_that_nvidia_publishes_with_counts_is_met_exactly(generation: str) -> None:
    own = [row for row in ROWS if row["design"].startswith(f"DGX {generation},")]
    assert len(own) >= 4
    assert [row["difference"] for row in own] == [""] * len(own)


@pytest.mark.parametrize("row", ROWS, ids=[row["design"] for row in ROWS])
def test_a_published_network_has_a_source_and_a_confidence(row: dict[str, str]) -> None:
    assert row["source"]
    assert row["confidence"] in ("high", "medium", "low")
