"""Known models: their published totals, and the names that tables use."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.catalog.models import find_preset, known_model, preset, preset_names
from trainworks.errors import UsageError
from trainworks.plan.parameters import (
    active_parameters,
    embedding_parameters,
    expert_layer_parameters,
    expert_parameters,
)
from trainworks.plan.shapes.conv_net import conv_net_of_hf_config
from trainworks.plan.shapes.transformer import shape_of_hf_config

NETWORKS = [name for name in preset_names() if preset(name).get("model_type") == "resnet"]
TRANSFORMERS = [name for name in preset_names() if name not in NETWORKS]
OF_TRANSFORMERS = [name for name in TRANSFORMERS if "model_type" in preset(name)]
BUILT = [name for name in OF_TRANSFORMERS if preset(name)["model_type"] != "arctic"]  # which has code of its own
COUNTED = [name for name in preset_names() if known_model(name).parameters is not None]


def parameters_of(name: str) -> int:
    config = preset(name)
    return (conv_net_of_hf_config if name in NETWORKS else shape_of_hf_config)(config).num_parameters


@pytest.mark.parametrize("name", COUNTED)
def test_a_preset_has_its_published_parameters(name: str) -> None:
    assert parameters_of(name) == known_model(name).parameters


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 174.6),
        ("megatron-gpt-1.7b", 1.7),
        ("megatron-gpt-3.6b", 3.6),
        ("megatron-gpt-7.5b", 7.5),
        ("megatron-gpt-18.4b", 18.4),
        ("megatron-gpt-39.1b", 39.1),
        ("megatron-gpt-76.1b", 76.1),
        ("megatron-gpt-145.6b", 145.6),
        ("megatron-gpt-310.1b", 310.1),
        ("megatron-gpt-529.6b", 529.6),
        ("megatron-gpt-1008b", 1008.0),
        ("nemotron4-15b", 15.6),
        ("nemotron4-340b", 341.0),
        ("opt-66b", 65.7),
        ("opt-175b", 174.6),
        ("kimi-k2", 1026.4),
    ],
)
def test_totals_that_are_published_in_billions_agree_to_the_last_digit(name: str, billions: float) -> None:
    assert round(parameters_of(name) / 1e9, 1) == billions


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),
        ("mixtral-8x22b", 39),
        ("qwen3-30b-a3b", 3.3),
        ("qwen3-235b-a22b", 22),
        ("deepseek-v2", 21),
        ("deepseek-v3", 37),
        ("kimi-k2", 32),
        ("llama4-scout", 17),
        ("llama4-maverick", 17),
        ("qwen3-coder-480b-a35b", 35),
        ("arctic-480b", 17),
    ],
)
def test_active_parameters_are_those_that_the_model_cards_round(name: str, billions: float) -> None:
    assert active_parameters(shape_of_hf_config(preset(name))) / 1e9 == pytest.approx(billions, rel=0.03)


def test_arctic_is_the_sum_that_its_card_writes() -> None:
    """10B dense and 128 x 3.66B, of which two: 480B in total, 17B active."""
    shape = shape_of_hf_config(preset("arctic-480b"))
    expert = shape.layers * expert_parameters(shape)
    assert (round(expert / 1e9, 2), round((shape.num_parameters - 128 * expert) / 1e9)) == (3.66, 10)
    assert round(shape.num_parameters / 1e10) == 48


@pytest.mark.parametrize(
    ("name", "millions"), [("gemma3-1b", 698), ("gemma3-4b", 3209), ("gemma3-12b", 10759), ("gemma3-27b", 25600)]
)
def test_gemma_3_has_the_non_embedding_parameters_of_its_report(name: str, millions: int) -> None:
    """Source: Gemma Team 2025, table 1."""
    shape = shape_of_hf_config(preset(name))
    assert round((shape.num_parameters - embedding_parameters(shape)) / 1e6) == millions


@pytest.mark.parametrize(("name", "total"), [("glm4.5", 358_337_791_296), ("glm4.5-air", 110_468_824_832)])
def test_glm_4_5_and_the_layer_that_predicts_a_further_token_are_the_published_total(name: str, total: int) -> None:
    """That layer has embeddings and an output of its own, a projection of 2 h to h, and three norms."""
    shape = shape_of_hf_config(preset(name))
    h = shape.hidden
    further = expert_layer_parameters(shape) + 2 * h * shape.vocabulary + 2 * h * h + 3 * h
    assert shape.num_parameters + further == total


@pytest.mark.parametrize(("name", "billions"), [("glm4.5", 32), ("glm4.5-air", 12)])
def test_active_parameters_of_glm_4_5_are_those_of_its_report_without_embeddings(name: str, billions: int) -> None:
    shape = shape_of_hf_config(preset(name))
    assert round((active_parameters(shape) - 2 * embedding_parameters(shape)) / 1e9) == billions


GEMMA_3_SIGHT = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
GEMMA_3_SIGHT |= {"patch_size": 14, "image_size": 896, "vision_use_head": False}
LLAMA_4_SIGHT = {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16}
LLAMA_4_SIGHT |= {"patch_size": 14, "image_size": 336, "projector_input_dim": 4096, "projector_output_dim": 4096}
LLAMA_4_SIGHT |= {"vision_output_dim": 4096}


@pytest.mark.parametrize(
    ("name", "kind", "encoder", "total"),
    [
        ("gemma3-4b", "gemma3", GEMMA_3_SIGHT, 4_300_079_472),
        ("gemma3-12b", "gemma3", GEMMA_3_SIGHT, 12_187_325_040),
        ("gemma3-27b", "gemma3", GEMMA_3_SIGHT, 27_432_406_640),
        ("llama4-scout", "llama4", LLAMA_4_SIGHT, 108_641_793_536),
        ("llama4-maverick", "llama4", LLAMA_4_SIGHT, 401_583_781_376),
    ],
)
def test_a_text_part_and_its_vision_encoder_are_the_published_total(
    name: str, kind: str, encoder: dict[str, Any], total: int
) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    transformers = pytest.importorskip(
        "transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]"
    )
    config = transformers.AutoConfig.for_model(kind, text_config=preset(name), vision_config=encoder)
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(config)
    sizes = {part: parameter.numel() for part, parameter in model.named_parameters()}
    beside = sum(size for part, size in sizes.items() if "language_model" not in part and "lm_head" not in part)
    assert parameters_of(name) + beside == sum(sizes.values()) == total


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("Llama3-70B", "llama3-70b"),
        ("Llama3-70B LoRA", "llama3-70b"),
        ("llama3_70b cut to 12 layers", "llama3-70b"),
        ("Llama3.1-405B", "llama3.1-405b"),
        ("llama3_405b cut to 4 layers", "llama3.1-405b"),
        ("Meta Llama 3 8B", "llama3-8b"),
        ("LLaMA-65B", "llama-65b"),
        ("Llama-34B", "codellama-34b"),
        ("TinyLlama-1.1B", "tinyllama-1.1b"),
        ("DeepSeekV3", "deepseek-v3"),
        ("DeepSeek-V3 671B (37B active)", "deepseek-v3"),
        ("deepseekv2 cut to 4 layers", "deepseek-v2"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("Qwen3_235B_a22B", "qwen3-235b-a22b"),
        ("GPT OSS 120B", "gpt-oss-120b"),
        ("Mixtral-8x7B", "mixtral-8x7b"),
        ("Kimi_K2", "kimi-k2"),
        ("GPT3-175B", "gpt3-175b"),
        ("GPT-175B (Pax)", "gpt3-175b"),
        ("GPT-18.4B", "megatron-gpt-18.4b"),
        ("MT-NLG-530B", "megatron-gpt-529.6b"),
        ("BLOOM-176B", "bloom-176b"),
        ("GPT-NeoX-20B", "gpt-neox-20b"),
        ("ViT-B/16", "vit-b16"),
        ("ResNet50", "resnet-50"),
        ("BERT-Large", "bert-large"),
        ("google/gemma-3-12b-pt", "gemma3-12b"),
        ("gemma-3-12b", "gemma3-12b"),
        ("Llama-4-Scout", "llama4-scout"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct", "llama4-maverick"),
        ("Llama 4 Scout 109B", "llama4-scout"),
        ("OLMo-2-1124-7B", "olmo2-7b"),
        ("SmolLM3-3B", "smollm3-3b"),
        ("zai-org/GLM-4.5-Air", "glm4.5-air"),
        ("GLM-4-9B-chat", "glm4-9b"),
        ("microsoft/Phi-4", "phi4"),
        ("Phi-3-mini-128k-instruct", "phi3.5-mini"),
        ("Mistral-Nemo-Instruct-2407", "mistral-nemo"),
        ("Mistral-Small-24B-Base-2501", "mistral-small-24b"),
        ("Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b"),
        ("Snowflake Arctic 480B", "arctic-480b"),
        ("Yi-1.5-34B-Chat", "yi1.5-34b"),
        ("Falcon3-10B-Base", "falcon3-10b"),
        ("granite-3.1-8b-base", "granite3-8b"),
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("tiiuae/falcon-40b", "falcon-40b"),
    ],
)
def test_names_of_published_tables_are_found(written: str, name: str) -> None:
    assert find_preset(written) == name


@pytest.mark.parametrize(
    "written",
    [
        *("", "GPT-181B (tr11 candidates)", "GPT-184B", "GPT2 3B", "DeepSeekV4 Flash", "Nemotron_3_Ultra"),
        *("DeepSeek-R1-Distill-Qwen-3B", "Phi-4-multimodal-instruct", "Phi-3.5-MoE", "GLM-4.5V", "gemma-3-270m"),
        *("Phi-4-mini-flash-reasoning", "snowflake-arctic-embed-l", "Qwen3-Next-80B-A3B", "tiiuae/falcon-11B"),
    ],
)
def test_a_name_that_is_not_certain_is_not_found(written: str) -> None:
    assert find_preset(written) is None


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_found_by_its_name_and_its_aliases(name: str) -> None:
    row = known_model(name)
    assert {find_preset(written) for written in (name, name.upper(), name.replace("-", "_"), *row.aliases)} == {name}


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown model `llama3-71b`") as refused:
        preset("llama3-71b")
    assert "`llama3-70b`" in str(refused.value.hint)


def test_the_model_in_a_longer_name_is_offered_first() -> None:
    with pytest.raises(UsageError) as refused:
        preset("DeepSeekV3 cut to 12 layers")
    assert str(refused.value.hint).startswith("did you mean `deepseek-v3`")


@pytest.mark.parametrize("name", preset_names())
def test_every_row_says_where_it_comes_from(name: str) -> None:
    row = known_model(name)
    assert row.source.startswith("https://")
    assert row.parameters or row.confidence == "medium" or row.source.startswith("https://arxiv.org/")


def test_a_caller_cannot_change_the_catalogue() -> None:
    preset("bert-base")["hidden_size"] = 1
    assert preset("bert-base")["hidden_size"] == 768


@pytest.mark.parametrize("name", BUILT)
def test_a_preset_is_the_model_that_transformers_builds(name: str) -> None:
    torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
    from tests.plan.built_models import built_parameters

    with torch.device("meta"):
        assert parameters_of(name) == built_parameters(preset(name))


@pytest.mark.parametrize("name", ["gpt-4", "GPT-4 (1.8T)", "GPT-4o", "claude-3", "gemini 2.5 pro"])
def test_a_model_without_a_published_shape_is_explained(name: str) -> None:
    with pytest.raises(UsageError, match="has no published shape") as raised:
        known_model(name)
    assert "deepseek-v3" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("LLaMA-2-7B", "llama2-7b"),
        ("BERT large", "bert-large"),
        ("DeepSeekV3", "deepseek-v3"),
        ("google/gemma-3-12b-pt", "gemma3-12b"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama4-scout"),
    ],
)
def test_a_model_is_found_without_regard_to_case_blanks_and_hyphens(written: str, name: str) -> None:
    assert known_model(written).name == name


def test_a_model_that_resembles_nothing_gets_the_two_other_ways_to_name_it() -> None:
    with pytest.raises(UsageError) as raised:
        known_model("chatglm")
    assert raised.value.hint == "give its dimensions (`layers`, `hidden`, `heads`), or its checkpoint with `hf`"
