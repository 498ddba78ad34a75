"""Parameters by part: they add up, and equal the models that `transformers` builds, family by family."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.plan.families import CONFIGS, DEEPSEEK, EXPERTS, LLAMA4, family
from tests.plan.jobs import layouts
from trainworks.catalog.models import preset
from trainworks.errors import UsageError
from trainworks.plan.parameters import (
    active_parameters,
    attention_parameters,
    dense_blocks,
    dense_mlp_parameters,
    embedding_parameters,
    expert_parameters,
    head_matmul_parameters,
    num_dense_layers,
    num_expert_layers,
    num_parameters,
    num_sublayers,
    output_parameters,
    resized,
    router_parameters,
    shared_expert_parameters,
)
from trainworks.plan.shapes.transformer import shape_of_hf_config, towers_note
from trainworks.record.model_shape import ModelShape

MIXTURES = ["mixtral", "qwen3_moe", "qwen3_moe-every-second-layer", "gpt_oss", "deepseek_v2", "deepseek_v3", "glm4_moe"]
MIXTURES += ["qwen2_moe", "olmoe", "minimax_m2", "ernie4_5_moe", "llama4_text", "llama4_text-every-second-layer"]


def shape(name: str) -> ModelShape:
    return shape_of_hf_config(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_has_the_parameters_of_its_model(name: str) -> None:
    pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    from tests.plan.built_models import built_parameters

    assert shape(name).num_parameters == built_parameters(CONFIGS[name])


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_that_transformers_completed_gives_the_same_shape(name: str) -> None:
    pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    from tests.plan.built_models import config_of

    complete = config_of(CONFIGS[name]).to_dict()
    assert shape_of_hf_config(complete).num_parameters == shape(name).num_parameters


def test_bert_for_masked_lm_has_no_pooler() -> None:
    transformers = pytest.importorskip(
        "transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]"
    )
    from tests.plan.built_models import built_parameters

    masked = shape_of_hf_config(CONFIGS["bert"] | {"architectures": ["BertForMaskedLM"]})
    assert masked.num_parameters == built_parameters(CONFIGS["bert"], model_class=transformers.BertForMaskedLM)


@pytest.mark.parametrize("name", [name for name in CONFIGS if shape(name).state_space is None])
def test_layers_and_ends_add_up_to_the_model(name: str) -> None:
    """A model of no layers is what stands around them."""
    whole = shape(name)
    empty = resized(whole, layers=0, dense_layers=0)
    dense = resized(whole, layers=1, dense_layers=1).num_parameters - empty.num_parameters
    routed = resized(whole, layers=1, dense_layers=0).num_parameters - empty.num_parameters
    layers = num_dense_layers(whole) * dense + num_expert_layers(whole) * routed
    assert whole.num_parameters == empty.num_parameters + layers
    assert empty.num_parameters == embedding_parameters(whole) + output_parameters(whole) + whole.small.model


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shape_holds_all_that_its_parameters_follow_from(name: str) -> None:
    assert num_parameters(shape(name)) == shape(name).num_parameters


def test_norms_and_biases_are_less_than_a_hundredth_of_a_model_of_real_size() -> None:
    llama = shape_of_hf_config(preset("llama3-8b"))
    block = attention_parameters(llama) + dense_mlp_parameters(llama)
    matrices = llama.layers * block + embedding_parameters(llama) + output_parameters(llama)
    assert 0.99 < matrices / llama.num_parameters < 1


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {name for name in CONFIGS if shape(name).experts}))
def test_every_parameter_of_a_dense_model_is_active(name: str) -> None:
    assert active_parameters(shape(name)) == shape(name).num_parameters


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_whose_experts_are_all_visited_is_wholly_active(name: str) -> None:
    everyone = shape(name).model_copy(update={"experts_per_token": shape(name).experts})
    assert active_parameters(everyone) == everyone.num_parameters
    assert active_parameters(shape(name)) < shape(name).num_parameters


def test_parts_of_a_layer_with_experts_are_those_of_the_hand_computation() -> None:
    """DeepSeek-V3 of h=48, H=6, q=24, c=16, r=4, n=8, v=12, E=8, e=20, two shared."""
    small = shape("deepseek_v3")
    assert attention_parameters(small) == 48 * 24 + 24 * 6 * 12 + 48 * 20 + 16 * 6 * 20 + 6 * 12 * 48
    assert dense_mlp_parameters(small) == 3 * 48 * 80
    assert expert_parameters(small) == 3 * 48 * 20
    assert shared_expert_parameters(small) == 2 * 3 * 48 * 20
    assert router_parameters(small) == 48 * 8
    assert (num_dense_layers(small), num_expert_layers(small)) == (1, 2)


ARCTIC = family("arctic", num_local_experts=4, num_experts_per_tok=2, moe_layer_frequency=1, use_residual=True)


def test_an_arctic_has_a_dense_mlp_of_its_width_and_a_norm_beside_the_experts() -> None:
    """h=48, H=6, K=2, d=8, e=80, E=4, V=100, in 3 layers, as the vendor's `modeling_arctic.py` builds it."""
    attention, experts, residual, norms = 2 * 48 * 8 * (6 + 2), 4 * 3 * 48 * 80 + 48 * 4, 3 * 48 * 48, 3 * 48
    layer = attention + experts + residual + norms
    assert shape_of_hf_config(ARCTIC).num_parameters == 3 * layer + 2 * 48 * 100 + 48


