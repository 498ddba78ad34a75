"""The value that healthy hardware reaches in a measurement, from the planner's own models of rates, never copied.

`EXPECTED` has a rule for each quantity; the docstring of a rule is its formula. What a run needs replaces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast, get_args

import numpy as np

from trainworks.catalog.bounds import Operation, bus_factor
from trainworks.catalog.catalog import load_catalog, reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.host.processor import Processors
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.collectives import Collective, collective_s
from trainworks.plan.compute import device_rates, product_s
from trainworks.plan.rates import link_rates, pair_shares

_LARGE_BYTES = 16 * 2**30
"""Size of a collective that does not say its size: large enough that latency has no part."""
_LARGE_PRODUCT = 8192
"""m, n and k of a product that does not say them."""
_PAYLOAD = {"InfiniBand": 4096 / (4096 + 42), "RoCE": 4096 / (4096 + 82), "TCP": 1448 / (1500 + 38)}
"""Payload over bytes on the wire: InfiniBand 4096 B of data behind LRH, BTH and RETH, before ICRC and VCRC; RoCE the
same in UDP, IP and Ethernet; TCP with time stamps in frames of 1500 B.
https://pingdo.net/ai-infrastructure/roce-v2-header-overhead"""
_OTHER_PAYLOAD = 0.95
"""Share of networks that publish no packet: an assumption."""
_FULL_RATE_BYTES = 65536
"""Message of `ib_write_bw` by default: smaller ones are limited by their number."""
_TRANSFER_GROWTH = 1.5
"""Growth of a collective's time with twice the bytes, below which latency decides it."""


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What measurements are held against."""

    cluster: ClusterDescription | None = None
    """Hardware that was delivered; None for a machine that no catalogue knows."""
    processors: Processors | None = None
    """What the node shows of its processors; None where the measurement ran elsewhere."""
    cores: int = 0
    """Cores that the measurement may use, on one node."""
    needs: Mapping[Quantity, float] = field(default_factory=dict)
    """What the run needs."""


def expected_value(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """The value that healthy hardware reaches or the run needs, in base units; None where nothing says it."""
    if measurement.quantity in yardstick.needs:
        return yardstick.needs[measurement.quantity]
    rule = EXPECTED.get(measurement.quantity)
    return rule(measurement, yardstick) if rule else None


def number_of(measurement: Measurement, name: str, default: float) -> float:
    """A condition as a number; the default where it is left out or is text."""
    value = measurement.conditions.get(name, default)
    return float(value) if isinstance(value, int | float) else default


def directions(measurement: Measurement) -> int:
    """2 for a rate that adds both directions, else 1."""
    return 2 if measurement.conditions.get("direction") == "both" else 1


def is_of_cluster(measurement: Measurement, cluster: ClusterDescription) -> bool:
    """Whether a transfer used the network that the description names.

    One over TCP uses the host's own network, and ranks of MPI on one node its memory.
    """
    transport = measurement.conditions.get("transport")
    if transport == "mpi":
        return measurement.conditions.get("nodes") != 1
    return transport not in ("tcp", "gloo") or cluster.network == "TCP"


def is_by_processors(measurement: Measurement) -> bool:
    """Whether the buffers of a collective were in host memory, and not those of accelerators."""
    device = measurement.conditions.get("device")
    return device == "cpu" or (device is None and measurement.conditions.get("transport") in ("gloo", "mpi"))


def is_scale_up(measurement: Measurement) -> bool:
    """Whether a link joins accelerators of one domain."""
    return measurement.conditions.get("transport") in ("scale-up", "nvlink", "p2p")


def operation_of(measurement: Measurement) -> Operation:
    """The collective that was measured; an all-reduce where it is left out."""
    name = measurement.conditions.get("operation", "all_reduce")
    return next((one for one in get_args(Operation) if one == name), "all_reduce")


def ranks_of(measurement: Measurement, cluster: ClusterDescription) -> tuple[int, int]:
    """Ranks and nodes of a collective; all of the cluster where they are left out."""
    nodes = max(1, int(number_of(measurement, "nodes", cluster.num_nodes)))
    ranks = int(number_of(measurement, "ranks", nodes * cluster.accelerators_per_node))
    return max(2, ranks), min(nodes, max(2, ranks))


def memory_bytes_per_s(yardstick: Yardstick) -> float | None:
    """Bandwidth of a node's memory: sockets x channels x transfers a second x 8 B; None if they are not known."""
    shown, cluster = yardstick.processors, yardstick.cluster
    node = cluster.node if cluster else None
    known = load_catalog().processors
    if node is not None and node.processor:
        part, sockets = known[node.processor], node.processors or 2
    elif shown is not None and not shown.is_virtual and (found := [name for name in known if name in shown.model]):
        part, sockets = known[found[0]], shown.sockets
    else:
        return None
    transfers_per_s = float(part.memory_type.rpartition("-")[2]) * 1e6
    return sockets * part.memory_channels * transfers_per_s * 8


def host_flops_per_cycle(shown: Processors, precision: str) -> float:
    """Operations of a core in a cycle; 0 in formats whose units the flags do not tell."""
    return shown.flops_per_cycle * {"fp32": 1.0, "fp64": 0.5}.get(precision, 0.0)


