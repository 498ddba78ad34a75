"""Demands that several tests share: a language model on 16 nodes, an image classifier on 4."""

from __future__ import annotations

from typing import Any

from trainworks.plan.storage.demand import Demand, demand_of
from trainworks.plan.storage.node_needs import NodeNeeds, node_needs

TEXT: dict[str, Any] = {
    "samples_per_s": 40.0,
    "sample_bytes": 16_384,
    "samples_per_file": 15_625,
    "num_parameters": 70e9,
    "dataset_bytes": 4e12,
    "num_nodes": 16,
    "interval_s": 3600.0,
}
IMAGES: dict[str, Any] = {
    "samples_per_s": 80_000.0,
    "sample_bytes": 110_000,
    "samples_per_file": 1,
    "num_parameters": 25.6e6,
    "dataset_bytes": 141e9,
    "num_nodes": 4,
    "interval_s": 3600.0,
    "epochs": 90,
}


def text(**changes: Any) -> Demand:
    """A language model that reads its data once."""
    return demand_of(**TEXT | changes)


def images(**changes: Any) -> Demand:
    """A classifier that reads a file for every image."""
    return demand_of(**IMAGES | changes)


def needs_of(demand: Demand, **changes: Any) -> NodeNeeds:
    """Of a node with eight accelerators."""
    rate = demand.opens.inputs["samples_per_second"]
    sample = demand.read.inputs["sample_size"]
    of = {
        "samples_per_s": rate,
        "sample_bytes": sample,
        "prepared_bytes": 602_112,
        "batch_samples": 256,
        "accelerators_per_node": 8,
        "images": demand.rereads,
    }
    return node_needs(demand, **of | changes)