@pytest.mark.parametrize("change", [{"use_residual": False}, {"moe_layer_frequency": 2}, {"moe_layer_frequency": None}])
def test_an_arctic_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be planned yet"):
        shape_of_hf_config(ARCTIC | change)


@pytest.mark.parametrize("end", [False, True], ids=["first", "last"])
@pytest.mark.parametrize(("name", "dense"), [("llama4-maverick", (12, 12)), ("deepseek-v3", (3, 0))])
def test_dense_layers_come_first_or_stand_between_the_others(name: str, dense: tuple[int, int], end: bool) -> None:
    """Of two stages of 24 layers each."""
    shape = resized(shape_of_hf_config(preset(name)), layers=48)
    assert dense_blocks(shape, layouts(pp=np.array([2.0])), np.array([24.0]), end=end) == dense[end]


def test_a_tied_output_costs_nothing_and_is_computed_all_the_same() -> None:
    tied, untied = shape("gpt2"), shape("gpt2-untied")
    assert (output_parameters(tied), output_parameters(untied)) == (0, 4800)
    assert head_matmul_parameters(tied) == head_matmul_parameters(untied) == 4800


@pytest.mark.parametrize(("layers", "dense"), [(4, 3), (2, 2)])
def test_a_cut_model_keeps_its_dense_layers_which_come_first(layers: int, dense: int) -> None:
    cut = resized(shape_of_hf_config(preset("deepseek-v3")), layers=layers)
    assert num_dense_layers(cut) == dense


def test_a_cut_model_is_the_model_of_the_cut_config() -> None:
    config = preset("gpt-oss-20b")
    assert resized(shape_of_hf_config(config), layers=5) == shape_of_hf_config(config | {"num_hidden_layers": 5})


@given(vocabulary=st.integers(1, 1000), positions=st.integers(1, 1000))
@settings(max_examples=examples(20))
def test_another_vocabulary_or_length_is_the_model_of_the_changed_config(vocabulary: int, positions: int) -> None:
    changed = CONFIGS["bert"] | {"vocab_size": vocabulary, "max_position_embeddings": positions}
    by_hand = resized(shape("bert"), vocabulary=vocabulary, max_sequence_length=positions)
    assert by_hand == shape_of_hf_config(changed)


def test_windows_stand_in_the_layers_that_have_them() -> None:
    assert (shape("gemma2").window, shape("gemma").window) == (0, 0)
    oss = shape_of_hf_config(preset("gpt-oss-20b"))
    assert (oss.window, oss.window_layers) == (128, 12)
    gemma = shape_of_hf_config(family("gemma3_text", num_hidden_layers=13, sliding_window=8))
    assert (gemma.window, gemma.window_layers) == (8, 11)


