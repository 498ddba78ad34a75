"""Representative collectives of a network: some usual sizes, or those of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from trainworks.catalog.cluster import ClusterDescription
from trainworks.plan.activations import element_bytes
from trainworks.plan.job import AnyJob
from trainworks.plan.prediction import Prediction
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.units import format_bytes

MESSAGE_BYTES = (1e6, 64e6, 1e9)
"""Sizes that say most of a network: its latency, what layers send, its bandwidth."""

_NAMES = {"all_reduce": "all-reduce", "all_to_all": "all-to-all"}


@dataclass(frozen=True, slots=True)
class Message:
    """A collective of a job."""

    name: str
    kind: Literal["all_reduce", "all_to_all"]
    size_bytes: float
    """The buffer of each rank."""
    ranks: int
    stride: int = 1
    """Distance of neighbours in the order of ranks."""


def usual_messages(cluster: ClusterDescription, sizes: Sequence[float] = MESSAGE_BYTES) -> list[Message]:
    """Both collectives of all accelerators, in some sizes."""
    return [
        Message(f"{_NAMES[kind]} of {format_bytes(size)}", kind, size, cluster.num_accelerators)
        for kind in ("all_reduce", "all_to_all")
        for size in sizes
    ]


def messages_of_job(job: AnyJob, planned: Prediction) -> list[Message]:
    """Largest messages of a layout: its gradients, and with experts the tokens to them.

    Gradients are those of the fullest rank, as if reduced in one piece: `zero` cuts them, and adds gathers of weights.
    The tokens are those of one block and one of its four all-to-alls: e k M h / t bytes.
    """
    layout, messages = planned.layout, []
    copies = layout.dp_replicate * layout.dp_shard * layout.cp
    shards = layout.dp_shard * layout.cp if layout.zero >= 2 else 1
    gradients = float(planned.memory.gradients_bytes) * shards
    if copies > 1:
        messages.append(Message("gradient all-reduce", "all_reduce", gradients, copies, layout.tp))
    if not isinstance(job.shape, ConvNetShape) and job.shape.experts and layout.ep > 1:
        tokens = layout.micro_batch * job.sequence_length / layout.cp
        routed = element_bytes(job.precision) * tokens * job.shape.hidden * job.shape.experts_per_token / layout.tp
        messages.append(Message("expert all-to-all", "all_to_all", routed, layout.ep))
    return messages
