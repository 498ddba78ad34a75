"""Collectives of a job, or some usual ones, and the time of each over a designed network.

A non-blocking network has the times of `collectives.py`. A blocking one gives each node a share of its NICs:

    in order    1: neighbours of a ring are neighbours in the network, each leaf or group is entered and left once
    scattered   1 / oversubscription: every byte crosses the worst cut, as when a scheduler places ranks anywhere
    all-to-all  the fullest cut that evenly spread traffic meets:
                leaves   u / (d (1 - 1 / sets)): what stays within a set of leaves needs no spine
                groups   H (g - 1) / (a p (1 - 1 / g))
                grids    4 bisection / (N B): half of all traffic crosses the middle

Bytes for another rail first cross the node's scale-up links (PXN), if rails do not meet or to stay on the rail:
(r - 1) / r of the bytes that leave the node. The latency of switches beyond the first is added once per doubling of
the nodes; without switches, that of every NIC that a ring passes, there and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import UsageError
from trainworks.plan.activations import element_bytes
from trainworks.plan.collectives import collective_s
from trainworks.plan.job import AnyJob
from trainworks.plan.network.design import NetworkDesign, design_network
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.prediction import Prediction
from trainworks.plan.rates import link_rates
from trainworks.plan.shapes.conv_net import ConvNetShape
from trainworks.plan.trace import Traced, computed, fact
from trainworks.units import format_bytes

Placement = Literal["in order", "scattered"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)

_HOP_S = {"InfiniBand": 200e-9}
"""Latency of a switch whose vendor names none. Assumed: between the 130 ns of HDR and what third parties say of NDR."""
_OTHER_HOP_S = 600e-9
"""Latency of an Ethernet switch or a NIC. Assumed."""
_HOP_SOURCE = "assumption: 200 ns through an InfiniBand switch, 600 ns through an Ethernet switch or a NIC"

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


def usual_messages(cluster: ClusterDescription) -> list[Message]:
    """Both collectives of all accelerators, in each of `MESSAGE_BYTES`."""
    return [
        Message(f"{_NAMES[kind]} of {format_bytes(size)}", kind, size, cluster.num_accelerators)
        for kind in ("all_reduce", "all_to_all")
        for size in MESSAGE_BYTES
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


def placement_share(design: NetworkDesign, placement: Placement) -> float:
    """Part of its NICs that each node has for rings of all nodes."""
    return 1.0 if placement == "in order" else 1.0 / design.oversubscription


def all_to_all_share(design: NetworkDesign) -> float:
    """Part of its NICs that each node has when all send to all."""
    fabric = design.fabric
    if isinstance(fabric, GridNetwork):
        capacity = 4 * fabric.bisection_links / (fabric.nodes * fabric.used_nics)
    elif isinstance(fabric, GroupNetwork):
        between = fabric.pair_links * fabric.count * (fabric.count - 1)
        capacity = between / (design.endpoints * (1 - 1 / fabric.count))
    elif design.sets == 1:
        capacity = 1.0
    else:
        links = design.copies / design.planes * fabric.leaf_spine_links
        capacity = links / (design.endpoints * (1 - 1 / design.sets))
    return min(1.0, capacity)


def effective_cluster(
    cluster: ClusterDescription, design: NetworkDesign, placement: Placement = "scattered"
) -> ClusterDescription:
    """The cluster as seen by a planner without topologies: nodes with their effective share of the NICs.

    Only the NICs that have a neighbour count in a grid.

    Args:
        cluster: the cluster of the design, or the same nodes with other switches or accelerators.
        design: the network.
        placement: of the ranks.
    """
    return _with_share(cluster, design, placement_share(design, placement))


def apply_design(cluster: ClusterDescription) -> ClusterDescription:
    """The cluster with the share of spread ranks that its designed network has, for a layout plan.

    It stays as described for a single node, and where no switch of the catalogue fits the NICs.
    """
    if cluster.oversubscription <= 1 or cluster.num_nodes < 2:
        return cluster
    try:
        share = placement_share(design_network(cluster), "scattered")
    except UsageError:
        return cluster
    return cluster.model_copy(update={"spread_share": share})


def _with_share(cluster: ClusterDescription, design: NetworkDesign, share: float) -> ClusterDescription:
    used = design.fabric.used_nics / design.nics if isinstance(design.fabric, GridNetwork) else 1.0
    bandwidth = cluster.node_bytes_per_s * used * share
    return cluster.model_copy(update={"node_bytes_per_s": bandwidth, "spread_share": 1.0})


def message_time(design: NetworkDesign, message: Message, placement: Placement = "in order") -> Traced:
    """Seconds of one collective.

    Args:
        design: the network and its cluster.
        message: the collective.
        placement: of its ranks; an all-to-all takes the same time with any.
    """
    all_to_all = message.kind == "all_to_all"
    share = all_to_all_share(design) if all_to_all else placement_share(design, placement)
    size, ranks, stride = (np.array([float(value)]) for value in (message.size_bytes, message.ranks, message.stride))
    links = link_rates(_with_share(design.cluster, design, share))
    seconds = float(collective_s(message.kind, size, ranks, stride, links)[0]) + _latency_s(design, message)
    if all_to_all:
        seconds = max(seconds, _all_to_all_s(design, message))
    return computed(
        message.name if placement == "in order" else f"{message.name}, scattered",
        seconds,
        "s",
        by="plan/collectives.py over this network (plan/network/traffic.py)",
        size=fact("message", message.size_bytes, "bytes", source="asked for, or the job's layout"),
        ranks=fact("ranks", message.ranks, "", source="asked for, or the job's layout"),
        share=computed("share of the NICs", share, "", by="the network's worst cut for this traffic"),
        hop=_hop(design),
    )


def _hop(design: NetworkDesign) -> Traced:
    seconds, source = _OTHER_HOP_S, _HOP_SOURCE
    if (switch := design.switch) is not None:
        seconds = switch.latency_s or _HOP_S.get(switch.network, _OTHER_HOP_S)
        source = _HOP_SOURCE if switch.latency_s is None else switch.name
    return fact("latency of a hop", seconds, "s", source=source)


def _domains(design: NetworkDesign, message: Message) -> int:
    """Nodes, or larger domains, over which the ranks lie."""
    domain = max(design.cluster.scale_up_domain, design.cluster.accelerators_per_node)
    inside = min(message.ranks, max(1, domain // message.stride))
    return -(-message.ranks // inside)


def _latency_s(design: NetworkDesign, message: Message) -> float:
    """Latency behind the first switch, which the latency of collectives includes."""
    hop_s, fabric, domains = _hop(design).value, design.fabric, _domains(design, message)
    if domains == 1:
        return 0.0
    if isinstance(fabric, GridNetwork):
        return hop_s * (2 * fabric.ring_steps if message.kind == "all_reduce" else fabric.hops)
    return hop_s * (design.hops_worst - 1) * float(np.log2(domains))


def _all_to_all_s(design: NetworkDesign, message: Message) -> float:
    """Time of an all-to-all on the scale-up links, so that every byte stays on its rail."""
    by_rail = design.topology in ("star", "rail-only", "rail-optimised", "multi-plane") and design.num_switches > 1
    if not by_rail or _domains(design, message) == 1:
        return 0.0
    inside = message.ranks / _domains(design, message)
    share = (inside - 1 + (message.ranks - inside) * (design.rails - 1) / design.rails) / message.ranks
    return share * message.size_bytes / link_rates(_with_share(design.cluster, design, 1.0)).scale_up_bytes_per_s
