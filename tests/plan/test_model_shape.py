"""Parameters and FLOPs of a decoder, by formula and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.shapes import shape
from trainworks.config.model import Model
from trainworks.errors import UsageError
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.shapes.transformer import shape_of_hf_config, shape_of_model

LLAMA_2_7B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
}


def test_llama_2_7b_has_its_published_parameters() -> None:
    assert shape_of_hf_config(LLAMA_2_7B).num_parameters == 6_738_415_616


def test_gpt2_has_its_published_parameters() -> None:
    config = {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "vocab_size": 50257}
    assert shape_of_hf_config(config).num_parameters == 124_439_808


def test_flops_per_token_are_those_of_the_hand_computation() -> None:
    """One block of h=4, H=2, d=2, f=6, V=10 over T=3 tokens, every matrix counted by itself."""
    small = shape(10, 3, layers=1, hidden=4, heads=2, feed_forward=6)
    queries_keys_values_output = 4 * 4 * 4
    gate_up_down = 3 * 4 * 6
    logits = 4 * 10
    scores_and_mix = 2 * (2 * 2 * 3)
    forward = 2 * (queries_keys_values_output + gate_up_down + logits + scores_and_mix)
    assert model_flops_per_token(small, 3) == 3 * forward


@given(st.integers(1, 12), st.integers(1, 4096))
def test_flops_grow_with_layers_and_length(layers: int, length: int) -> None:
    flops = model_flops_per_token(shape(layers=layers), length)
    assert model_flops_per_token(shape(layers=layers + 1), length) > flops
    assert model_flops_per_token(shape(layers=layers), length + 1) > flops


@given(st.integers(1, 64))
def test_tying_saves_exactly_one_embedding(vocabulary: int) -> None:
    tied, untied = shape(vocabulary), shape(vocabulary, tie_embeddings=False)
    assert untied.num_parameters - tied.num_parameters == vocabulary * tied.hidden


@given(st.sampled_from([1, 2, 4]))
def test_fewer_key_value_heads_never_cost_parameters(kv_heads: int) -> None:
    assert shape(kv_heads=kv_heads).num_parameters <= shape().num_parameters


@pytest.mark.parametrize(("hidden", "feed_forward"), [(64, 192), (256, 704), (768, 2048)])
def test_a_gated_mlp_is_8_thirds_wide_rounded_up_to_64(hidden: int, feed_forward: int) -> None:
    assert shape(hidden=hidden).feed_forward == feed_forward


def test_the_mlp_of_gpt2_is_4_times_as_wide() -> None:
    assert shape(architecture="gpt2", hidden=64).feed_forward == 256


def test_an_unknown_model_type_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="model type `mamba` cannot be planned yet") as refused:
        shape_of_hf_config({"model_type": "mamba"})
    assert str(refused.value.hint).startswith("known types: llama, mistral, qwen2, qwen3, ")


def test_a_mixtral_of_bare_dimensions_has_its_experts() -> None:
    model = Model(architecture="mixtral", layers=2, hidden=64, heads=4, feed_forward=96, experts=4, experts_per_token=1)
    found = shape_of_model(model, vocabulary=100, sequence_length=32)
    assert (found.experts, found.experts_per_token, found.expert_feed_forward) == (4, 1, 96)


def test_a_qwen3_of_bare_dimensions_has_heads_as_wide_as_they_are_many() -> None:
    model = Model(architecture="qwen3", layers=2, hidden=64, heads=4)
    assert shape_of_model(model, vocabulary=100, sequence_length=32).head_dim == 16


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"num_hidden_layers": 10**8}, "num_hidden_layers is 100,000,000, above the limit of 10,000"),
        ({"num_attention_heads": 0}, "has `num_attention_heads: 0`"),
        ({"hidden_size": "wide"}, "has `hidden_size: wide`"),
        ({"vocab_size": 1.5}, "has `vocab_size: 1.5`"),
        ({"num_key_value_heads": -1}, "has `num_key_value_heads: -1`"),
    ],
)
def test_a_config_with_an_impossible_dimension_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        shape_of_hf_config(LLAMA_2_7B | changes)
