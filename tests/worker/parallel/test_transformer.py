"""Models that the decoder is not, cut by the tables that `transformers` has for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.transformer import CausalTransformer
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Setup, distribute_module
from trainworks.worker.timing import Timeline

CONFIGS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 8, "hidden_activation": "gelu_pytorch_tanh"},
    "olmo": {},
    "starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0},
}
LAYOUTS: dict[str, dict[str, Any]] = {"tensor": {"tp": 2}, "shards-tensor": {"dp_shard": 2, "tp": 2}}


def config_of(kind: str) -> Any:
    """A tiny one."""
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return AutoConfig.for_model(
        kind,
        vocab_size=64,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        **size,
        **CONFIGS[kind],
    )


def train(kind: str, written: dict[str, Any], world_size: int) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of three steps on this rank."""
    layout = resolve_layout(Layout.model_validate(written), world_size=world_size, global_batch=4, micro_batch=2)
    device, mesh = torch.device("cpu"), Mesh(layout, "cpu")
    model = CausalTransformer(config_of(kind), pretrained=None, seed=1)
    if layout.tp > 1:
        model.apply_tensor_parallel(mesh.tp)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=Timeline(device))
    parallel = distribute_module(model, model.blocks, setup)
    tokens = torch.randint(0, 64, (3, 4, 17), generator=torch.manual_seed(2))
    own = tokens.view(3, layout.grad_accum_steps, layout.dp, 2, 17)[:, :, mesh.dp_rank]
    parallel.gradients(own[0, :, :, :-1], own[0, :, :, 1:], scale=1.0)
    model.zero_grad(set_to_none=True)
    optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        Optimizer(lr=1e-2, eps=1e-5, schedule="constant"),
        num_steps=3,
        precision="fp32",
        device=device,
        guard=Guard(),
    )
    losses, norms = [], []
    for batch in own:
        scale = optimizer.loss_scale.per_micro_batch(layout.grad_accum_steps)
        loss = parallel.gradients(batch[..., :-1], batch[..., 1:], scale=scale)
        norms.append(optimizer.step(0, loss).item())
        losses.append(loss.item())
    return losses, norms


def outcome(kind: str, written: dict[str, Any], world_size: int) -> tuple[list[float], list[float]]:
    """Mean losses over the ranks, and norms."""
    ranks = on_ranks(world_size, train, kind, written, world_size)
    losses = [sum(step) / world_size for step in zip(*(losses for losses, _ in ranks), strict=True)]
    return losses, ranks[0][1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_model_cut_by_its_own_table_trains_as_one_process_does(kind: str, layout: str) -> None:
    written = LAYOUTS[layout]
    expected = outcome(kind, {}, 1)
    got = outcome(kind, written, 2 * written.get("dp_shard", 1))
    assert got[0] == pytest.approx(expected[0], rel=1e-5)
    assert got[1] == pytest.approx(expected[1], rel=1e-4)


@pytest.mark.parametrize("kind", CONFIGS)
def test_none_of_them_is_one_that_the_decoder_computes(kind: str) -> None:
    assert decoder_config(config_of(kind)) is None


def test_experts_of_a_module_are_balanced_as_transformers_does_it() -> None:
    config = AutoConfig.for_model(
        "qwen3_moe",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        mlp_only_layers=[0],  # the decoder has experts in all layers, or in none
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    assert decoder_config(config) is None
    model = CausalTransformer(config, pretrained=None, seed=1)
    tokens_BT = torch.randint(0, 64, (2, 9), generator=torch.manual_seed(2))
    loss = model(tokens_BT[:, :-1], tokens_BT[:, 1:])
    loss.backward()
    own = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    output = model.model(
        input_ids=tokens_BT[:, :-1], labels=tokens_BT[:, :-1], shift_labels=tokens_BT[:, 1:].contiguous()
    )
    output.loss.backward()
    assert loss.item() == pytest.approx((output.loss - 0.5 * output.aux_loss).item(), rel=1e-5)
    assert own.keys() == {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(own[name], parameter.grad, rtol=1e-4, atol=1e-6)
