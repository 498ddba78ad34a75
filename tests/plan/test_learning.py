"""From measurements of a cluster to a belief, and from a written layout to one that can be priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.plan.jobs import job, layouts
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.config.layout import Layout
from trainworks.config.software import TrainingSoftware
from trainworks.plan.cluster.learning import belief_from, fit_links
from trainworks.plan.coefficients import LinkFactors, Slowdowns
from trainworks.plan.collectives import collective_s
from trainworks.plan.degrees import fixed_of
from trainworks.plan.layouts import Array
from trainworks.plan.programs import Shown, planned_programs
from trainworks.plan.rates import link_rates
from trainworks.plan.software import planned_software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import RATES, Belief, parts_s
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.measured.measurement import (
    ClusterMeasurement,
    LearnedRate,
    MeasuredCurve,
    MeasuredRate,
    MeasuredStep,
)

LLAMA = job()
NOBODY = planned_software(None, compiled=None)
SHOWN = Shown.of(LLAMA.shape, "bf16", LLAMA.cluster.accelerator, {})
UNNAMED = replace(LLAMA, software=NOBODY, programs=planned_programs(NOBODY, SHOWN))
WRITTEN = Layout(
    dp_shard=8, zero=1, tp=4, micro_batch=2, recompute="none", sequence_parallel=True, interleave=1,
    zero_bubble=False, offload_activations=False, offload_optimizer=False,
)  # fmt: skip


def step_s(of: TrainingJob = LLAMA, belief: Belief | None = None) -> float:
    """Predicted step time of the written layout."""
    learned = replace(of, slowdowns=belief.slowdowns) if belief else of
    return float(learned.step_times(layouts(256, **fixed_of(WRITTEN))).total_s[0])


def measured(factor: float, of: TrainingJob = LLAMA) -> ClusterMeasurement:
    """A step of the written layout that took so many times as long as predicted."""
    step = MeasuredStep(
        shape=of.shape,
        sequence_length=of.sequence_length,
        precision="bf16",
        global_batch=256,
        layout=WRITTEN,
        fused_kernels=False,
        software=None if of.programs else TrainingSoftware(framework="Megatron-LM"),
        step_time_s=factor * step_s(of),
    )
    return ClusterMeasurement(created_at=0.0, cluster=of.cluster, step=step)


def test_without_measurements_nothing_is_slower_than_predicted() -> None:
    assert belief_from([], LLAMA).slowdowns == Slowdowns()


@given(st.floats(0.7, 1.4))
def test_a_measured_step_moves_the_prediction_of_its_layout_towards_it(factor: float) -> None:
    after = step_s(belief=belief_from([measured(factor)], LLAMA))
    assert abs(np.log(after / factor / step_s())) <= abs(np.log(factor)) + 1e-12


@pytest.mark.parametrize("of", [LLAMA, UNNAMED], ids=["named", "unnamed"])
def test_measuring_what_was_predicted_moves_nothing(of: TrainingJob) -> None:
    assert np.allclose(belief_from([measured(1.0, of)] * 3, of).mean, 0, atol=1e-12)


def test_a_measurement_takes_away_what_is_not_known_of_the_program() -> None:
    assert len(UNNAMED.programs) > 1
    (before, after), (known, _) = (
        [float(belief_from(seen, of).covariance[-1, -1]) for seen in ([], [measured(1.2, of)] * 3)]
        for of in (UNNAMED, LLAMA)
    )
    assert before > 1.1 * known
    assert after < 0.6 * before


def test_a_slow_step_of_a_long_sequence_teaches_that_attention_is_slow() -> None:
    long = job(sequence_length=2**17)
    belief = belief_from([measured(1.0)] * 2 + [measured(1.5, long)], LLAMA)
    assert belief.slowdowns.attention > 1.15
    assert step_s(long, belief) > 1.15 * step_s(long)
    assert step_s(belief=belief) == pytest.approx(step_s(), rel=0.03)


def test_what_is_learned_is_exactly_in_the_rates_that_price_the_next_layout() -> None:
    belief = belief_from([measured(1.3)] * 3, LLAMA)
    by_rate = parts_s(LLAMA, layouts(256, **fixed_of(WRITTEN)))[:, 0]
    assert step_s(belief=belief) == pytest.approx(float(by_rate @ belief.factors), rel=0.01)


def benchmark(slower: float) -> ClusterMeasurement:
    """Products, and an all-reduce, that take so many times as long as on the data sheet's device."""
    peak = LLAMA.cluster.accelerator.matmul_flops_per_s or 0.0
    record = Calibration(
        device="cuda", precision="bf16", num_ranks=1, threads_per_rank=1,
        gemms=(GemmRate(m=8192, n=8192, k=8192, flops_per_s=peak / slower),),
        attention_flops_per_s=1.0, memory_bytes_per_s=1.0, optimizer_params_per_s=1.0, op_overhead_s=1.0,
        all_reduce_latency_s=1.0, all_reduce_bytes_per_s=1.0, baseline_bytes=0, seconds=1.0,
    )  # fmt: skip
    return ClusterMeasurement(created_at=0.0, cluster=LLAMA.cluster, benchmark=record)


