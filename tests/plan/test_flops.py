"""FLOPs: by hand, by PyTorch's own count of a real model, and by the conventions of published tables."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lanes import examples
from tests.plan.families import BLOOM, CONFIGS, GPT2, LLAMA4, VIT, family
from trainworks.catalog.models import preset, preset_names
from trainworks.plan.flops import (
    FlopsConvention,
    attention_flops_per_token,
    causal_flops_per_token,
    flops_per_token_by_convention,
    hardware_flops_per_token,
    layers_matmul_parameters,
    model_flops_per_token,
    scan_flops_per_token,
)
from trainworks.plan.layouts import Recompute
from trainworks.plan.parameters import head_matmul_parameters
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.record.model_shape import ModelShape

MEGATRON = [name for name in preset_names() if name.startswith(("megatron-gpt", "gpt3-"))]
COUNTED = [
    "llama",
    "qwen3-wide-heads",
    "gemma",
    "mixtral",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v2-direct-queries",
    "deepseek_v3",
    "gpt2",
    "gpt_neox",
    "opt",
    "bloom",
    "nemotron",
    "bert",
]
LENGTH = 16


def shape(name: str) -> ModelShape:
    return shape_of_hf_config(CONFIGS[name])


def counted_forward_flops(fields: dict[str, Any], **inputs: Any) -> int:
    """What PyTorch counts in the products of a forward pass; of BERT without the pooler, which sees one token."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import BertForMaskedLM

    from tests.plan.built_models import built

    model = built(fields, model_class=BertForMaskedLM if fields["model_type"] == "bert" else None).eval()
    model.set_attn_implementation("eager")
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(**inputs)
    return counter.get_total_flops()


@pytest.mark.parametrize("name", COUNTED)
def test_forward_is_a_third_of_the_flops_that_pytorch_counts(name: str) -> None:
    """Rotary models compute their table of angles by a product, of T d / 2 at most."""
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    tokens = torch.arange(LENGTH)[None] % 100
    counted = counted_forward_flops(CONFIGS[name], input_ids=tokens)
    assert LENGTH * model_flops_per_token(shape(name), LENGTH) / 3 == pytest.approx(counted, rel=1e-3)


