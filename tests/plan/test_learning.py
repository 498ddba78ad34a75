"""From measurements of a cluster to a belief, and from a written layout to one that can be priced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import job, layouts
from trainworks.config.layout import Layout
from trainworks.plan.learning import belief_from, fixed_of
from trainworks.plan.step_time import predict_step_times
from trainworks.plan.uncertainty import PRIOR, calibrated_s
from trainworks.record.measurement import MeasuredStep, Measurement

LLAMA = job()
WRITTEN = Layout(
    dp_shard=8, zero=1, tp=4, micro_batch=2, recompute="none", sequence_parallel=True, interleave=1,
    zero_bubble=False, offload_activations=False, offload_optimizer=False,
)  # fmt: skip
PREDICTED = predict_step_times(LLAMA, layouts(256, **fixed_of(WRITTEN)))


def measured(seconds: float) -> Measurement:
    """A step of the written layout that took so long."""
    step = MeasuredStep(
        shape=LLAMA.shape,
        sequence_length=LLAMA.sequence_length,
        precision="bf16",
        global_batch=256,
        layout=WRITTEN,
        step_time_s=seconds,
    )
    return Measurement(created_at=0.0, cluster=LLAMA.cluster, step=step)


def test_without_measurements_the_prior_is_believed() -> None:
    assert belief_from([]) is PRIOR


@given(st.floats(0.7, 1.4))
def test_a_measured_step_moves_the_prediction_of_its_layout_towards_it(factor: float) -> None:
    seconds = factor * float(PREDICTED.total_s[0])
    before, after = float(PREDICTED.total_s[0]), float(calibrated_s(PREDICTED, belief_from([measured(seconds)]))[0])
    assert abs(np.log(after / seconds)) <= abs(np.log(before / seconds)) + 1e-12


def test_measuring_what_was_predicted_moves_nothing() -> None:
    belief = belief_from([measured(float(PREDICTED.total_s[0]))] * 3)
    assert np.allclose(belief.mean, 0, atol=1e-12)


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
