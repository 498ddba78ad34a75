"""Measurements of a cluster, which make its next plan more accurate."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.layout import Layout
from trainworks.config.software import TrainingSoftware
from trainworks.config.spec import Spec
from trainworks.record.calibration import Calibration
from trainworks.record.model_shape import ModelShape


class MeasuredStep(Spec):
    """Step time of one layout, with all inputs of its prediction."""

    shape: ModelShape
    sequence_length: int
    precision: str
    global_batch: int
    layout: Layout
    """Layout without `auto`."""
    fused_kernels: bool = True
    """Blocks were compiled, where `software` does not say."""
    software: TrainingSoftware | None = None
    """The program that ran, as its run file says."""
    step_time_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]


MOST_OFF = 10.0
"""A rate that is further from the expected one, in either direction, is a slip of units and is not read."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LearnedCollective = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
LearnedRate = Literal["products", "memory", "scale_up", "scale_out"]


class MeasuredRate(Spec):
    """A physical rate that a benchmark measured, over the rate that the planner expects."""

    rate: LearnedRate
    """The planner's rate: products, device memory, links inside a domain, links between domains."""
    kind: str
    """What was measured: `busbw all_reduce`."""
    of_expected: Annotated[float, Field(ge=1 / MOST_OFF, le=MOST_OFF)]
    tool: str = ""
    """Program that measured, with its version."""

    @property
    def subject(self) -> tuple[object, ...]:
        """What a later benchmark measures again."""
        return self.rate, self.kind


class MeasuredCurve(Spec):
    """Times of one collective by message size, on one group of ranks."""

    operation: LearnedCollective
    ranks: Annotated[int, Field(ge=2)]
    nodes: Annotated[int, Field(ge=1)]
    points: Annotated[tuple[tuple[Positive, Positive], ...], Field(min_length=1)]
    """Bytes, counted as nccl-tests does, and seconds."""
    tool: str = ""
    """Program that measured, with its version."""

    @property
    def subject(self) -> tuple[object, ...]:
        """What a later benchmark measures again."""
        return self.operation, self.ranks, self.nodes


class ClusterMeasurement(Spec):
    """A step, a benchmark of products and collectives, or rates and curves of `trainworks bench`; one of the three."""

    format_version: int = 1
    created_at: float
    """Seconds since the epoch."""
    cluster: ClusterDescription
    step: MeasuredStep | None = None
    benchmark: Calibration | None = None
    rates: tuple[MeasuredRate, ...] = ()
    curves: tuple[MeasuredCurve, ...] = ()


def cluster_key(cluster: ClusterDescription) -> str:
    """File name for the measurements of a kind of cluster, independent of its size.

    >>> from trainworks.catalog.cluster import parse_cluster
    >>> cluster_key(parse_cluster("4 nodes of 8x A100-SXM-80GB over 8x HDR"))
    'a100-sxm-80gb-x8-infiniband-1600'
    """
    gbit = round(cluster.node_bytes_per_s * 8 / 1e9)
    name = f"{node_key(cluster)}-{cluster.network}-{gbit}"
    name += f"-{cluster.oversubscription:g}-to-1" if cluster.oversubscription > 1 else ""
    return _file_name(name)


def node_key(cluster: ClusterDescription) -> str:
    """Beginning of the same name, which kinds of cluster share whose nodes differ in their network alone."""
    return _file_name(f"{cluster.accelerator.name}-x{cluster.accelerators_per_node}")


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