@pytest.mark.parametrize("config", [VIT, VIT | {"patch_size": 4}, preset("vit-b16") | {"num_hidden_layers": 1}])
def test_an_image_costs_what_pytorch_counts(config: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    image = torch.zeros(1, 3, config["image_size"], config["image_size"])
    shape = shape_of_hf_config(config)
    forward = shape.max_sequence_length * model_flops_per_token(shape, shape.max_sequence_length) / 3
    assert forward == pytest.approx(counted_forward_flops(config, pixel_values=image), rel=1e-12)


@pytest.mark.parametrize(("name", "billions"), [("vit-b16", 17.564), ("vit-l16", 61.555), ("vit-h14", 167.295)])
def test_vision_transformers_have_their_published_multiply_adds(name: str, billions: float) -> None:
    """Torchvision's table of models; a multiply-add is two FLOPs, and a step is three forwards."""
    shape = shape_of_hf_config(preset(name))
    assert shape.max_sequence_length * model_flops_per_token(shape, shape.max_sequence_length) / 6e9 == pytest.approx(
        billions, rel=1e-4
    )


@pytest.mark.parametrize("name", MEGATRON)
@pytest.mark.parametrize("length", [1024, 2048])
def test_sc21_s_formulas_are_ours_for_the_models_they_are_made_for(name: str, length: int) -> None:
    shape = shape_of_hf_config(preset(name))
    model = flops_per_token_by_convention("sc21-model", shape, length)
    hardware = flops_per_token_by_convention("sc21-hardware", shape, length)
    assert model_flops_per_token(shape, length) == pytest.approx(model, rel=1e-12)
    assert hardware_flops_per_token(shape, length, Recompute.FULL) == pytest.approx(hardware, rel=1e-12)


def test_sc21_s_175b_takes_the_flops_that_its_table_implies() -> None:
    """1536 sequences of 2048 tokens: 3.4e18 FLOPs of the model, 4.5e18 with recomputation."""
    shape = shape_of_hf_config(preset("gpt3-175b") | {"vocab_size": 51200})
    step = 1536 * 2048
    assert step * flops_per_token_by_convention("sc21-hardware", shape, 2048) == pytest.approx(4.51e18, rel=0.01)
    assert step * flops_per_token_by_convention("sc21-model", shape, 2048) == pytest.approx(3.39e18, rel=0.01)


@pytest.mark.parametrize("name", CONFIGS)
def test_recomputation_costs_more_the_more_is_computed_again(name: str) -> None:
    flops = [hardware_flops_per_token(shape(name), LENGTH, recompute) for recompute in Recompute]
    assert flops[0] == model_flops_per_token(shape(name), LENGTH)
    assert flops == sorted(set(flops))


@pytest.mark.parametrize("name", CONFIGS)
def test_full_recomputation_is_a_third_more_but_for_the_ends(name: str) -> None:
    """Every layer's forward once more; embeddings and output are not computed again."""
    full = hardware_flops_per_token(shape(name), LENGTH, Recompute.FULL)
    layers = 6 * layers_matmul_parameters(shape(name)) + attention_flops_per_token(shape(name), LENGTH)
    layers += 3 * scan_flops_per_token(shape(name))
    assert full - model_flops_per_token(shape(name), LENGTH) == pytest.approx(layers / 3)


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3"])
def test_a_causal_mask_leaves_half_of_attention(name: str) -> None:
    saved = model_flops_per_token(shape(name), LENGTH) - causal_flops_per_token(shape(name), LENGTH)
    assert saved == pytest.approx(attention_flops_per_token(shape(name), LENGTH) / 2)


def test_an_encoder_has_no_causal_mask() -> None:
    assert causal_flops_per_token(shape("bert"), LENGTH) == model_flops_per_token(shape("bert"), LENGTH)


@given(window=st.integers(1, 40), length=st.integers(1, 64))
@settings(max_examples=examples(50))
def test_a_window_leaves_the_pairs_that_a_mask_leaves(window: int, length: int) -> None:
    """Token i sees min(i, w) others, in the continuum that halves attention."""
    everywhere = shape_of_hf_config(family("mistral", sliding_window=window))
    seen = sum(min(i + 0.5, window) if i < window else window for i in range(length)) / length
    exact = 12 * everywhere.layers * everywhere.heads * everywhere.head_dim * seen
    rest = model_flops_per_token(everywhere, length) - attention_flops_per_token(everywhere, length)
    assert causal_flops_per_token(everywhere, length) - rest == pytest.approx(exact)


@given(chunk=st.integers(1, 40), chunks=st.integers(1, 8))
@settings(max_examples=examples(50))
def test_a_chunk_leaves_half_of_its_pairs(chunk: int, chunks: int) -> None:
    config = family("llama4_text", **LLAMA4, attention_chunk_size=chunk, no_rope_layer_interval=4)
    chunked, length = shape_of_hf_config(config), chunk * chunks
    rest = model_flops_per_token(chunked, length) - attention_flops_per_token(chunked, length)
    exact = 12 * chunked.layers * chunked.heads * chunked.head_dim * chunk / 2
    assert chunked.window_layers == chunked.layers
    assert causal_flops_per_token(chunked, length) - rest == pytest.approx(exact)


@given(length=st.integers(1, 8192))
def test_a_sequence_within_one_chunk_is_seen_in_full(length: int) -> None:
    chunked = shape_of_hf_config(preset("llama4-scout"))
    whole = chunked.model_copy(update={"window": 0, "window_layers": 0})
    for flops in (model_flops_per_token, causal_flops_per_token):
        assert flops(chunked, length) == pytest.approx(flops(whole, length))


@given(length=st.integers(1, 4096))
def test_a_window_as_long_as_the_sequence_is_none(length: int) -> None:
    windowed = shape_of_hf_config(family("mistral", sliding_window=4096))
    for flops in (model_flops_per_token, causal_flops_per_token):
        assert flops(windowed, length) == pytest.approx(flops(shape("llama"), length))


@given(experts=st.integers(2, 64))
def test_experts_that_are_not_visited_cost_only_their_row_of_the_router(experts: int) -> None:
    def flops(number: int) -> float:
        return model_flops_per_token(shape_of_hf_config(family("mixtral", num_local_experts=number)), LENGTH)

    assert flops(experts) - flops(2) == 6 * 3 * 48 * (experts - 2)


@given(layers=st.integers(1, 8), length=st.integers(1, 4096))
def test_flops_of_a_dense_decoder_are_palm_s(layers: int, length: int) -> None:
    model = shape_of_hf_config(GPT2 | {"n_layer": layers})
    blocks = layers_matmul_parameters(model)
    palm = 6 * (blocks + head_matmul_parameters(model)) + 12 * layers * 6 * 8 * length
    assert model_flops_per_token(model, length) == palm


@pytest.mark.parametrize("convention", get_args(FlopsConvention))
def test_every_convention_has_a_formula(convention: FlopsConvention) -> None:
    bloom = shape_of_hf_config(BLOOM)
    assert flops_per_token_by_convention(convention, bloom, LENGTH) > 0
