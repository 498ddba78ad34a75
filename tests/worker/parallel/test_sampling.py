"""The next token is the same in every layout, whatever the length of the prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.worker.parallel.test_equivalence import LAYOUTS, MODELS, POSITIONS
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.weights import draw_weights
from trainworks.worker.parallel.build import Setup, distribute_decoder
from trainworks.worker.timing import Timeline

LENGTHS = (1, 5, 8)
CASES = [
    *(("llama", name) for name in ("zero3", "tensor", "context", "pipeline-interleaved", "context-tensor-pipeline")),
    ("gpt2", "context"),
    ("llama-tied", "pipeline"),
    ("mixtral", "experts-tensor"),
]


def logits(model: str, layout: ResolvedLayout) -> list[np.ndarray]:
    """After prompts of some lengths, on this rank."""
    mesh = Mesh(layout, "cpu")
    device = torch.device("cpu")
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=Timeline(device))
    parallel = distribute_decoder(
        MODELS[model], setup, positions=POSITIONS, first_weights=lambda parts: draw_weights(parts, seed=3)
    )
    tokens = torch.arange(8).remainder(64).unsqueeze(0)
    return [parallel.next_token_logits(tokens[:, :length]).numpy() for length in LENGTHS]


def of_ranks(model: str, written: dict[str, object]) -> list[list[np.ndarray]]:
    """What every rank says."""
    layout = Layout.model_validate({"micro_batch": 2} | written)
    world_size = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    resolved = resolve_layout(layout, world_size=world_size, global_batch=8, micro_batch=2)
    return on_ranks(world_size, logits, model, resolved)


@pytest.mark.parametrize(("model", "name"), CASES, ids=[f"{model}-{name}" for model, name in CASES])
def test_every_rank_of_a_layout_has_the_logits_of_one_process(model: str, name: str) -> None:
    (expected,) = of_ranks(model, {})
    for of_rank in of_ranks(model, LAYOUTS[name]):
        for got, wanted in zip(of_rank, expected, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
