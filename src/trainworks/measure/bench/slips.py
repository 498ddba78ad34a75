"""Slips of units and counting that explain a value above the physical bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.catalog.bounds import Bound, bus_factor
from trainworks.measure.bench.bound import physical_bound
from trainworks.measure.bench.expected import Yardstick, directions, operation_of, ranks_of
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.units import format_quantity

_ONE_NODE = "`all_reduce_perf -g N` without MPI measures N GPUs of one node, on any number of nodes"
_ONE_MEMORY = "both ranks on one node use its memory and not the network"
_COLLECTIVES = (Quantity.BUS_BANDWIDTH, Quantity.ALGORITHM_BANDWIDTH)


ROUNDING = 1.005
"""Values are printed with three figures, so that one at the bound may round to above it."""


@dataclass(frozen=True, slots=True)
class Slip:
    """One way in which a figure becomes too large."""

    factor: float
    """Stated over true value."""
    text: str


def explain(measurement: Measurement, yardstick: Yardstick, bound: Bound, expected: float | None) -> str | None:
    """The slip after whose correction the value is possible, and nearest to what is expected; None if none is.

    A collective over several nodes is first held against the bound of one node: a program that was started without MPI
    measures one node each time.
    """
    if measurement.quantity is Quantity.LINK_LATENCY:
        if measurement.conditions.get("transport") == "mpi":
            return _ONE_MEMORY
        return "milliseconds or microseconds were mistaken for a smaller unit"
    alone = _within_one_node(measurement, yardstick)
    if alone is not None:
        return alone
    return _nearest(measurement, _slips(measurement, yardstick), bound.value, expected or bound.value)


def _nearest(measurement: Measurement, slips: Iterator[Slip], limit: float, expected: float) -> str | None:
    possible = [slip for slip in slips if measurement.value / slip.factor <= limit * ROUNDING]
    if not possible:
        return None
    best = max(possible, key=lambda slip: -abs(measurement.value / slip.factor / expected - 1))
    if best.factor == float("inf"):
        return best.text
    unit = "FLOP/s" if measurement.quantity in (Quantity.GEMM, Quantity.HPL) else "bytes/s"
    return f"{best.text}: it would be {format_quantity(measurement.value / best.factor, unit)}"


def _within_one_node(measurement: Measurement, yardstick: Yardstick) -> str | None:
    if measurement.quantity not in _COLLECTIVES or yardstick.cluster is None:
        return None
    ranks, nodes = ranks_of(measurement, yardstick.cluster)
    if nodes == 1:
        return None
    conditions = {**measurement.conditions, "nodes": 1, "ranks": ranks // nodes}
    local = Measurement(measurement.quantity, measurement.value, measurement.subject, measurement.tool, conditions)
    bound = physical_bound(local, yardstick)
    if bound is None or ranks // nodes < 2:
        return None
    if measurement.value <= bound.value:
        return _ONE_NODE
    if measurement.value <= 2 * bound.value:
        return f"{_ONE_NODE}, and both directions were added"
    return None


def _slips(measurement: Measurement, yardstick: Yardstick) -> Iterator[Slip]:
    quantity, cluster = measurement.quantity, yardstick.cluster
    if quantity in (Quantity.GEMM, Quantity.HPL):
        yield Slip(2.0, "the peak with sparsity, or a multiply-add counted as two, doubles the rate")
    else:
        yield Slip(8.0, "Gb/s written as GB/s is a factor of 8")
        yield Slip(1.024**3, "GiB/s read as GB/s is a factor of 1.07")
        if directions(measurement) == 1:
            yield Slip(2.0, "both directions added together are a factor of 2")
    if cluster is None:
        return
    if quantity in (Quantity.GEMM, Quantity.BUS_BANDWIDTH):
        yield _of_node(cluster.accelerators_per_node, "GPUs")
    elif quantity is Quantity.LINK_BANDWIDTH:
        yield _of_node(cluster.nics, "NICs")
        if measurement.conditions.get("transport") == "mpi":
            yield Slip(float("inf"), _ONE_MEMORY)
    if quantity in _COLLECTIVES:
        factor = bus_factor(operation_of(measurement), ranks_of(measurement, cluster)[0])
        yield Slip(max(factor, 1 / factor), f"busbw and algbw, a factor of {factor:.3g}, were mistaken for each other")


def _of_node(count: int, noun: str) -> Slip:
    return Slip(float(max(count, 1)), f"all {count} {noun} of a node were counted as one")
