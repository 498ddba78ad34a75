"""Memory of the fullest rank: what it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.shapes import layout, shape
from trainworks.plan.local.memory import activation_bytes_per_token, checkpoint_bytes, predict_memory
from trainworks.record.resolved import MemoryTerms, ModelShape

SHAPES = st.builds(
    shape,
    st.integers(1, 50_000),
    layers=st.integers(1, 48),
    hidden=st.sampled_from([64, 256, 1024]),
    tie_embeddings=st.booleans(),
    architecture=st.sampled_from(["llama", "gpt2"]),
)
PRECISIONS = st.sampled_from(["fp32", "bf16", "fp16"])


def memory(model: ModelShape, dp_shard: int = 1, micro_batch: int = 1, precision: str = "fp32") -> MemoryTerms:
    """Of sequences of 128 tokens."""
    wanted = layout(dp_shard, micro_batch=micro_batch)
    return predict_memory(model, wanted, sequence_length=128, precision=precision, baseline_bytes=0)


def states(terms: MemoryTerms) -> int:
    """What lives as long as the model."""
    return terms.weights_bytes + terms.gradients_bytes + terms.optimizer_bytes


@given(SHAPES, st.integers(1, 64), PRECISIONS)
def test_more_shards_never_increase_the_states(model: ModelShape, dp_shard: int, precision: str) -> None:
    assert states(memory(model, dp_shard + 1, 1, precision)) <= states(memory(model, dp_shard, 1, precision))


@given(SHAPES, st.integers(1, 64), PRECISIONS)
def test_activations_and_logits_are_linear_in_the_micro_batch(model: ModelShape, factor: int, precision: str) -> None:
    one, many = memory(model, 1, 1, precision), memory(model, 1, factor, precision)
    assert many.activations_bytes == pytest.approx(factor * one.activations_bytes, abs=1)
    assert many.logits_bytes == factor * one.logits_bytes


@given(SHAPES, st.integers(1, 64))
def test_the_micro_batch_does_not_change_the_states(model: ModelShape, micro_batch: int) -> None:
    assert states(memory(model, 1, micro_batch)) == states(memory(model))


@given(SHAPES, st.integers(1, 64))
def test_shards_do_not_change_the_activations(model: ModelShape, dp_shard: int) -> None:
    assert memory(model, dp_shard).activations_bytes == memory(model).activations_bytes


@given(SHAPES)
def test_16_bit_activations_are_smaller(model: ModelShape) -> None:
    assert memory(model, precision="bf16").activations_bytes < memory(model).activations_bytes


@given(SHAPES)
def test_states_in_fp32_without_shards_are_16_bytes_per_parameter(model: ModelShape) -> None:
    assert states(memory(model)) == 16 * model.num_parameters


@given(SHAPES)
def test_a_checkpoint_holds_weights_and_two_moments(model: ModelShape) -> None:
    assert checkpoint_bytes(model) == 12 * model.num_parameters == memory(model).checkpoint_bytes


def test_activations_of_one_token_are_those_of_the_hand_computation() -> None:
    """h=4, H=2, K=1, d=2, f=6 in fp32: 8 h of residual and norms, then 2h + 3Hd + 4Kd + 4f, 4 bytes each."""
    small = shape(10, 3, layers=1, hidden=4, heads=2, kv_heads=1, feed_forward=6)
    assert activation_bytes_per_token(small, "fp32") == 4 * (8 * 4) + 4 * (2 * 4 + 3 * 4 + 4 * 2 + 4 * 6)
