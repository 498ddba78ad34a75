"""From measurements of a cluster to a belief, and from a written layout to one that can be priced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import job, layouts
from trainworks.config.layout import Layout
from trainworks.config.software import TrainingSoftware
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.coefficients import Slowdowns
from trainworks.plan.degrees import fixed_of
from trainworks.plan.programs import planned_programs
from trainworks.plan.software import planned_software
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import Belief, parts_s
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.measured.measurement import ClusterMeasurement, MeasuredStep

LLAMA = job()
NOBODY = planned_software(None, compiled=None)
UNNAMED = replace(LLAMA, software=NOBODY, programs=planned_programs(NOBODY, "bf16", LLAMA.cluster.accelerator))
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
