"""The parameter formula, exact to the last weight, against the models that are trained."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.config.model import Model
from trainworks.plan.shapes.transformer import shape_of_hf_config, shape_of_model

torch = pytest.importorskip("torch", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")
transformers = pytest.importorskip("transformers", reason="NOT TESTED against PyTorch: needs trainworks[train,test]")

GATED = ("llama", "mistral", "qwen2")
DIMENSIONS = {"layers": 3, "hidden": 48, "heads": 6, "feed_forward": 80}


def count(config: Any) -> int:
    """Parameters of the model of a config, without memory for them; a shared matrix counts once."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


def config_of(architecture: str, **changes: Any) -> Any:
    """A small config in the words of its architecture."""
    if architecture == "gpt2":
        fields = {"n_layer": 3, "n_embd": 48, "n_head": 6, "n_positions": 32, "vocab_size": 100}
    else:
        fields = {
            "num_hidden_layers": 3,
            "hidden_size": 48,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "intermediate_size": 80,
            "vocab_size": 100,
        }
    return transformers.AutoConfig.for_model(
        architecture, **(fields | {"bos_token_id": 0, "eos_token_id": 0} | changes)
    )


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", [*GATED, "gpt2"])
def test_a_config_has_the_parameters_of_its_model(architecture: str, tied: bool) -> None:
    config = config_of(architecture, tie_word_embeddings=tied)
    assert shape_of_hf_config(config.to_dict()).num_parameters == count(config)


@pytest.mark.parametrize("kv_heads", [1, 2, 3])
@pytest.mark.parametrize("architecture", GATED)
def test_grouped_query_attention_is_counted(architecture: str, kv_heads: int) -> None:
    config = config_of(architecture, num_key_value_heads=kv_heads)
    assert shape_of_hf_config(config.to_dict()).num_parameters == count(config)


@pytest.mark.parametrize("architecture", ["llama", "mistral"])
def test_heads_need_not_add_up_to_hidden(architecture: str) -> None:
    config = config_of(architecture, head_dim=16)
    assert shape_of_hf_config(config.to_dict()).num_parameters == count(config)


def test_gpt2_may_have_another_mlp_width() -> None:
    config = config_of("gpt2", n_inner=100)
    assert shape_of_hf_config(config.to_dict()).num_parameters == count(config)


@pytest.mark.parametrize("option", ["attention_bias", "mlp_bias"])
def test_optional_biases_of_llama_are_counted(option: str) -> None:
    config = config_of("llama", **{option: True})
    assert shape_of_hf_config(config.to_dict()).num_parameters == count(config)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", [*GATED, "gpt2"])
def test_a_run_file_s_dimensions_have_the_parameters_of_the_model_that_is_built(architecture: str, tied: bool) -> None:
    from trainworks.worker.models.decoder import Decoder
    from trainworks.worker.models.families import decoder_config
    from trainworks.worker.models.transformer import model_config

    model = Model.model_validate(DIMENSIONS | {"architecture": architecture, "tie_embeddings": tied})
    shape = shape_of_model(model, vocabulary=100, sequence_length=32)
    config = decoder_config(model_config(model, shape))
    assert config is not None
    built = Decoder(config)
    assert shape.num_parameters == sum(parameter.numel() for parameter in built.parameters())