def is_on_host(measurement: Measurement, yardstick: Yardstick) -> bool:
    """Whether a product ran on processors and not on an accelerator."""
    return yardstick.cluster is None or measurement.conditions.get("device") == "cpu"


def _gemm(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """2 m n k over the planner's time of that product, at the clocks of a short run; on processors as HPL."""
    cluster = yardstick.cluster
    if cluster is None or is_on_host(measurement, yardstick):
        return _processor_flops(measurement, yardstick)
    precision = str(measurement.conditions.get("precision"))
    if precision not in cluster.accelerator.peak_flops_per_s:
        return None
    part = cluster.accelerator.model_copy(update={"power_w": None})  # a short run is over before the clocks fall
    device = device_rates(part, precision, replace(COEFFICIENTS, gemm_share=1.0, amd_share=1.0))
    m, n, k = (number_of(measurement, name, _LARGE_PRODUCT) for name in "mnk")
    return float(2 * m * n * k / product_s(m, n, k, device)[()])


def _processor_flops(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Cores x clock x operations a cycle x the share of a peak that products reach; half in a virtual machine, whose
    cores may be threads.
    """
    shown = yardstick.processors
    if shown is None:
        return None
    cores = number_of(measurement, "cores", yardstick.cores) / (2 if shown.is_virtual else 1)
    cycle = host_flops_per_cycle(shown, str(measurement.conditions.get("precision", "fp64")))
    return cycle * shown.clock_hz * cores * COEFFICIENTS.default_peak_share or None


def _host_memory(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Sockets x channels x transfers a second x 8 B, times the planner's share of a memory's bandwidth."""
    peak = memory_bytes_per_s(yardstick)
    return peak * COEFFICIENTS.memory_share if peak else None


def _device_memory(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Bandwidth of the data sheet times the planner's share of it."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    return part.memory_bytes_per_s * COEFFICIENTS.memory_share if part else None


def _host_link(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Rate of the link times the planner's share of it, for each direction."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    return part.host_bytes_per_s * COEFFICIENTS.host_link_share * directions(measurement) if part else None


def _link(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Rate of the ports times payload over bytes on the wire; of a scale-up link the planner's share, for each
    direction.
    """
    cluster = yardstick.cluster
    if cluster is None:
        return None
    if is_scale_up(measurement):
        part = cluster.accelerator
        rate = (part.pair_bytes_per_s or part.scale_up_bytes_per_s) * COEFFICIENTS.scale_up_share
        return rate * directions(measurement) or None
    if number_of(measurement, "bytes", _FULL_RATE_BYTES) < _FULL_RATE_BYTES or not is_of_cluster(measurement, cluster):
        return None
    payload = _PAYLOAD.get(cluster.network, _OTHER_PAYLOAD)
    return ports_bytes_per_s(measurement, cluster) * payload * directions(measurement) or None


def ports_bytes_per_s(measurement: Measurement, cluster: ClusterDescription) -> float:
    """Rate in one direction of the NICs that a measurement used, one where it does not say; 0 without NICs."""
    each = cluster.node_bytes_per_s / cluster.nics if cluster.nics else 0.0
    return each * min(number_of(measurement, "nics", 1), cluster.nics)


def _collective(measurement: Measurement, yardstick: Yardstick) -> float | None:
    """Factor x S over the planner's time of that collective, where the bytes decide it and not the latency."""
    cluster, operation = yardstick.cluster, operation_of(measurement)
    if cluster is None or is_by_processors(measurement) or operation not in get_args(Collective):
        return None
    ranks, nodes = ranks_of(measurement, cluster)
    if ranks % nodes or (nodes > 1 and not cluster.node_bytes_per_s):
        return None
    links = link_rates(cluster)
    if links.shares and cluster.accelerator.reference_node:  # of a mesh, a part of the node has a part of the links
        domain = max(links.domain, reference_node(cluster.accelerator.name).accelerators)
        links = replace(links, domain=domain, shares=pair_shares(cluster.accelerator.scale_up, domain))
    if measurement.conditions.get("nvls") == "off":
        links = replace(links, in_switch_gain=1.0)
    stride = max(1.0, cluster.accelerators_per_node * nodes / ranks) if nodes > 1 else 1.0
    size = number_of(measurement, "bytes", _LARGE_BYTES)
    sizes, group = np.array([size, 2 * size]), np.full(2, float(ranks))
    once, twice = collective_s(cast(Collective, operation), sizes, group, np.full(2, stride), links)
    if twice < _TRANSFER_GROWTH * once:
        return None
    factor = 1.0 if measurement.quantity is Quantity.ALGORITHM_BANDWIDTH else bus_factor(operation, ranks)
    return float(factor * size / once)


EXPECTED: Mapping[Quantity, Callable[[Measurement, Yardstick], float | None]] = {
    Quantity.GEMM: _gemm,
    Quantity.HPL: _processor_flops,
    Quantity.MEMORY_BANDWIDTH: _host_memory,
    Quantity.DEVICE_MEMORY_BANDWIDTH: _device_memory,
    Quantity.HOST_LINK: _host_link,
    Quantity.LINK_BANDWIDTH: _link,
    Quantity.ALGORITHM_BANDWIDTH: _collective,
    Quantity.BUS_BANDWIDTH: _collective,
}
"""Rules; quantities without one have only what the run needs."""
