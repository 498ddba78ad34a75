"""What the decoder computes with the weights of a Hugging Face model is what `transformers` computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from tests.worker.models.hugging_face import TINY, saved, tiny_config
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, resolve_layout
from trainworks.errors import EnvironmentProblem
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.weights import SafetensorsFolder, load_weights
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

TOKENS = torch.randint(0, 96, (2, 24), generator=torch.manual_seed(1))


@pytest.mark.parametrize("name", TINY)
def test_the_decoder_has_the_logits_of_transformers(name, tmp_path):
    expected = saved(name, tmp_path, TOKENS)
    decoder = loaded(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(decoder(TOKENS), expected, rtol=1e-5, atol=1e-5)


def test_a_llama_with_dropout_in_its_attention_is_left_to_transformers():
    config = tiny_config("llama")
    assert decoder_config(config) is not None
    config.attention_dropout = 0.1
    assert decoder_config(config) is None


def test_weights_in_several_files_are_found_by_their_index(tmp_path):
    expected = saved("llama", tmp_path, TOKENS, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    with torch.no_grad():
        torch.testing.assert_close(loaded(tmp_path)(TOKENS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, {"tp": 2}) for name in ("llama", "llama-tied", "llama-biases", "qwen3", "mixtral", "gpt2")),
        *((name, {"dp_shard": 2}) for name in ("llama-tied", "qwen2", "qwen3_moe", "gpt2")),
        *((name, {"dp_shard": 2, "ep": 2}) for name in ("mixtral", "qwen3_moe")),
        *((name, {"pp": 2}) for name in ("llama-tied", "gpt2", "mixtral")),
        ("mistral-window", {"cp": 2}),
    ],
)
def test_two_ranks_together_have_the_logits_of_transformers(name, layout, tmp_path):
    expected = saved(name, tmp_path, TOKENS)[:, -1]
    for got in on_ranks(2, logits_of_rank, str(tmp_path), layout):
        torch.testing.assert_close(torch.from_numpy(got), expected, rtol=1e-5, atol=1e-5)


def test_weights_of_another_shape_than_the_config_says_are_refused(tmp_path):
    saved("llama", tmp_path, TOKENS)
    config = AutoConfig.from_pretrained(tmp_path)
    config.intermediate_size = 64
    decoder = Decoder(decoder_config(config))
    with pytest.raises(EnvironmentProblem, match=r"up_proj|gate_proj"):
        load_weights([decoder], SafetensorsFolder(tmp_path), config)


def test_a_file_that_lacks_a_tensor_is_refused(tmp_path):
    saved("llama-tied", tmp_path, TOKENS)
    config = AutoConfig.from_pretrained(tmp_path)
    config.tie_word_embeddings = False
    with pytest.raises(EnvironmentProblem, match=r"no tensor `lm_head\.weight`"):
        load_weights([Decoder(decoder_config(config))], SafetensorsFolder(tmp_path), config)


def loaded(folder):
    config = AutoConfig.from_pretrained(folder)
    decoder = Decoder(decoder_config(config)).eval()
    load_weights([decoder], SafetensorsFolder(folder), config)
    return decoder


def logits_of_rank(folder, written):
    layout = resolve_layout(Layout.model_validate(written), world_size=2, global_batch=4, micro_batch=2)
    device = torch.device("cpu")
    setup = Setup(mesh=Mesh(layout, "cpu"), device=device, precision="fp32", compiled=False, timeline=Timeline(device))
    config = AutoConfig.from_pretrained(folder)
    parallel = distribute_decoder(
        decoder_config(config),
        setup,
        positions=TOKENS.shape[1],
        first_weights=lambda parts: load_weights(parts, SafetensorsFolder(Path(folder)), config),
    )
    for part in parallel.parts:
        part.eval()
    return parallel.next_token_logits(TOKENS).numpy()


def test_a_rotary_embedding_that_depends_on_the_length_is_left_to_transformers():
    config = tiny_config("llama")
    config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    assert decoder_config(config) is None
