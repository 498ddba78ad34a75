"""Models that the decoder is not, cut at the seams of their layers and by the tables of `transformers`."""

from __future__ import annotations

import functools
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.lanes import amount
from tests.worker.ranks import on_ranks
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.worker.mesh import Mesh
from trainworks.worker.models.families import decoder_config
from trainworks.worker.models.support import layer_stack, support_of, tensor_plan
from trainworks.worker.models.transformer import CausalTransformer
from trainworks.worker.optimizer import StepOptimizer
from trainworks.worker.parallel.build import Setup, distribute_module, distribute_stages, stages_of_rank
from trainworks.worker.timing import Timeline

GUIDE = Path(__file__).parents[3] / "docs/guides/hugging-face-weights.md"

PLAIN = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    "phi3": {"resid_pdrop": 0.0},
    "falcon": {},
    "olmo2": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "bloom": {},
    "cohere": {},
    "cohere2": {"sliding_window": 8, "head_dim": 8},
    "deepseek_v3": EXPERTS
    | LATENT
    | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
    "exaone4": {"sliding_window": 8},
    "gemma": {"head_dim": 8},
    "gemma3_text": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 8},
    "glm": {"head_dim": 8},
    "gpt_bigcode": PLAIN | {"n_inner": 64},
    "gpt_neo": {
        "num_layers": 4,
        "attention_types": [[["global", "local"], 2]],
        "resid_dropout": 0.0,
        "embed_dropout": 0.0,
        "attention_dropout": 0.0,
    },
    "gpt_neox": {},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "gptj": PLAIN | {"rotary_dim": 4, "n_inner": 64},
    "granite": {},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 64, "expansion_ratio": 2},
    "nemotron": {},
    "olmo": {},
    "olmo3": {"sliding_window": 8},
    "persimmon": {},
    "phi": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
}
"""Decoders of `transformers` that the worker trains as they are, with the first six in every lane."""
TRAINED = list(FAMILIES)[: amount(test=6, test_all=6, nightly=len(FAMILIES))]
LAYOUTS: dict[str, dict[str, Any]] = {
    "pipeline": {"pp": 2},
    "tensor": {"tp": 2},
    "shards-tensor": {"dp_shard": 2, "tp": 2},
    "interleaved": {"pp": 2, "interleave": 2, "tp": 2},
    "zero-bubble": {"pp": 2, "zero_bubble": True, "dp_replicate": 2},
}


def config_of(kind: str) -> Any:
    """A tiny one with 4 layers."""
    size = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 64}
    size |= {"intermediate_size": 64, "num_key_value_heads": 4 if kind in ("phi", "deepseek_v3") else 2}
    taken = {"mpt": {}, "gpt_neo": {"hidden_size": 32, "num_heads": 4, "max_position_embeddings": 64}}.get(kind, size)
    tokens = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
    return AutoConfig.for_model(kind, **tokens | taken | FAMILIES[kind])


def train(kind: str, written: dict[str, Any], world_size: int) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of three steps on this rank."""
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")  # OPT does not add to it
    layout = resolve_layout(Layout.model_validate(written), world_size=world_size, global_batch=4, micro_batch=1)
    device, mesh, config = torch.device("cpu"), Mesh(layout, "cpu"), config_of(kind)
    setup = Setup(mesh=mesh, device=device, precision="fp32", compiled=False, timeline=Timeline(device))
    stages = {}
    for index, (layers, first, last) in stages_of_rank(layout, mesh.pp_rank, config.num_hidden_layers).items():
        model = stages[index] = CausalTransformer(config, pretrained=None, seed=1)
        with torch.no_grad():  # biases and norms begin as zeros and ones, which a wrong place would not show
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        if layout.pp > 1:
            model.keep_stage(layers, first=first, last=last)
        if layout.tp > 1:
            model.apply_tensor_parallel(mesh.tp)
    if layout.pp > 1:
        sizes = {"positions": 16, "hidden": config.hidden_size, "vocabulary": config.vocab_size}
        parallel = distribute_stages(stages, setup, **sizes)
    else:
        parallel = distribute_module(model, model.blocks, setup)
    optimizer = StepOptimizer(
        parallel.parts,
        mesh,
        Optimizer(lr=1e-2, eps=1e-5, schedule="constant"),
        num_steps=3,
        precision="fp32",
        device=device,
        guard=Guard(),
    )
    tokens = torch.randint(0, 64, (3, 4, 17), generator=torch.manual_seed(2))
    own = tokens.view(3, layout.grad_accum_steps, layout.dp, 1, 17)[:, :, mesh.dp_rank]
    losses, norms = [], []
    for batch in own:
        scale = optimizer.loss_scale.per_micro_batch(layout.grad_accum_steps)
        loss = parallel.gradients(batch[..., :-1], batch[..., 1:], scale=scale)
        norms.append(optimizer.step(0, loss).item())
        losses.append(loss.item())
    return losses, norms


def train_all(kinds: list[str], written: dict[str, Any], world_size: int) -> list[tuple[list[float], list[float]]]:
    """One family after the other on the same ranks."""
    return [train(kind, written, world_size) for kind in kinds]


@functools.cache
def alone() -> dict[str, tuple[list[float], list[float]]]:
    """Losses and norms of one process by family."""
    return dict(zip(TRAINED, on_ranks(1, train_all, TRAINED, {}, 1)[0], strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_decoders_of_transformers_train_as_one_process_does(layout: str) -> None:
    written = LAYOUTS[layout]
    axes = {axis: written.get(axis, 1) for axis in ("dp_replicate", "dp_shard", "tp", "pp")}
    cut = {axis for axis in ("tp", "pp") if axes[axis] > 1}
    kinds = [kind for kind in TRAINED if cut.isdisjoint(support_of(config_of(kind), adapted=False).uncut)]
    ranks = on_ranks(math.prod(axes.values()), train_all, kinds, written, math.prod(axes.values()))
    for index, kind in enumerate(kinds):
        by_rank = [rank[index][0] for rank in ranks]
        losses = [sum(step) * axes["pp"] / len(ranks) for step in zip(*by_rank, strict=True)]
        assert losses == pytest.approx(alone()[kind][0], rel=1e-5), kind
        assert ranks[0][index][1] == pytest.approx(alone()[kind][1], rel=1e-4), kind


@pytest.mark.parametrize("kind", FAMILIES)
def test_the_guide_says_how_each_family_is_cut(kind: str) -> None:
    assert decoder_config(config_of(kind)) is None
    row = next(line for line in GUIDE.read_text().splitlines() if line.startswith(f"| `{kind}` |"))
    uncut = support_of(config_of(kind), adapted=False).uncut
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config_of(kind))
    styles = tensor_plan(model, next(iter(layer_stack(model) or ())), 2)
    split = {"heads" if "att" in name else "MLP" for name, style in styles.items() if style == "rowwise"}
    rest = {"heads": "; MLP gathers", "MLP": "; attention gathers", "": "gathers"}
    words = " and ".join(sorted(split, reverse=True)) if len(split) > 1 else min(split, default="")
    words += rest.get(words, "")
    over_tp = "refused: experts" if "experts" in uncut.get("tp", "") else words
    expected = [over_tp, "refused" if "pp" in uncut else "yes"]
    assert [cell.strip() for cell in row.strip("|").split("|")][1:] == expected


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
