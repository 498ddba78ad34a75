"""Known models: their published totals, and the names that tables use."""

from __future__ import annotations

import pytest

from trainworks.catalog.models import find_preset, known_model, preset, preset_names
from trainworks.errors import UsageError
from trainworks.plan.parameters import active_parameters
from trainworks.plan.shapes.conv_net import conv_net_of_hf_config
from trainworks.plan.shapes.transformer import shape_of_hf_config

NETWORKS = [name for name in preset_names() if preset(name)["model_type"] == "resnet"]
TRANSFORMERS = [name for name in preset_names() if name not in NETWORKS]
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
    ],
)
def test_active_parameters_are_those_that_the_model_cards_round(name: str, billions: float) -> None:
    assert active_parameters(shape_of_hf_config(preset(name))) / 1e9 == pytest.approx(billions, rel=0.03)


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
    ],
)
def test_names_of_published_tables_are_found(written: str, name: str) -> None:
    assert find_preset(written) == name


@pytest.mark.parametrize(
    "written", ["", "GPT-181B (tr11 candidates)", "GPT-184B", "GPT2 3B", "DeepSeekV4 Flash", "Nemotron_3_Nano"]
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


@pytest.mark.parametrize("name", TRANSFORMERS)
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
    ("written", "name"), [("LLaMA-2-7B", "llama2-7b"), ("BERT large", "bert-large"), ("DeepSeekV3", "deepseek-v3")]
)
def test_a_model_is_found_without_regard_to_case_blanks_and_hyphens(written: str, name: str) -> None:
    assert known_model(written).name == name


def test_a_model_that_resembles_nothing_gets_the_two_other_ways_to_name_it() -> None:
    with pytest.raises(UsageError) as raised:
        known_model("chatglm")
    assert raised.value.hint == "give its dimensions (`layers`, `hidden`, `heads`), or its checkpoint with `hf`"
