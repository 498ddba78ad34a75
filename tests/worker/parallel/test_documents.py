"""Documents of a row do not see each other: not in the decoder, not in a model of `transformers`, in no layout."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig

from tests.worker.models.hugging_face import TINY, tiny_config
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.errors import UsageError
from trainworks.worker.loss import IGNORED, loss_weights
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.decoder import Decoder, PackedTokens
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.transformer import CausalTransformer
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.optimizer import named_parameters
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

LENGTHS = (9, 14, 1, 8)
POSITIONS = sum(LENGTHS)


def a_row(vocabulary: int) -> PackedTokens:
    """Four documents in one row."""
    tokens = torch.randint(0, vocabulary, (1, POSITIONS), generator=torch.manual_seed(3))
    return PackedTokens(tokens, torch.cat([torch.arange(length) for length in LENGTHS]).unsqueeze(0))


@pytest.mark.parametrize("name", [name for name in TINY if "moe" not in name and name != "mixtral"])
def test_the_decoder_gives_a_packed_document_the_logits_that_it_has_alone(name):
    config = decoder_config(tiny_config(name))
    assert config is not None
    model = Decoder(config).eval()
    draw_weights([model], seed=1)
    assert_apart(model, config.vocabulary)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_neox", "olmo2"])
def test_a_model_of_transformers_does_too(kind):
    model = CausalTransformer(tiny(kind), pretrained=None, seed=1).eval()
    model.check_packing()
    model.eval()
    assert_apart(model, 64)


def test_a_model_that_cannot_is_refused():
    config = AutoConfig.for_model("bloom", vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    with pytest.raises(UsageError, match="a bloom of `transformers` cannot keep the documents of a row apart"):
        CausalTransformer(config, pretrained=None, seed=1).check_packing()


def tiny(kind: str) -> Any:
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    options = {"head_dim": 8, "sliding_window": 5} if kind == "gemma2" else {}
    return AutoConfig.for_model(
        kind, vocab_size=64, num_key_value_heads=4, pad_token_id=0, bos_token_id=0, eos_token_id=0, **size, **options
    )


@torch.no_grad()
def assert_apart(model: torch.nn.Module, vocabulary: int) -> None:
    row = a_row(vocabulary)
    packed = model(row)
    alone = [model(piece) for piece in row.tokens.split(LENGTHS, dim=1)]
    assert torch.allclose(packed, torch.cat(alone, dim=1), atol=1e-5)


LAYOUTS: dict[str, dict[str, Any]] = {
    "replicas": {"dp_replicate": 2, "micro_batch": 2},
    "shards": {"dp_shard": 2, "micro_batch": 1},
    "tensor": {"tp": 2, "micro_batch": 2},
    "tensor, positions split": {"tp": 2, "sequence_parallel": True, "micro_batch": 2},
    "context": {"cp": 2, "micro_batch": 2},
    "pipeline with context": {"pp": 2, "cp": 2, "micro_batch": 1},
}


def gradients(layout: ResolvedLayout) -> tuple[float, dict[str, np.ndarray]]:
    """Loss of this rank, and its gradients, whole."""
    config = decoder_config(tiny_config("llama"))
    assert config is not None
    device, mesh = torch.device("cpu"), Mesh(layout, "cpu")
    timeline = Timeline(device)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=timeline)
    parallel = distribute_decoder(
        config, setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    row = a_row(config.vocabulary)
    tokens = (row.tokens + torch.arange(4).unsqueeze(1)) % config.vocabulary
    labels = tokens.roll(-1, dims=1)
    labels[:, [8, 22, 23, 31]] = IGNORED
    labels[0, :20] = IGNORED
    positions = row.positions.expand(4, -1)
    stretch = slice(mesh.cp_rank * (POSITIONS // layout.cp), (mesh.cp_rank + 1) * (POSITIONS // layout.cp))

    def own(values: torch.Tensor, part: slice) -> torch.Tensor:
        return values.view(layout.grad_accum_steps, layout.dp, layout.micro_batch, -1)[:, mesh.dp_rank, :, part]

    own_labels = own(labels, stretch)
    weights = loss_weights((own_labels != IGNORED).flatten(1).sum(1), timeline)
    x = PackedTokens(own(tokens, stretch), own(positions, slice(None)))
    loss = parallel.gradients(x, own_labels, scale=1.0 / layout.grad_accum_steps, weights=weights)
    whole = {name: each.grad for name, each in named_parameters(parallel.parts) if each.grad is not None}
    return loss.item(), {name: getattr(each, "full_tensor", lambda e=each: e)().numpy() for name, each in whole.items()}


@functools.cache
def outcome(name: str | None) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradients of a layout; of one rank with one micro-batch when None."""
    layout = Layout.model_validate(LAYOUTS[name] if name else {"micro_batch": 4})
    world_size = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    resolved = resolve_layout(layout, world_size=world_size, global_batch=4, micro_batch=int(layout.micro_batch))
    ranks = on_ranks(world_size, gradients, resolved)
    return sum(loss for loss, _ in ranks) * resolved.pp / world_size, {
        name: value for _, of_rank in ranks for name, value in of_rank.items()
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_loss_and_gradients_of_one_rank(name):
    loss, grads = outcome(name)
    expected_loss, expected = outcome(None)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    for key, value in expected.items():
        assert np.allclose(grads[key], value, atol=2e-6), key