def test_chunks_stand_in_all_but_every_fourth_layer_of_llama_4() -> None:
    scout, maverick = (shape_of_hf_config(preset(f"llama4-{name}")) for name in ("scout", "maverick"))
    assert (scout.window, scout.window_layers, scout.chunked, scout.interleaved) == (8192, 36, True, False)
    assert (maverick.window_layers, maverick.dense_layers, maverick.interleaved) == (36, 24, True)
    named = ["chunked_attention", "chunked_attention", "full_attention"]
    config = family("llama4_text", **LLAMA4, attention_chunk_size=8, layer_types=named)
    assert (shape_of_hf_config(config).window, shape_of_hf_config(config).window_layers) == (8, 2)


def test_a_text_model_of_gemma_3_has_the_defaults_that_its_published_config_leaves_out() -> None:
    left_out = ("vocab_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "head_dim")
    whole = preset("gemma3-4b")
    published = {key: value for key, value in whole.items() if key not in left_out}
    assert shape_of_hf_config(published) == shape_of_hf_config(whole)


TOWERS = {"gemma3": "gemma3_text", "mistral3": "mistral", "llama4": "llama4_text", "llava": "llama"}
TOWERS |= {
    "internvl": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
}
TOWERS |= {"qwen3_vl_moe": "qwen3_vl_moe_text", "kimi_k25": "deepseek_v3"}
OF_TOWERS = {"llama4": LLAMA4, "qwen3_vl_moe": EXPERTS, "kimi_k25": DEEPSEEK}
SECTIONS = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", TOWERS)
def test_of_a_model_with_a_vision_tower_the_text_tower_is_planned(kind: str, tied: bool) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    transformers = pytest.importorskip(
        "transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]"
    )
    changes = {"tie_word_embeddings": tied} | OF_TOWERS.get(kind, {}) | (SECTIONS if "vl" in kind else {})
    text = family(TOWERS[kind], **changes)
    config = transformers.AutoConfig.for_model(kind, text_config=text, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    routing = [(name, bias) for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias")]
    named = [*model.named_parameters(), *routing]
    counted = sum(each.numel() for name, each in named if "language_model" in name or "lm_head" in name)
    written = {"model_type": kind, "text_config": text, "vision_config": {}, "tie_word_embeddings": tied}
    assert shape_of_hf_config(written).num_parameters == shape_of_hf_config(config.to_dict()).num_parameters == counted
    assert "vision" in str(towers_note(config.to_dict()))


def test_a_flat_config_of_an_old_file_is_read_too() -> None:
    """Qwen 2.5 VL was published with the keys of its text tower beside its `vision_config`."""
    flat = family("qwen2_5_vl", vision_config={"depth": 2})
    assert shape_of_hf_config(flat) == shape_of_hf_config(family("qwen2"))
    assert towers_note(flat) is not None
    assert towers_note(family("qwen2")) is None


def test_attention_and_mlp_side_by_side_are_added_once() -> None:
    sublayers = [num_sublayers(shape(name)) for name in ("falcon-one-key-head", "falcon-in-turn", "cohere", "llama")]
    assert sublayers == [3, 6, 3, 6]


@pytest.mark.parametrize(
    ("kind", "why"),
    [("qwen3_next", "linear attention"), ("minimax", "lightning"), ("deepseek_v32", "indexer"), ("mllama", "images")],
)
def test_a_common_type_without_formulas_is_refused_with_the_reason(kind: str, why: str) -> None:
    config = family(kind)
    if kind == "mllama":
        config = {"model_type": kind, "text_config": family("mllama_text_model"), "vision_config": {}}
    with pytest.raises(UsageError, match=f"cannot be planned yet: .*{why}"):
        shape_of_hf_config(config)


def test_an_ernie_with_experts_and_biases_is_refused() -> None:
    with pytest.raises(UsageError, match="biases of its projections cannot be planned yet"):
        shape_of_hf_config(CONFIGS["ernie4_5_moe"] | {"use_bias": True})


def test_a_config_without_a_dimension_names_it() -> None:
    with pytest.raises(UsageError, match="the config of this `llama` has no `hidden_size`"):
        shape_of_hf_config({"model_type": "llama"})


@pytest.mark.parametrize("change", [{"word_embed_proj_dim": 24}, {"do_layer_norm_before": False}])
def test_an_opt_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be planned yet"):
        shape_of_hf_config(CONFIGS["opt"] | change)
