"""The plan of an adapter: what is frozen takes no gradients, no optimizer state, and less time."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.catalog.models import preset
from trainworks.config.finetune import Adapter
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.run_file import Workload
from trainworks.errors import LayoutError
from trainworks.plan.degrees import layouts_of
from trainworks.plan.layouts import Layouts
from trainworks.plan.parameters import (
    active_parameters,
    embedding_parameters,
    expert_parameters,
    num_expert_layers,
    output_parameters,
)
from trainworks.plan.run.adapters import adapted_flops_per_token, adapted_states, adapter_parameters
from trainworks.plan.run.pricing import RunJob, run_job
from trainworks.plan.run.trainable import check_trainable
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.record.calibration import Calibration, GemmRate
from trainworks.record.processes import Processes

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 500,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}
SHAPE = shape_of_hf_config(LLAMA)
CALIBRATION = Calibration(
    device="cpu",
    precision="fp32",
    num_ranks=2,
    threads_per_rank=1,
    gemms=(GemmRate(m=1, n=1, k=1, flops_per_s=1e10),) * 3,
    attention_flops_per_s=1e10,
    memory_bytes_per_s=1e10,
    optimizer_params_per_s=1e9,
    op_overhead_s=1e-5,
    all_reduce_latency_s=1e-4,
    all_reduce_bytes_per_s=1e9,
    baseline_bytes=300_000_000,
    seconds=1.0,
)


def job(lora: dict[str, Any] | None, **changes: Any) -> RunJob:
    fields = {
        "task": "causal-lm",
        "model": {"hf": "base", "weights": "pretrained"},
        "data": {"source": "chats.jsonl", "sequence_length": 64, "chat": True},
        "precision": "fp32",
        "global_batch": 8,
        "train_for": "10 steps",
    }
    if lora is not None:
        fields["adapter"] = lora
    workload = Workload.model_validate(fields | changes)
    processes = Processes(nodes=1, processes_per_node=2, threads_per_process=1, device="cpu")
    return run_job(workload, SHAPE, processes, calibration=CALIBRATION, memory_per_rank_bytes=10**10)


def of(**degrees: Any):
    layout = resolve_layout(Layout.model_validate(degrees), world_size=2, global_batch=8, micro_batch=1)
    return layout, layouts_of([layout])


def test_the_parameters_of_an_adapter_are_those_that_peft_counts():
    assert adapter_parameters(SHAPE, Adapter(rank=4)) == 3 * 4 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 96))
    assert adapter_parameters(SHAPE, Adapter(rank=4, targets=("self_attn.q_proj", "v_proj"))) == 3 * 4 * (128 + 96)


def test_magnitudes_are_a_parameter_for_each_output():
    plain, with_magnitudes = (adapter_parameters(SHAPE, Adapter(rank=4, use_dora=dora)) for dora in (False, True))
    assert with_magnitudes - plain == 3 * (64 + 32 + 32 + 64 + 96 + 96 + 64)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_magnitudes_keep_the_outputs_that_they_scale_of_all_blocks_or_of_the_one_that_is_recomputed(recompute):
    layout, layouts = of(tp=2, micro_batch=1, recompute=recompute)
    terms, lora = (job({"rank": 4, "use_dora": dora}).memories(layouts).terms() for dora in (True, False))
    trained = 3 * (64 + 32 + 32 + 64 + 96 + 96 + 64) / 2
    assert terms.gradients_bytes - lora.gradients_bytes == 4 * trained
    assert terms.optimizer_bytes - lora.optimizer_bytes == 8 * trained
    check_trainable(layout, job({"rank": 4, "use_dora": True}).workload, SHAPE)
    of_block = 4 * 64 * ((64 + 32 + 32 + 96 + 96) / 2 + 64 + 64)  # cut by outputs, and whole
    more = terms.activations_bytes - lora.activations_bytes
    assert more == pytest.approx(3 * of_block if recompute == "none" else of_block, rel=0.15)


def test_magnitudes_take_time_in_forward_and_backward_and_dropout_the_products_again():
    layouts = of(dp_replicate=2)[1]
    plain, dora, dropping = (
        job({"rank": 4} | more).step_times(layouts)
        for more in ({}, {"use_dora": True}, {"use_dora": True, "dropout": 0.1})
    )
    assert plain.forward_s[0] < dora.forward_s[0] < 1.4 * plain.forward_s[0]
    assert plain.backward_s[0] < dora.backward_s[0] < 1.4 * plain.backward_s[0]
    assert 1.5 * plain.forward_s[0] < dropping.forward_s[0] < 2.4 * plain.forward_s[0]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_every_use_of_a_weight_in_4_bits_takes_it_out(recompute):
    """On a CPU: 33 bytes and seven kernels for each weight and matrix of the blocks, each micro-batch and pass."""
    layouts = of(dp_replicate=2, recompute=recompute)[1]
    wide, packed = (job({"rank": 4, "base": base}).step_times(layouts) for base in ("fp32", "nf4"))
    weights = SHAPE.num_parameters - embedding_parameters(SHAPE) - output_parameters(SHAPE)
    once = float(layouts.accum[0]) * (33 * weights / 1e10 + 3 * 7 * 7 * 1e-5)
    assert packed.forward_s[0] - wide.forward_s[0] == pytest.approx(once)
    assert packed.backward_s[0] - wide.backward_s[0] == pytest.approx(once)
    again = once * float(wide.recompute_s[0] / wide.forward_s[0])
    assert packed.recompute_s[0] - wide.recompute_s[0] == pytest.approx(again)
    assert (again > 0) == (recompute == "full")


def test_only_the_adapter_has_gradients_and_optimizer_state():
    layouts = of(dp_replicate=2)[1]
    trained = adapter_parameters(SHAPE, Adapter(rank=4))
    terms = job({"rank": 4}).memories(layouts).terms()
    assert terms.gradients_bytes == 4 * trained
    assert terms.optimizer_bytes == 8 * trained
    assert terms.weights_bytes == 4 * (SHAPE.num_parameters + trained)
    assert terms.total_bytes < job(None).memories(layouts).terms().total_bytes


def test_8_bit_moments_are_planned_for_an_adapter_and_for_all_weights():
    layouts = of(dp_replicate=2)[1]
    for lora, weights in (({"rank": 4}, adapter_parameters(SHAPE, Adapter(rank=4))), (None, SHAPE.num_parameters)):
        small, full = (
            job(lora, optimizer={"name": name}).memories(layouts).terms() for name in ("adamw-8bit", "adamw")
        )
        assert full.optimizer_bytes == pytest.approx(8 * weights, rel=1e-3)
        assert small.optimizer_bytes == pytest.approx(2 * (1 + 4 / 64) * weights, rel=1e-3)  # rows of 64


def test_shards_share_the_frozen_weights_too():
    whole, shared = (job({"rank": 4}).memories(of(**{axis: 2})[1]).terms() for axis in ("dp_replicate", "dp_shard"))
    assert shared.weights_bytes == pytest.approx(whole.weights_bytes / 2)


def test_4_bits_take_an_eighth_of_the_blocks():
    layouts = of(dp_replicate=2)[1]
    full, packed = (job({"rank": 4, "base": base}).memories(layouts).terms() for base in ("fp32", "nf4"))
    ends = 2 * 64 * 500
    blocks = SHAPE.num_parameters - ends
    assert full.weights_bytes - packed.weights_bytes == pytest.approx(blocks * (4 - 0.5625), rel=1e-3)


def test_frozen_weights_need_no_gradients_of_their_own():
    layouts = of(dp_replicate=2)[1]
    full, adapted = job(None).step_times(layouts), job({"rank": 4}).step_times(layouts)
    assert adapted.backward_s[0] < 0.75 * full.backward_s[0]
    assert adapted.dp_s[0] < 0.2 * full.dp_s[0]
    assert adapted.optimizer_s[0] < 0.2 * full.optimizer_s[0]
    assert adapted.total_s[0] < full.total_s[0]


def test_a_frozen_model_has_two_thirds_of_the_flops_and_those_of_its_adapter():
    small = adapted_flops_per_token(SHAPE, Adapter(rank=1), 64)
    large = adapted_flops_per_token(SHAPE, Adapter(rank=11), 64)
    assert large - small == pytest.approx(6 * 10 * adapter_parameters(SHAPE, Adapter(rank=1)))


@pytest.mark.parametrize("written", [{"tp": 2}, {"pp": 2}])
def test_an_adapter_is_cut_over_tensors_and_pipelines(written):
    layout, _ = of(**written)
    check_trainable(layout, job({"rank": 4}).workload, SHAPE)


@pytest.mark.parametrize(
    ("adapter", "written", "message"),
    [
        ({}, {"cp": 2}, "an adapter is not cut over cp"),
        ({"base": "nf4"}, {"tp": 2}, r"blocks of 4-bit weights are not cut over tp \(2\)"),
        ({"dropout": 0.1}, {"tp": 2}, r"each rank of tp \(2\) would drop other inputs of the adapters"),
    ],
)
def test_an_adapter_is_refused_where_ranks_would_part(adapter, written, message):
    layout, _ = of(**written)
    with pytest.raises(LayoutError, match=message):
        check_trainable(layout, job({"rank": 4} | adapter).workload, SHAPE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hf": "base"}}, "needs `task: causal-lm` and a checkpoint"),
        ({"adapter": {"base": "bf16"}}, "`adapter.base: bf16` needs `precision: bf16`"),
        ({"precision": "fp8"}, "does not support `precision: fp8`"),
        ({"adapter": {"folder": "one"}, "model": {"preset": "llama3-8b"}}, "an adapter of a checkpoint, and `model`"),
        (
            {
                "adapter": {"folder": "one"},
                "preference": {},
                "data": {"source": "chats.jsonl", "sequence_length": 64, "chat": {"pairs": True}},
            },
            "`preference` compares with the model without its adapter",
        ),
    ],
)
def test_what_an_adapter_cannot_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        job(None, **({"adapter": {"rank": 4}} | changes))


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2"])
def test_4_bits_leave_the_experts_of_the_layers_that_have_them_in_16(name: str):
    shape, layouts = shape_of_hf_config(preset(name)), of(dp_replicate=2)[1]
    bases = (Adapter(rank=4, base=base) for base in ("bf16", "nf4"))
    full, packed = (float(adapted_states(shape, layouts, each, precision="bf16")["weights_bytes"][0]) for each in bases)
    dense = active_parameters(shape) - shape.experts_per_token * expert_parameters(shape) * num_expert_layers(shape)
    ends = embedding_parameters(shape) + output_parameters(shape)
    assert full - packed == pytest.approx((dense - ends) * (2 - 0.5625), rel=1e-3)


@pytest.mark.parametrize("base", ["bf16", "fp32"])
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 8), (8, 1), (8, 8), (2, 2), (4, 2)])
def test_ranks_that_share_every_weight_hold_the_frozen_model_once(tp: int, ep: int, base: str):
    shape = shape_of_hf_config(preset("mixtral-8x7b"))
    dp = 8 // tp
    spread = Layouts.of(global_batch=8, dp=dp, dp_shard=dp, zero=3, tp=tp, ep=ep)
    states = adapted_states(shape, spread, Adapter(rank=1, base=base), precision="bf16")
    assert 8 * states["weights_bytes"][0] == pytest.approx(
        {"bf16": 2, "fp32": 4}[base] * shape.num_parameters, rel=1e-3
    )
