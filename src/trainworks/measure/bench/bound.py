"""The physical bound of a measurement, which a true one never exceeds.

`BOUNDS` has a rule for each quantity; the docstring of a rule is its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from trainworks.catalog.bounds import Bound, bus_factor, busbw_bound, group_of
from trainworks.catalog.catalog import has, link
from trainworks.measure.bench.expected import (
    Yardstick,
    directions,
    host_flops_per_cycle,
    is_by_processors,
    is_of_cluster,
    is_on_host,
    is_scale_up,
    memory_bytes_per_s,
    number_of,
    operation_of,
    ports_bytes_per_s,
    ranks_of,
)
from trainworks.measure.bench.measurement import Measurement, Quantity

_CYCLES = "https://stackoverflow.com/questions/15655835/flops-per-cycle-for-sandy-bridge-and-haswell-sse2-avx-avx2"
_LINKS = "trainworks catalog list links"


def physical_bound(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """The bound of a measured value, in base units; None where no data sheet sets one."""
    rule = BOUNDS.get(measurement.quantity)
    bound = rule(measurement, yardstick) if rule else None
    return bound if bound and bound.value else None


def _gemm(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Dense peak of the data sheet in that precision; on processors as HPL."""
    cluster = yardstick.cluster
    if cluster is None or is_on_host(measurement, yardstick):
        return _processors(measurement, yardstick)
    peaks = {str(name): rate for name, rate in cluster.accelerator.peak_flops_per_s.items()}
    peak = peaks.get(str(measurement.conditions.get("precision")), 0.0)
    return Bound(peak, "dense peak of the data sheet", f"trainworks catalog show {cluster.accelerator.name}")


def _processors(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Cores x highest clock x operations a cycle, where Linux says the clock."""
    shown = yardstick.processors
    if shown is None or not shown.highest_clock_hz:
        return None
    cycle = host_flops_per_cycle(shown, str(measurement.conditions.get("precision", "fp64")))
    peak = cycle * shown.highest_clock_hz * number_of(measurement, "cores", yardstick.cores)
    return Bound(peak, "cores x highest clock x operations a cycle", _CYCLES)


def _host_memory(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Sockets x channels x transfers a second x 8 B, of a processor of the catalogue."""
    peak = memory_bytes_per_s(yardstick)
    return Bound(peak, "sockets x channels x transfers/s x 8 B", "trainworks catalog list processors") if peak else None


def _device_memory(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Memory bandwidth of the data sheet."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    if part is None:
        return None
    return Bound(part.memory_bytes_per_s, "memory bandwidth", f"trainworks catalog show {part.name}")


def _host_link(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Rate of the link in one direction, twice that for both."""
    part = yardstick.cluster.accelerator if yardstick.cluster else None
    if part is None:
        return None
    rate = part.host_bytes_per_s * directions(measurement)
    return Bound(rate, _port("host link", measurement), f"trainworks catalog show {part.name}")


def _link(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """Rate of the ports in one direction, twice that for both; of two accelerators that of their scale-up link."""
    cluster = yardstick.cluster
    if cluster is None:
        return None
    if is_scale_up(measurement):
        part = cluster.accelerator
        rate = max(part.pair_bytes_per_s or part.scale_up_bytes_per_s, part.host_bytes_per_s)
        name = _port(f"{part.scale_up} between two", measurement)
        return Bound(rate * directions(measurement), name, f"trainworks catalog show {part.name}")
    if not is_of_cluster(measurement, cluster):
        return None
    if measurement.conditions.get("transport") == "mpi":  # it may use all ports at once
        return Bound(
            cluster.node_bytes_per_s * directions(measurement), _port("all ports of a node", measurement), _LINKS
        )
    rate = ports_bytes_per_s(measurement, cluster) * directions(measurement)
    return Bound(rate, _port(f"port of {cluster.network}", measurement), _LINKS)


def _port(name: str, measurement: Measurement) -> str:
    return f"{name}, {'both directions' if directions(measurement) == 2 else 'one direction'}"


def _latency(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """A lower bound: latency of the link through one switch, where the vendor publishes it."""
    cluster = yardstick.cluster
    fabric = cluster.fabric if cluster and is_of_cluster(measurement, cluster) else None
    if fabric is None or fabric.network == "TCP" or not has("links", fabric.port):  # that of TCP is an assumption
        return None
    return Bound(link(fabric.port).latency_s or 0.0, "latency of the link through one switch", _LINKS)


def _collective(measurement: Measurement, yardstick: Yardstick) -> Bound | None:
    """The links of the ranks and of their domains, `trainworks.catalog.bounds`; algbw is busbw over its factor."""
    cluster, operation = yardstick.cluster, operation_of(measurement)
    if cluster is None or is_by_processors(measurement):
        return None
    ranks, nodes = ranks_of(measurement, cluster)
    if ranks % nodes or (nodes > 1 and not cluster.node_bytes_per_s):
        return None
    bound = busbw_bound(operation, group_of(cluster, ranks, nodes))
    if measurement.quantity is Quantity.BUS_BANDWIDTH:
        return bound
    factor = bus_factor(operation, ranks)
    return Bound(bound.value / factor, bound.formula.replace("busbw", f"{factor:.3g} algbw"), bound.source)


BOUNDS: Mapping[Quantity, Callable[[Measurement, Yardstick], Bound | None]] = {
    Quantity.GEMM: _gemm,
    Quantity.HPL: _processors,
    Quantity.MEMORY_BANDWIDTH: _host_memory,
    Quantity.DEVICE_MEMORY_BANDWIDTH: _device_memory,
    Quantity.HOST_LINK: _host_link,
    Quantity.LINK_BANDWIDTH: _link,
    Quantity.LINK_LATENCY: _latency,
    Quantity.ALGORITHM_BANDWIDTH: _collective,
    Quantity.BUS_BANDWIDTH: _collective,
}
"""Rules; storage has no bound that a data sheet of the catalogue sets."""
