"""Nodes whose cores other programs used: low figures have no verdict, and are no outliers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainworks.catalog.cluster import parse_cluster
from trainworks.host.probe import probe_host
from trainworks.host.processor import Processors
from trainworks.measure.bench.bench_report import BenchReport, build_bench_report
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.node_record import BenchPart, NodeRecord
from trainworks.measure.bench.verdict import BenchVerdict
from trainworks.record.environment import AcceleratorFacts
from trainworks.record.measured.bench import BenchRequest

NODES = ("a", "b", "c", "d", "e")
LOADS = [None, 0.0, 0.09, 0.79, 0.91]
CLUSTER = parse_cluster("5 nodes of 8x A100-SXM-80GB over 8x HDR")
HOST = Quantity.HOST_LINK
"""A figure that needs the cores, with 25.6 GB/s expected."""
DEVICE = Quantity.DEVICE_MEMORY_BANDWIDTH
"""A figure that does not, with 2 TB/s expected."""


def node(index: int, value: float, quantity: Quantity = HOST, load: float | None = 0.0) -> NodeRecord:
    figure = Measurement(quantity, value, "gpu0", "a tool", {"direction": "to device"})
    request = BenchRequest(kinds=("memory",))
    processors = Processors("", 1, 1, 0, None, is_virtual=True)
    parts = {"memory/x": BenchPart((figure,))}
    gpu = AcceleratorFacts(index=0, name="A100", memory_bytes=1, compute_capability=(8, 0), power_limit_w=None)
    host = probe_host(Path.cwd()).model_copy(update={"accelerators": (gpu,) * CLUSTER.accelerators_per_node})
    return NodeRecord(index, NODES[index], host, processors, {}, request, NODES, parts, load, is_complete=True)


def report(*records: NodeRecord) -> BenchReport:
    return build_bench_report("bench-1", records, CLUSTER)


def verdicts(found: BenchReport) -> list[BenchVerdict]:
    return [each.verdict for each in found.judged]


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("value", [1e9, 17e9])
def test_a_low_figure_has_a_verdict_on_a_quiet_node_alone(load: float | None, value: float) -> None:
    found = report(node(0, value, load=load))
    if load is not None and load > 0.1:
        assert verdicts(found) == [BenchVerdict.BUSY]
        assert found.is_accepted
        assert found.measurements[0].value == value
    else:
        assert verdicts(found)[0] in (BenchVerdict.FAIL, BenchVerdict.WEAK)


@pytest.mark.parametrize("load", LOADS)
def test_what_passes_or_is_impossible_stays_so_on_a_busy_node(load: float | None) -> None:
    assert verdicts(report(node(0, 25e9, load=load))) == [BenchVerdict.PASS]
    impossible = report(node(0, 90e9, load=load))
    assert verdicts(impossible) == [BenchVerdict.IMPOSSIBLE]
    assert not impossible.is_accepted


def test_what_an_accelerator_does_by_itself_is_judged_on_a_busy_node() -> None:
    found = report(node(0, 1e12, DEVICE, load=0.9))
    assert verdicts(found) == [BenchVerdict.FAIL]
    assert not found.is_accepted


def test_a_busy_node_excuses_itself_alone() -> None:
    loads = [0.9, 0.0, 0.0, 0.0, 0.0]
    found = report(*(node(index, 1e9 if index < 2 else 25e9, load=load) for index, load in enumerate(loads)))
    assert verdicts(found) == [BenchVerdict.BUSY, BenchVerdict.FAIL, *[BenchVerdict.PASS] * 3]
    assert [each.subject for each in found.outliers] == ["b gpu0"]
    assert not found.is_accepted


def test_a_figure_of_all_nodes_is_excused_by_any() -> None:
    first = node(0, 25e9)
    shared = Measurement(Quantity.BUS_BANDWIDTH, 1e9, "2 nodes", "t", {"ranks": 16, "nodes": 2, "bytes": 2.0**34})
    with_shared = NodeRecord(**{**vars(first), "parts": {"collectives/all_reduce@default": BenchPart((shared,))}})
    assert verdicts(report(with_shared, node(1, 25e9)))[0] is BenchVerdict.FAIL
    assert verdicts(report(with_shared, node(1, 25e9, load=0.9)))[0] is BenchVerdict.BUSY


@pytest.mark.parametrize(("others", "value", "is_found"), [(0.8, 1e9, True), (0.8, 3e9, False), (0.2, 1e9, False)])
def test_load_explains_a_rate_far_below_that_of_its_peers_only_where_they_are_less_busy(
    others: float, value: float, is_found: bool
) -> None:
    found = report(node(0, value, load=0.85), *(node(index, 24e9 + 1e8 * index, load=others) for index in range(1, 5)))
    assert [each.subject for each in found.outliers] == ["a gpu0"] * is_found
    assert found.is_accepted is not is_found