def test_a_benchmark_of_products_teaches_their_rate_alone() -> None:
    slowdowns = belief_from([benchmark(1.3)], LLAMA).slowdowns
    assert slowdowns.products > 1.05
    assert replace(slowdowns, products=1.0) == Slowdowns()


HDR = parse_cluster("2 nodes of 8x A100-SXM-80GB over 4x HDR")
SIZES = 2.0 ** np.arange(10, 34)


def reduced_s(
    factors: LinkFactors, sizes: Array = SIZES, *, cluster: ClusterDescription = HDR, ranks: int = 16
) -> Array:
    """Seconds of all-reduces on links that differ from the catalogue's by these factors."""
    every = np.ones(len(sizes))
    return collective_s("all_reduce", sizes, ranks * every, every, link_rates(cluster).corrected(factors))


def timed(
    seconds: Array, sizes: Array = SIZES, *, at: float = 0.0, cluster: ClusterDescription = HDR, ranks: int = 16
) -> ClusterMeasurement:
    """A curve of all-reduces."""
    points = tuple(zip(sizes.tolist(), seconds.tolist(), strict=True))
    nodes = max(1, ranks // cluster.accelerators_per_node)
    curve = MeasuredCurve(operation="all_reduce", ranks=ranks, nodes=nodes, points=points, tool="nccl-tests 2.13.6")
    return ClusterMeasurement(created_at=at, cluster=cluster, curves=(curve,))


def port(of_expected: float, *, at: float = 0.0) -> ClusterMeasurement:
    """What `ib_write_bw` reaches of a port."""
    rate = MeasuredRate(rate="scale_out", kind="link_bandwidth", of_expected=of_expected)
    return ClusterMeasurement(created_at=at, cluster=HDR, rates=(rate,))


def width(belief: Belief, rate: str) -> float:
    return float(np.sqrt(belief.covariance[RATES.index(rate), RATES.index(rate)]))


FACTORS = st.builds(
    LinkFactors,
    scale_out=st.floats(0.85, 1.8),
    scale_out_latency=st.floats(0.5, 2.0),
    scale_out_filling=st.floats(0.6, 1.6),
)


@given(FACTORS)
def test_plans_follow_a_measured_curve_at_sizes_that_were_not_measured(factors: LinkFactors) -> None:
    fit = fit_links([timed(reduced_s(factors, SIZES[::2]), SIZES[::2])])
    assert reduced_s(fit.factors, SIZES[1::2]) == pytest.approx(reduced_s(factors, SIZES[1::2]), rel=0.06)


@given(FACTORS)
def test_plans_follow_a_measured_curve_on_other_numbers_of_nodes(factors: LinkFactors) -> None:
    fit, many = fit_links([timed(reduced_s(factors))]), HDR.with_nodes(16)
    expected, found = (reduced_s(each, cluster=many, ranks=128) for each in (factors, fit.factors))
    assert found == pytest.approx(expected, rel=0.2 if "scale_out" in fit.left else 0.4)


def test_a_slow_small_message_makes_small_messages_slow_and_no_large_one() -> None:
    fit = fit_links([timed(reduced_s(LinkFactors(scale_out_latency=2.0)))])
    ratio = reduced_s(fit.factors) / reduced_s(LinkFactors())
    inside = link_rates(HDR).start_s + 14 * link_rates(HDR).hop_s
    between = link_rates(HDR).scale_out_latency_s
    assert ratio[0] == pytest.approx((inside + 2 * between) / (inside + between), rel=0.1)
    assert ratio[-1] == pytest.approx(1.0, rel=0.03)


def test_no_link_is_planned_faster_than_its_data_sheet() -> None:
    fit = fit_links([timed(reduced_s(LinkFactors()) / 3)])
    assert link_rates(HDR).corrected(fit.factors).node_bytes_per_s <= HDR.node_bytes_per_s * (1 + 1e-9)


def test_a_measured_curve_narrows_the_interval_and_one_that_contradicts_itself_less() -> None:
    seconds, odd = reduced_s(LinkFactors(scale_out=1.3)), np.where(np.arange(len(SIZES)) % 2, 1.6, 1.0)
    before, agreed, contradicting = (
        width(belief_from(found, LLAMA), "scale_out") for found in ([], [timed(seconds)], [timed(seconds * odd)])
    )
    assert agreed < 0.3 * before
    assert 2 * agreed < contradicting <= before


def test_a_later_benchmark_replaces_an_earlier_one_in_any_order() -> None:
    old, new = timed(reduced_s(LinkFactors(scale_out=1.8))), timed(reduced_s(LinkFactors()), at=1.0)
    assert fit_links([old, new]) == fit_links([new, old]) == fit_links([new])
    faster, slower = port(0.9, at=2.0), port(0.5)
    assert np.allclose(belief_from([faster, slower], LLAMA).mean, belief_from([faster], LLAMA).mean)


def test_what_a_port_carries_counts_until_collectives_are_timed() -> None:
    weak, curve = port(0.6), timed(reduced_s(LinkFactors()))
    assert belief_from([weak], LLAMA).slowdowns.scale_out > 1.3
    assert belief_from([weak, curve], LLAMA).slowdowns == belief_from([curve], LLAMA).slowdowns


@pytest.mark.parametrize("rate", ["products", "memory", "scale_up"])
@pytest.mark.parametrize("of", [LLAMA, job("mixtral-8x7b")], ids=["dense", "experts"])
def test_a_measured_rate_is_the_rate_of_the_plan(of: TrainingJob, rate: LearnedRate) -> None:
    measured = MeasuredRate(rate=rate, kind="gemm", of_expected=0.8)
    belief = belief_from([ClusterMeasurement(created_at=0.0, cluster=of.cluster, rates=(measured,))], of)
    assert getattr(belief.slowdowns, rate) == pytest.approx(1 / 0.8, rel=0.03)
    assert width(belief, rate) < 0.03


@pytest.mark.parametrize("absurd", [0.0, 1e-3, 1e15, float("inf"), float("nan")])
def test_an_absurd_rate_is_refused(absurd: float) -> None:
    with pytest.raises(ValidationError):
        port(absurd)


def test_a_step_teaches_what_measured_links_leave_open() -> None:
    curve = timed(reduced_s(LinkFactors(scale_out=1.5)), cluster=HDR)
    links = belief_from([curve], LLAMA).slowdowns
    on_links = step_s(replace(LLAMA, slowdowns=links))
    step = measured(1.0)
    assert step.step is not None
    as_planned = step.model_copy(update={"step": step.step.model_copy(update={"step_time_s": on_links})})
    assert step_s(belief=belief_from([curve, as_planned], LLAMA)) == pytest.approx(on_links, rel=1e-3)


@pytest.mark.parametrize(
    ("written", "fixed"),
    [
        ({}, {"dp": 1, "dp_shard": 1, "zero": 0, "tp": 1, "pp": 1, "cp": 1, "ep": 1}),
        ({"dp_replicate": 4}, {"dp": 4, "dp_shard": 1, "zero": 0}),
        ({"dp_shard": 4}, {"dp": 4, "dp_shard": 4, "zero": 3}),
        ({"dp_replicate": 2, "dp_shard": 4, "zero": 1}, {"dp": 8, "dp_shard": 4, "zero": 1}),
        ({"micro_batch": 2, "recompute": "selective"}, {"micro_batch": 2, "recompute": 1}),
        ({"sequence_parallel": False, "zero_bubble": True}, {"sequence_parallel": 0, "zero_bubble": 1}),
        ({"offload_activations": True, "offload_optimizer": False}, {"offload": 1, "offload_optimizer": 0}),
    ],
    ids=str,
)
def test_a_written_layout_decides_what_it_says(written: dict[str, Any], fixed: dict[str, int]) -> None:
    decided = fixed_of(Layout.model_validate(written))
    assert {name: decided[name] for name in fixed} == fixed


def test_what_is_automatic_is_not_decided() -> None:
    assert set(fixed_of(Layout())) == {"dp", "dp_shard", "zero", "tp", "pp", "cp", "ep"}
