"""Verdicts: what passes, what is weak, what fails, and what no hardware can do."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from trainworks.catalog.bounds import Operation, RankGroup, bus_factor, busbw_bound, group_of
from trainworks.catalog.cluster import parse_cluster
from trainworks.host.processor import Processors, processors
from trainworks.measure.bench.expected import Yardstick, expected_value
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.verdict import BANDS, BenchVerdict, Judged, judge


def verdict_of(cluster: str, quantity: Quantity, value: float, **conditions: str | float) -> Judged:
    return judge(Measurement(quantity, value, "node1", "a tool", conditions), Yardstick(parse_cluster(cluster)))


@pytest.mark.parametrize(
    ("gigabytes", "verdict"), [(24.0, "pass"), (20.0, "weak"), (12.0, "fail"), (24.9, "pass"), (26.0, "impossible")]
)
def test_a_link_is_judged_by_its_port(gigabytes: float, verdict: str) -> None:
    cluster = "2 nodes of 8x A100-SXM-80GB over 8x HDR"
    assert verdict_of(cluster, Quantity.LINK_BANDWIDTH, gigabytes * 1e9).verdict.value == verdict


def test_both_directions_may_carry_twice_the_port() -> None:
    cluster = "2 nodes of 8x H100-SXM-80GB over 8x NDR"
    answer = verdict_of(cluster, Quantity.LINK_BANDWIDTH, 97e9, direction="both")
    assert answer.verdict is BenchVerdict.PASS
    single = verdict_of(cluster, Quantity.LINK_BANDWIDTH, 97e9)
    assert single.verdict is BenchVerdict.IMPOSSIBLE
    assert single.slip is not None
    assert "both directions" in single.slip


def test_the_rate_of_all_adapters_of_a_node_is_not_that_of_one() -> None:
    cluster = "2 nodes of 4x H100-SXM-80GB over 4x NDR"
    answer = verdict_of(cluster, Quantity.LINK_BANDWIDTH, 190e9)
    assert answer.slip is not None
    assert "all 4 NICs of a node" in answer.slip
    assert verdict_of(cluster, Quantity.LINK_BANDWIDTH, 190e9, nics=4).verdict is BenchVerdict.PASS


def test_twice_the_dense_peak_is_the_peak_with_sparsity() -> None:
    answer = verdict_of("8x H100-SXM-80GB", Quantity.GEMM, 1979e12, precision="bf16")
    assert answer.verdict is BenchVerdict.IMPOSSIBLE
    assert answer.slip is not None
    assert "sparsity" in answer.slip


def test_a_weak_value_says_its_share() -> None:
    answer = verdict_of("8x A100-SXM-80GB", Quantity.BUS_BANDWIDTH, 160e9, ranks=8, nodes=1)
    assert answer.verdict is BenchVerdict.WEAK
    assert answer.expected is not None
    assert f"{160e9 / answer.expected:.0%} of" in answer.reason


def test_a_collective_that_latency_decides_has_a_bound_and_no_expectation() -> None:
    small = verdict_of("4x p4d.24xlarge", Quantity.BUS_BANDWIDTH, 1e6, ranks=32, nodes=4, bytes=1024)
    assert small.verdict is BenchVerdict.NO_EXPECTATION
    assert small.bound is not None


def test_a_latency_below_that_of_the_switch_is_impossible() -> None:
    cluster = "2 nodes of 8x A100-SXM-80GB over 8x HDR"
    assert verdict_of(cluster, Quantity.LINK_LATENCY, 1.2e-9).verdict is BenchVerdict.IMPOSSIBLE
    assert verdict_of(cluster, Quantity.LINK_LATENCY, 1.2e-6).verdict is BenchVerdict.NO_EXPECTATION


@pytest.mark.parametrize(("value", "verdict"), [(3e9, "pass"), (1.7e9, "weak"), (1e9, "fail")])
def test_a_path_is_judged_by_what_the_run_needs(value: float, verdict: str) -> None:
    needs = Yardstick(needs={Quantity.STORAGE_WRITE: 2e9})
    answer = judge(Measurement(Quantity.STORAGE_WRITE, value, "/data", "fio"), needs)
    assert answer.verdict.value == verdict
    assert "the run needs" in answer.reason


@pytest.mark.parametrize("quantity", list(Quantity))
def test_an_unknown_machine_without_facts_has_no_expectation(quantity: Quantity) -> None:
    assert judge(Measurement(quantity, 1.0, "node1", "a tool"), Yardstick()).verdict is BenchVerdict.NO_EXPECTATION


@pytest.mark.parametrize("quantity", list(Quantity))
def test_every_quantity_has_a_band_with_its_reason(quantity: Quantity) -> None:
    band = BANDS[quantity]
    assert 0 < band.fails < band.passes <= 1
    assert band.why


@pytest.mark.parametrize("operation", get_args(Operation))
@pytest.mark.parametrize(
    "cluster", ["8x A100-SXM-80GB", "4x p5.48xlarge", "2x GB200 NVL72", "16 nodes of DGX H100", "8x MI300X", "8x L40S"]
)
def test_the_planner_never_expects_more_than_the_bound(cluster: str, operation: str) -> None:
    for size in (2**20, 2**27, 2**34):
        conditions: dict[str, str | float] = {"operation": operation, "bytes": size}
        probe = Measurement(Quantity.BUS_BANDWIDTH, 1.0, "all", "a tool", conditions)
        yardstick = Yardstick(parse_cluster(cluster))
        expected, bound = expected_value(probe, yardstick), judge(probe, yardstick).bound
        assert bound is not None
        assert expected is None or expected <= bound.value


def test_bounds_are_those_of_the_formulas() -> None:
    across = RankGroup(ranks=32, domains=4, rank_bytes_per_s=300e9, domain_bytes_per_s=50e9)
    assert busbw_bound("all_reduce", across).value == pytest.approx(50e9 * 31 / 24)
    assert busbw_bound("all_to_all", across).value == pytest.approx(50e9 / 8 * 31 / 24)
    assert busbw_bound("broadcast", across).value == pytest.approx(50e9)
    adding = RankGroup(32, 4, 300e9, 50e9, adds_between=True)
    assert busbw_bound("all_reduce", adding).value == pytest.approx(2 * 50e9 * 31 / 32)


def test_two_of_a_mesh_have_one_link() -> None:
    assert group_of(parse_cluster("8x MI300X"), ranks=2, nodes=1).rank_bytes_per_s == 64e9


def test_a_part_of_a_mesh_is_expected_to_have_a_part_of_its_links() -> None:
    alone = verdict_of("2x MI300X", Quantity.BUS_BANDWIDTH, 47.7e9, ranks=2, nodes=1)
    within = verdict_of("8x MI300X", Quantity.BUS_BANDWIDTH, 47.7e9, ranks=2, nodes=1)
    assert alone.verdict is within.verdict is BenchVerdict.PASS


def test_algorithm_and_bus_bandwidth_have_one_verdict() -> None:
    conditions = {"ranks": 8, "nodes": 1}
    bus = verdict_of("8x A100-SXM-80GB", Quantity.BUS_BANDWIDTH, 200e9, **conditions)
    algorithm = verdict_of(
        "8x A100-SXM-80GB", Quantity.ALGORITHM_BANDWIDTH, 200e9 / bus_factor("all_reduce", 8), **conditions
    )
    assert bus.share == pytest.approx(algorithm.share)


def test_processors_are_what_linux_says(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    core = "model name\t: A processor\nphysical id\t: {}\ncpu MHz\t\t: 2000.000\nflags\t\t: fpu avx avx2 fma\n\n"
    (tmp_path / "proc/cpuinfo").write_text("".join(core.format(socket) for socket in (0, 0, 1, 1)), encoding="utf-8")
    clock = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq"
    clock.mkdir(parents=True)
    (clock / "cpuinfo_max_freq").write_text("3500000\n", encoding="utf-8")
    assert processors(tmp_path) == Processors("A processor", 2, 32, 2e9, 3.5e9, is_virtual=False)


def test_a_product_on_processors_is_bounded_by_their_clock() -> None:
    yardstick = Yardstick(processors=Processors("A processor", 2, 32, 2e9, 3.5e9, is_virtual=False), cores=64)

    def of(flops: float) -> str:
        return judge(
            Measurement(Quantity.GEMM, flops, "node1", "torch", {"precision": "fp32"}), yardstick
        ).verdict.value

    assert [of(0.5e12), of(3.2e12), of(7.0e12), of(7.3e12)] == ["fail", "pass", "pass", "impossible"]


def test_memory_of_a_catalogued_processor_has_the_bound_of_its_channels() -> None:
    shown = Processors("AMD EPYC 7763 64-Core Processor", 2, 32, 2e9, None, is_virtual=False)
    answer = judge(Measurement(Quantity.MEMORY_BANDWIDTH, 340e9, "node1", "STREAM"), Yardstick(processors=shown))
    assert answer.bound is not None
    assert answer.bound.value == pytest.approx(2 * 8 * 3200e6 * 8)
    assert answer.verdict is BenchVerdict.PASS


@pytest.mark.parametrize("transport", ["tcp", "gloo", "mpi"])
@pytest.mark.parametrize(("quantity", "value"), [(Quantity.LINK_BANDWIDTH, 200e9), (Quantity.LINK_LATENCY, 1e-7)])
def test_a_transfer_beside_the_described_network_has_no_verdict(
    transport: str, quantity: Quantity, value: float
) -> None:
    cluster = "2 nodes of 8x A100-SXM-80GB over 8x HDR"
    assert verdict_of(cluster, quantity, value, transport=transport, nodes=1).verdict is BenchVerdict.NO_EXPECTATION


@pytest.mark.parametrize("transport", ["gloo", "mpi"])
def test_a_collective_in_host_memory_has_no_verdict(transport: str) -> None:
    answer = verdict_of("8x A100-SXM-80GB", Quantity.BUS_BANDWIDTH, 1e13, transport=transport, nodes=1)
    assert answer.verdict is BenchVerdict.NO_EXPECTATION


def test_ranks_of_one_node_are_the_slip_of_a_latency_below_the_switch() -> None:
    answer = verdict_of("2 nodes of 8x A100-SXM-80GB over 8x HDR", Quantity.LINK_LATENCY, 0.25e-6, transport="mpi")
    assert answer.verdict is BenchVerdict.IMPOSSIBLE
    assert answer.slip == "both ranks on one node use its memory and not the network"
