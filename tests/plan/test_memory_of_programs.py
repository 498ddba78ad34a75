"""Memory of programs: what each keeps at which moment of the step, in numbers that follow from its source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import job, known, layouts
from tests.plan.test_memory import LENGTH, LLAMA, memory, per_token, states
from trainworks.plan.activations import activation_bytes
from trainworks.plan.coefficients import COEFFICIENTS
from trainworks.plan.layouts import Recompute
from trainworks.plan.memory import Memories
from trainworks.plan.parameters import resized
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software
from trainworks.record.model_shape import ModelShape

FP16 = Software(gradient_bytes=2)
N = LLAMA.num_parameters
TABLE = 32000 * 4096
"""Parameters of the output matrix of Llama 2 7B."""
GIB = 2**30


def gpt(**sizes: int) -> ModelShape:
    """A plain decoder."""
    return shape_of_hf_config({"model_type": "gpt2", **sizes})


def of(framework: str, year: int | None = None, **degrees: Any) -> Memories:
    return memory(software=Software.of(framework, year=year), **degrees)


def test_gradients_in_16_bits_are_copied_for_the_update_when_the_activations_are_gone() -> None:
    """2 + 2 + 12 bytes and activations, or 4 more for an fp32 copy: whichever is larger."""
    few = memory(precision="fp16", software=FP16, recompute=Recompute.FULL)
    many = memory(precision="fp16", software=FP16, micro_batch=16)
    assert states(few) == states(many) == pytest.approx(16 * N, rel=1e-4)
    assert few.allocated_bytes == pytest.approx(20 * N, rel=1e-4)
    moving = many.activations_bytes + many.logits_bytes + many.working_bytes
    assert moving > 4 * N
    assert many.allocated_bytes == pytest.approx(states(many) + moving)


def test_the_allocator_holds_what_the_other_moment_of_the_step_needs() -> None:
    many = memory(precision="fp16", software=FP16, micro_batch=16)
    assert many.cached_bytes == pytest.approx(4 * N, rel=1e-4)
    assert memory(precision="fp16", software=FP16, dp=8, dp_shard=8, zero=1, micro_batch=16).cached_bytes == (
        pytest.approx(4 * N / 8, rel=1e-4)
    )


@pytest.mark.parametrize("software", [Software(), Software.of("torch"), Software.of("MaxText")], ids=lambda s: s.name)
def test_gradients_in_32_bits_need_no_copy(software: Software) -> None:
    assert memory(software=software, micro_batch=16).cached_bytes == 0


def test_deepspeed_reduces_gradients_of_an_empty_pipeline_in_a_bucket() -> None:
    """`reduce_bucket_size`: 500 million elements of 2 bytes."""
    software = Software.of("Megatron-DeepSpeed", year=2022, gradient_bytes=2)
    sizes = {"precision": "fp16", "software": software, "micro_batch": 16}
    assert memory(dp=64, dp_shard=64, zero=1, **sizes).cached_bytes == 1e9
    assert memory(dp=2, dp_shard=2, zero=1, **sizes).cached_bytes == pytest.approx(2 * N, rel=1e-4)


@pytest.mark.parametrize(
    ("framework", "year", "per_parameter"),
    [
        ("Megatron-LM", 2022, 2 + 4 + 12),
        ("Megatron-DeepSpeed", 2022, 2 + 6 + 12),
        ("Megatron-Bridge", 2026, 2 + 2 + 12),
        ("torchtune", 2024, 2 + 2 + 4),
        ("NeMo Automodel", 2026, 2 + 2 + 4),
        ("torchtitan", 2025, 2 + 4 + 12),
        ("MaxText", 2025, 4 + 4 + 8),
    ],
)
def test_states_of_a_program_in_bytes_per_parameter(framework: str, year: int, per_parameter: int) -> None:
    several = layouts(4)  # so that gradients exist at the peak
    assert states(memory(some=several, software=Software.of(framework, year=year))) == pytest.approx(
        per_parameter * N, rel=1e-4
    )


@pytest.mark.parametrize(
    ("framework", "year", "per_logit"),
    [
        ("Megatron-LM", 2022, 2 + 4),
        ("Megatron-DeepSpeed", 2022, 2 + 4 + 4 + 4),
        ("llm-foundry", 2023, 2 + 2),
        ("NeMo Automodel", 2026, 2 + 2 + 2 + 2),
        ("PyTorch", 2026, 2 + 4 + 4 + 4),
        ("torchtitan", 2024, 2 + 4 + 4 + 4),
        ("torchtitan", 2025, 2 + 2),
    ],
)
def test_logits_of_a_program_in_bytes(framework: str, year: int, per_logit: int) -> None:
    software = Software.of(framework, year=year)
    assert memory(software=software, micro_batch=4).logits_bytes == per_logit * 4 * LENGTH * 32000


def test_xla_leaves_no_gaps() -> None:
    placed, cached = of("MaxText", 2025), of("Megatron-LM", 2025)
    assert (placed.reserved_bytes() == placed.allocated_bytes).all()
    assert cached.reserved_bytes() == pytest.approx(cached.allocated_bytes / (1 - COEFFICIENTS.fragmentation))


def test_xla_gathers_a_matrix_at_a_time_and_fsdp2_a_block() -> None:
    """In the last block of Llama 2 7B: this one and the next, gradients before their shards; and one table, or both."""
    fsdp2 = Software.of("torchtitan", year=2025)
    degrees = {"dp": 64, "dp_shard": 64, "zero": 3, "recompute": Recompute.FULL}
    torch, jax = (memory(software=replace(fsdp2, framework=name), **degrees) for name in ("torch", "jax"))
    block, matrix = 202383360, 4096 * 11008
    fewer = (2 + 2) * (block - matrix) + 2 * TABLE + (2 + 4) * (block - matrix)
    assert 0.5 * fewer < torch.working_bytes - jax.working_bytes <= fewer


def test_a_tpu_reserves_less_than_a_gpu() -> None:
    tpu, gpu = (
        job(cluster=cluster, software=Software.of("MaxText 2025")).memories(layouts()).baseline_bytes
        for cluster in ("16x TPU-v6e", "16x H100-SXM-80GB")
    )
    assert (tpu, gpu) == (260 * 2**20, COEFFICIENTS.context_bytes)


def test_the_second_stage_is_the_fullest_where_the_ends_have_a_block_less() -> None:
    """Llama 3 405B: 126 blocks of 3.188 billion weights on 16 stages, 7 and the embedding on the first."""
    shape = known("llama3.1-405b")
    some = layouts(2048, dp=128, dp_shard=128, zero=1, tp=8, sequence_parallel=1, pp=16)
    fullest = memory(shape, some, length=8192)
    block = 2 * 16384 * 128 * (128 + 8) + 3 * 16384 * 53248 + 2 * 16384
    kept = activation_bytes(shape, some, sequence_length=8192, precision="bf16", software=Software())
    assert fullest.stage == 1
    assert fullest.weights_bytes == 2 * 8 * block / 8
    assert fullest.activations_bytes == 15 * 8 * kept


def most_blocks(stage: int, blocks: list[int], *, stages: int, accum: int) -> int:
    """Most blocks that wait for their backward on a stage, by the order of passes in Megatron-Core's schedules.py."""
    chunks, passes = len(blocks), len(blocks) * accum
    warm_up = min(passes, 2 * (stages - 1 - stage) + (chunks - 1) * stages)
    order = [at % (stages * chunks) // stages for at in range(passes)]
    waiting = most = 0
    for at in range(passes + warm_up):
        if at < passes:
            waiting += blocks[order[at]]
            most = max(most, waiting)
        if at >= warm_up:
            waiting -= blocks[chunks - 1 - order[at - warm_up]]
    assert waiting == 0
    return most


@given(
    pp=st.sampled_from([2, 4, 8]), chunks=st.integers(2, 4), rounds=st.integers(1, 3), of_chunk=st.integers(1, 3),
    is_short=st.booleans(),
)  # fmt: skip
def test_interleaved_stages_keep_the_blocks_of_megatron_s_schedule(
    pp: int, chunks: int, rounds: int, of_chunk: int, *, is_short: bool
) -> None:
    """Blocks are shared evenly, or both ends of the model lack one, which makes the second stage the fullest."""
    accum = rounds * pp
    layers = of_chunk * chunks * pp - 2 * is_short
    shape = resized(LLAMA, layers=layers, vocabulary=64)
    some = layouts(accum, pp=pp, interleave=chunks)
    fullest = memory(shape, some)
    kept = float(activation_bytes(shape, some, sequence_length=LENGTH, precision="bf16", software=Software())[0])
    stage = int(fullest.stage[0])
    blocks = [of_chunk] * chunks
    if is_short and stage in (0, pp - 1):
        blocks[-(stage > 0)] -= 1
    ends = min(accum, 2 * pp - 1) if stage == 0 else 2 * (stage == pp - 1)
    expected = most_blocks(stage, blocks, stages=pp, accum=accum) * kept + ends * 2 * LENGTH * shape.hidden
    assert fullest.activations_bytes == pytest.approx(expected)


def test_llama_3_405b_fits_as_it_ran_where_the_product_of_the_gate_is_not_kept() -> None:
    """8,192 H100 with 80 GiB, nothing recomputed (arXiv:2407.21783, section 3.3): 141 blocks on the second stage."""
    some = layouts(2048, dp=64, dp_shard=64, zero=2, tp=8, sequence_parallel=1, pp=16, interleave=8)
    programs = (Software(repeats_gate=gate) for gate in (False, True))
    both = [memory(known("llama3.1-405b"), some, software=each, length=8192) for each in programs]
    kept, freed = (float(each.device_bytes()[0]) / GIB for each in both)
    assert 80 < kept < 90 and 60 < freed < 75
    product = 141 * 2 * 8192 * 53248 / 8
    assert both[0].activations_bytes - both[1].activations_bytes == pytest.approx(product)


@pytest.mark.parametrize(("framework", "stage"), [("Megatron-LM", 1), ("Megatron-DeepSpeed", 0)])
def test_deepspeed_counts_blocks_alone(framework: str, stage: int) -> None:
    """70 blocks on 8 stages: 9 and the embedding on the first by `type:transformer`, else 8, and 9 on the second."""
    shape = gpt(n_layer=70, n_embd=8192, n_head=64, vocab_size=51200, n_positions=2048)
    fullest = memory(shape, software=Software.of(framework, year=2022), pp=8, length=128)
    blocks, table = 9 * (12 * 8192**2 + 13 * 8192), (51200 + 2048) * 8192
    assert fullest.stage == stage
    assert fullest.weights_bytes / 2 == pytest.approx(blocks + (stage == 0) * table, rel=1e-4)


def test_a_stage_for_every_block_and_table_has_either() -> None:
    """BLOOM's 70 blocks on 72 stages: the first and the last have none."""
    shape = gpt(n_layer=70, n_embd=1024, n_head=16, vocab_size=250880, n_positions=2048)
    first = memory(shape, software=Software.of("Megatron-DeepSpeed", year=2022), pp=72, micro_batch=1)
    assert first.weights_bytes <= 2 * (250880 + 2048 + 20) * 1024


def test_gradients_of_experts_without_replicas_exist_once() -> None:
    """In a pipeline FSDP2 keeps whole gradients beside the shards, but ranks with experts of their own share none."""
    shape = known("qwen3-30b-a3b")
    software = Software.of("NeMo Automodel", year=2026)
    alone, shared = (
        memory(shape, software=software, dp=8, dp_shard=8, zero=3, pp=4, ep=ep).gradients_bytes for ep in (8, 1)
    )
    routed = 2 * 48 / 4 * shape.experts * 3 * shape.hidden * shape.expert_feed_forward
    # shared: whole gradients of all experts and an eighth of them; alone: whole gradients of an eighth
    assert shared - alone == pytest.approx(routed, rel=0.01)


def test_jax_policies_keep_the_named_projections() -> None:
    """Per token of Llama 2 7B, in units of h: the block's input, three projections, and the output's."""

    def kept(selective: Any) -> float:
        software = Software.of("MaxText", selective=selective)
        return per_token(LLAMA, software=software, precision="bf16", recompute=Recompute.SELECTIVE)

    assert kept("queries") == 2 * (1 + 3)
    assert kept("projections") == 2 * (1 + 3 + 1)


def test_save_qkv_proj_counts_shared_keys_once() -> None:
    """Llama 3 70B: 64 query heads and 8 of keys and of values, of 128."""
    shape, software = known("llama3-70b"), Software.of("MaxText", selective="queries")
    some = layouts(recompute=Recompute.SELECTIVE)
    found = activation_bytes(shape, some, sequence_length=LENGTH, precision="bf16", software=software)
    assert found == 2 * LENGTH * (8192 + (64 + 2 * 8) * 128)


@pytest.mark.parametrize(("dp", "gibibytes"), [(2, 47.66), (4, 39.65), (8, 35.64), (16, 33.64), (32, 32.63)], ids=str)
def test_megatron_deepspeed_s_allocations_are_predicted_within_one_per_cent(dp: int, gibibytes: float) -> None:
    """GPT-175B on LUMI, bf16, tp 8, pp 8: meg-ds/experiments/175B-scaling-comms of spyysalo/lumi-llm-scaling."""
    shape = gpt(n_layer=70, n_embd=14336, n_head=112, n_inner=57344, vocab_size=51200, n_positions=2048)
    degrees = {"dp": dp, "dp_shard": dp, "zero": 1, "tp": 8, "pp": 8, "micro_batch": 2, "recompute": Recompute.FULL}
    software = Software.of("Megatron-DeepSpeed", year=2022)
    allocated = memory(shape, layouts(1024, **degrees), software=software).allocated_bytes
    assert allocated[0] / GIB == pytest.approx(gibibytes, rel=0.01)


@pytest.mark.parametrize(
    ("tp", "micro_batch", "gibibytes"), [(1, 5, 20.93), (2, 10, 19.18)], ids=["one card", "two cards"]
)
def test_megatron_lm_s_allocations_are_predicted_within_two_per_cent(
    tp: int, micro_batch: int, gibibytes: float
) -> None:
    """GPT-2 medium in bf16 on an RTX 3090 Ti: mli/transformers-benchmarks."""
    shape = resized(
        gpt(n_layer=24, n_embd=1024, n_head=16, vocab_size=50304, n_positions=1024), max_sequence_length=1024
    )
    allocated = memory(
        shape, software=Software.of("Megatron-LM", year=2022), length=1024, tp=tp, micro_batch=micro_batch
    ).allocated_bytes
    assert np.asarray(allocated)[0] / GIB == pytest.approx(gibibytes, rel=0.02)


@pytest.mark.parametrize(
    ("year", "degrees", "gibibytes"),
    [
        (2024, {"dp": 8, "dp_shard": 8, "micro_batch": 2}, 77.0),
        (2024, {"dp": 128, "dp_shard": 128, "micro_batch": 2}, 62.0),
        (2024, {"dp": 4, "dp_shard": 4, "cp": 2, "recompute": Recompute.FULL}, 84.2),
        (2025, {"dp": 32, "dp_shard": 32, "micro_batch": 2}, 47.96),
        (2025, {"dp": 64, "dp_shard": 64, "micro_batch": 2}, 46.97),
    ],
    ids=["8 H100", "128 H100", "65k tokens", "32 H200", "64 H200"],
)
def test_torchtitan_s_memory_is_predicted_within_seven_per_cent(
    year: int, degrees: dict[str, Any], gibibytes: float
) -> None:
    """Llama 3.1 8B of 8,192 tokens, compiled: benchmarks/ of pytorch/torchtitan. Nothing was fitted to it."""
    given = {"zero": 3, "recompute": Recompute.SELECTIVE, **degrees}
    some = layouts(given["dp"] * given.get("micro_batch", 1), **given)
    length = 65536 if "cp" in given else 8192
    software = Software.of("torchtitan", year=year)
    reserved = memory(known("llama3-8b"), some, software=software, length=length).reserved_bytes()
    assert reserved[0] / GIB == pytest.approx(gibibytes, rel=0.07)


@pytest.mark.parametrize(("pp", "stage", "blocks", "tables"), [(1, 0, 28, 2), (2, 0, 15, 1)])
def test_nanotron_shares_products_of_which_the_output_has_many(pp: int, stage: int, blocks: int, tables: int) -> None:
    """28 blocks of 113 million weights and an output of 403 million: 3.6 blocks more, of which half are 15.8."""
    shape = shape_of_hf_config({
        "model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 32,
        "num_key_value_heads": 32, "intermediate_size": 8192, "vocab_size": 131072, "max_position_embeddings": 4096,
    })  # fmt: skip
    fullest = memory(shape, software=Software.of("nanotron", year=2024), pp=pp, length=4096)
    block, table = 4 * 3072**2 + 3 * 3072 * 8192, 131072 * 3072
    assert fullest.stage == stage
    assert fullest.weights_bytes / 2 == pytest.approx(blocks * block + tables * table, rel=1e-3)
