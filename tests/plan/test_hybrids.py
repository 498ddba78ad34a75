"""Hybrids of Mamba-2 and attention: layers by kind, FLOPs of the scan, and what a part costs in time and memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plan.families import CONFIGS, DECODER, MAMBA, NEMOTRON_H
from tests.plan.jobs import H100S, job, known, layouts
from trainworks.catalog.models import preset
from trainworks.errors import UsageError
from trainworks.plan.flops import model_flops_per_token, scan_flops_per_token
from trainworks.plan.parameters import (
    active_parameters,
    num_attention_layers,
    num_dense_layers,
    num_expert_layers,
    num_sublayers,
    resized,
)
from trainworks.plan.shapes.transformer import shape_of_hf_config


def test_a_pattern_and_a_list_of_types_are_the_same_model() -> None:
    types = ["linear_attention", "moe", "mamba", "attention", "mlp", "moe"]
    listed = {key: value for key, value in NEMOTRON_H.items() if key != "hybrid_override_pattern"}
    shape = shape_of_hf_config(listed | {"layers_block_type": types})
    assert shape == shape_of_hf_config(NEMOTRON_H)
    counts = (num_attention_layers(shape), num_dense_layers(shape), num_expert_layers(shape), num_sublayers(shape))
    assert counts == (1, 1, 2, 6)


def test_mixers_beside_attention_are_one_residual_addition() -> None:
    shape = shape_of_hf_config(CONFIGS["falcon_h1"])
    assert (num_attention_layers(shape), num_sublayers(shape)) == (3, 6)


def test_published_sizes_of_nemotron_3_are_met() -> None:
    """31.6 B with 3.6 B active, and 120 B with 12 B active (NVIDIA's names and reports)."""
    nano, super_ = (shape_of_hf_config(preset(name)) for name in ("nemotron3-nano", "nemotron3-super"))
    assert (round(nano.num_parameters / 1e9, 1), round(active_parameters(nano) / 1e9, 1)) == (31.6, 3.6)
    assert (round(super_.num_parameters / 1e9), round(active_parameters(super_) / 1e9, 1)) == (121, 12.8)


def test_the_scan_has_the_flops_of_its_products() -> None:
    """Chunks of 128 tokens of one sequence: C B^T per group, its sum of x, states of B^T x, and C times a state."""
    shape = shape_of_hf_config(NEMOTRON_H)
    mixer = shape.state_space
    assert mixer is not None
    q, p, n, heads, groups = mixer.chunk, mixer.head_dim, mixer.state, mixer.heads, mixer.groups
    chunk = groups * 2 * q * n * q + heads * (2 * q * q * p + 2 * n * q * p + 2 * q * n * p)
    convolution = 2 * 3 * (heads * p + 2 * groups * n)
    assert scan_flops_per_token(shape) == pytest.approx(mixer.layers * (chunk / q + convolution))


def test_only_attention_grows_with_the_length() -> None:
    shape = shape_of_hf_config(NEMOTRON_H)
    more = model_flops_per_token(shape, 2048) - model_flops_per_token(shape, 1024)
    assert more == pytest.approx(12 * 1 * 6 * 12 * 1024)


def test_a_cut_hybrid_keeps_the_share_of_each_kind() -> None:
    whole = shape_of_hf_config(preset("nemotron3-nano"))
    half = resized(whole, layers=26)
    assert half.state_space is not None
    assert (half.state_space.layers, half.attention_layers, half.mlp_layers) == (12, 3, 12)


@pytest.mark.parametrize("said", ["attention_bias", "mlp_bias", "use_bias"])
def test_biases_of_projections_are_refused(said: str) -> None:
    with pytest.raises(UsageError, match="biases of its projections"):
        shape_of_hf_config(NEMOTRON_H | {said: True})


def test_an_unknown_kind_of_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="layers of kind `X`"):
        shape_of_hf_config(NEMOTRON_H | {"hybrid_override_pattern": "MX"})
    with pytest.raises(UsageError, match="cannot be planned yet"):
        shape_of_hf_config(DECODER | MAMBA | {"model_type": "jamba"})


HYBRID = job("nemotron3-nano", H100S, sequence_length=8192)
DEGREES = layouts(
    dp=[128, 64, 128, 64, 64],
    ep=[8, 8, 8, 8, 8],
    tp=[1, 2, 1, 1, 1],
    cp=[1, 1, 1, 2, 1],
    pp=[1, 1, 1, 1, 2],
    recompute=[0, 0, 2, 0, 0],
)


def test_every_degree_splits_a_hybrid() -> None:
    """tp, cp and pp leave less on a rank; recomputation takes longer and keeps less."""
    times, memories = HYBRID.step_times(DEGREES), HYBRID.memories(DEGREES)
    plain = memories.activations_bytes[0]
    assert (memories.activations_bytes[1:] < plain).tolist() == [True, True, True, False]
    assert memories.weights_bytes[4] < 0.6 * memories.weights_bytes[0]
    assert times.recompute_s[2] > 0.9 * times.forward_s[2]
    assert times.cp_s[3] > 0 and times.tp_s[1] > 0 and np.isfinite(times.total_s).all()


def test_mixers_are_cheaper_than_attention_where_sequences_are_long() -> None:
    hybrid = known("nemotron-h-8b")
    assert hybrid.state_space is not None and hybrid.attention_layers is not None
    attending = hybrid.model_copy(
        update={
            "attention_layers": hybrid.attention_layers + hybrid.state_space.layers,
            "state_space": hybrid.state_space.model_copy(update={"layers": 1}),
        }
    )
    one = layouts(global_batch=128, dp=128)
    ours, theirs = (job(shape, H100S, sequence_length=131072).step_times(one) for shape in (hybrid, attending))
    assert ours.total_s[0] < 0.6 * theirs.total_s[0]
