"""Memory of the fullest rank: what it never does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.shapes import shape, workload
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.plan.activations import activation_bytes
from trainworks.plan.degrees import layouts_of
from trainworks.plan.run.memory import checkpoint_bytes, effective_layouts, run_memories
from trainworks.plan.run.pricing import run_job
from trainworks.plan.software import worker_software
from trainworks.record.memory import MemoryTerms
from trainworks.record.model_shape import ModelShape
from trainworks.record.processes import Processes

SHAPES = st.builds(
    shape,
    st.integers(1, 5_000).map(lambda eighth: 8 * eighth),
    layers=st.integers(4, 48),
    hidden=st.sampled_from([64, 256, 1024]),
    tie_embeddings=st.booleans(),
    architecture=st.sampled_from(["llama", "gpt2"]),
)
PRECISIONS = st.sampled_from(["fp32", "bf16", "fp16"])
AXES = st.sampled_from(["dp_shard", "tp", "cp", "pp"])


def cut(micro_batch: int = 1, accumulate: int = 1, **written: object) -> ResolvedLayout:
    """A layout with these degrees and options."""
    wanted = Layout.model_validate(written)
    dp = wanted.dp_replicate * wanted.dp_shard
    world_size = dp * wanted.cp * wanted.tp * wanted.pp
    batch = dp * micro_batch * accumulate
    return resolve_layout(wanted, world_size=world_size, global_batch=batch, micro_batch=micro_batch)


def memory(
    model: ModelShape, *, precision: str = "fp32", device: str = "cpu", length: int = 128, **written: object
) -> MemoryTerms:
    """Of sequences of 128 tokens."""
    layouts = layouts_of([cut(**written)])  # type: ignore[arg-type]
    sizes = {"sequence_length": length, "precision": precision, "baseline_bytes": 0, "device": device}
    return run_memories(model, layouts, **sizes).terms()  # type: ignore[arg-type]


def kept_by_block(model: ModelShape, precision: str, length: int = 128, **written: object) -> float:
    """Activations of one block and sequence."""
    layouts = effective_layouts(model, layouts_of([cut(**written)]), precision, "cpu")  # type: ignore[arg-type]
    software = worker_software("cpu")
    return float(activation_bytes(model, layouts, sequence_length=length, precision=precision, software=software)[0])


def states(terms: MemoryTerms) -> int:
    """What lives as long as the model."""
    return terms.weights_bytes + terms.gradients_bytes + terms.optimizer_bytes


@given(SHAPES, st.integers(2, 64), PRECISIONS)
def test_more_shards_never_increase_the_states(model: ModelShape, dp_shard: int, precision: str) -> None:
    few, many = (memory(model, dp_shard=shards, precision=precision) for shards in (dp_shard, dp_shard + 1))
    assert states(many) <= states(few)


def test_the_update_of_muon_needs_room_for_a_whole_matrix() -> None:
    job = workload(model={"layers": 1, "hidden": 2048, "heads": 8}, data={"source": "text", "sequence_length": 8})
    model = shape(8, sequence_length=8, layers=1, hidden=2048, heads=8)
    processes = Processes(nodes=1, processes_per_node=8, threads_per_process=1, device="cpu")
    layouts = layouts_of([cut(tp=8)])
    found = {}
    for name in ("muon", "lion"):
        wanted = job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"name": name})})
        found[name] = run_job(wanted, model, processes).memories(layouts).terms()
    m, n = model.hidden, model.feed_forward
    moving = [terms.activations_bytes + terms.logits_bytes + terms.working_bytes for terms in found.values()]
    assert moving[0] == pytest.approx(2 * (5 * m * n + 2 * m * m), rel=1e-6)
    assert moving[0] > moving[1]


@given(SHAPES, st.integers(1, 64), PRECISIONS)
def test_activations_are_linear_in_the_micro_batch(model: ModelShape, factor: int, precision: str) -> None:
    one, many = (memory(model, micro_batch=size, precision=precision) for size in (1, factor))
    assert many.activations_bytes == pytest.approx(factor * one.activations_bytes, rel=1e-3)


@given(SHAPES, st.integers(1, 64))
def test_the_micro_batch_does_not_change_the_states(model: ModelShape, micro_batch: int) -> None:
    few, many = (memory(model, micro_batch=size, accumulate=2) for size in (1, micro_batch))
    assert states(few) == states(many)


@given(SHAPES, st.integers(1, 64))
def test_shards_do_not_change_the_activations(model: ModelShape, dp_shard: int) -> None:
    assert memory(model, dp_shard=dp_shard).activations_bytes == memory(model).activations_bytes


@given(SHAPES)
def test_16_bit_activations_are_smaller(model: ModelShape) -> None:
    assert memory(model, precision="bf16").activations_bytes < memory(model).activations_bytes


@given(SHAPES)
def test_states_in_fp32_without_shards_are_16_bytes_per_parameter(model: ModelShape) -> None:
    assert states(memory(model, accumulate=2)) == pytest.approx(16 * model.num_parameters, rel=1e-2)


@given(SHAPES)
def test_gradients_that_are_freed_after_each_step_are_not_yet_there_in_the_loss(model: ModelShape) -> None:
    assert memory(model, micro_batch=64).gradients_bytes <= memory(model, micro_batch=64, accumulate=2).gradients_bytes


@given(SHAPES)
def test_a_checkpoint_holds_weights_and_two_moments(model: ModelShape) -> None:
    assert checkpoint_bytes(model.num_parameters) == 12 * model.num_parameters
    assert memory(model).checkpoint_bytes == pytest.approx(checkpoint_bytes(model.num_parameters), rel=1e-2)


@given(SHAPES, AXES)
def test_every_axis_that_cuts_the_model_or_the_tokens_saves_optimizer_state_or_activations(
    model: ModelShape, axis: str
) -> None:
    alone, shared = memory(model, accumulate=4), memory(model, accumulate=4, **{axis: 2})
    pairs = [(terms.optimizer_bytes, terms.activations_bytes) for terms in (shared, alone)]
    assert pairs[0][0] < pairs[1][0] or pairs[0][1] < pairs[1][1]


@given(SHAPES, PRECISIONS)
def test_the_more_is_computed_again_the_less_is_kept(model: ModelShape, precision: str) -> None:
    kept = [kept_by_block(model, precision, recompute=recompute) for recompute in ("full", "selective", "none")]
    assert kept == sorted(kept)


@given(SHAPES, PRECISIONS)
def test_sequence_parallelism_saves_activations(model: ModelShape, precision: str) -> None:
    split, whole = (
        memory(model, tp=2, sequence_parallel=sequence_parallel, precision=precision)
        for sequence_parallel in (True, False)
    )
    assert split.activations_bytes < whole.activations_bytes


@given(SHAPES, st.sampled_from([2, 4]), PRECISIONS)
def test_the_more_zero_shares_the_less_a_rank_holds(model: ModelShape, dp_shard: int, precision: str) -> None:
    totals = [
        states(memory(model, dp_shard=dp_shard, zero=zero, accumulate=4, precision=precision)) for zero in (1, 2, 3)
    ]
    assert totals == sorted(totals, reverse=True)


@given(st.integers(1, 100))
def test_the_loss_stops_growing_with_the_logits(factor: int) -> None:
    """Of 2 GB of logits and more, 12 bytes for each of 8 Mi at a time."""
    model = shape(128_000)
    hidden = 4 * 32 * factor * 128 * model.hidden
    pieces = memory(model, micro_batch=32 * factor).logits_bytes - hidden
    assert pieces <= 12 * (8 << 20) + 4 * model.vocabulary * model.hidden


SMALL = shape(10, 64, layers=1, hidden=32, heads=4, kv_heads=2, feed_forward=96)


def test_activations_of_one_token_are_those_that_autograd_saves() -> None:
    """h=32, H=4, K=2, d=8, f=96: 2,712 bytes in fp32 less the statistics of two norms."""
    assert kept_by_block(SMALL, "fp32", length=1) == 2712 - 2 * 4


def test_16_bit_activations_of_one_token_are_those_that_autograd_saves() -> None:
    """2,040 bytes under autocast less 24 of statistics and positions, and 200 of copied weights; 1,656 with shards."""
    counted = [kept_by_block(SMALL, "bf16", length=1, **degrees) for degrees in ({}, {"dp_shard": 2})]
    assert counted == [2040 - 8 - 4 * 8 - 16 * 2 - 8 * 2 - 3 * 48, 1656 - 8 - 4 * 8]


def test_activations_of_one_token_of_experts_are_those_that_autograd_saves() -> None:
    """The same with two of four experts of f=96: 5,100 bytes, of which 92 are indices and statistics."""
    experts = SMALL.model_copy(update={"experts": 4, "experts_per_token": 2, "expert_feed_forward": 96})
    assert kept_by_block(experts, "fp32", length=1) == 5100 - 92


def test_offloading_saves_memory_of_an_accelerator() -> None:
    plain, offloaded = (
        memory(shape(), device="cuda", offload_optimizer=offload, offload_activations=offload)
        for offload in (False, True)
    )
    assert (offloaded.optimizer_bytes, offloaded.checkpoint_bytes) == (0, 0)
    assert offloaded.activations_bytes < plain.activations_bytes


def test_offloaded_activations_stay_where_they_are_on_a_cpu() -> None:
    assert memory(shape(), offload_activations=True) == memory(shape())


@pytest.mark.parametrize(
    ("device", "precision", "dropout", "said", "more"),
    [
        ("cpu", "fp32", 0.0, "pieces (sdpa of each document)", 4 * 1024 * 128 + 4 * (4 * 64 * 1024)),
        ("cuda", "bf16", 0.0, "varlen (FlashAttention of each document)", 4 * 1024 + 4),
        ("cuda", "fp32", 0.0, "flex (FlexAttention with a mask of blocks)", 16 * (8**2 + 8) + 8 * 1024 - 2**20),
        ("cuda", "bf16", 0.1, "pieces (sdpa of each document)", 2 * 1024 * 128 + 4 * (2 * 2 * 64 * 1024)),
    ],
)
def test_the_plan_of_packed_rows_names_the_kernel_and_counts_its_memory(
    device: str, precision: str, dropout: float, said: str, more: int
) -> None:
    """4 layers of 4 query and 2 key heads of 16 values: masks, the copied output, and repeated keys and values.

    Plain attention in fp32 on a GPU repeats them, 2^20 bytes, and FlexAttention does not.
    """
    model = shape(sequence_length=1024, kv_heads=2)
    processes = Processes(nodes=1, processes_per_node=1, threads_per_process=1, device=device)
    architecture = {"architecture": "gpt2", "dropout": dropout} if dropout else {}
    plain, packed = (
        run_job(
            workload(
                model={"layers": 4, "hidden": 64, "heads": 4} | architecture,
                data={"source": "python-stdlib", "sequence_length": 1024, "pack": pack},
                precision=precision,
            ),
            model,
            processes,
        )
        for pack in (False, True)
    )
    assert packed.attention is not None
    assert packed.attention.describe() == said
    layouts = layouts_of([cut()])
    kept = [job.memories(layouts).terms().activations_bytes for job in (plain, packed)]
    assert kept[1] - kept[0] == more


@given(SHAPES)
def test_shards_of_a_model_that_is_gathered_at_once_need_more_memory_than_replicas(model: ModelShape) -> None:
    """What gathers it has its size ten times; replicas of it have 16 bytes per parameter."""
    if model.num_parameters < 4 << 20 and model.layers <= 8:
        replicas, shards = (memory(model, **degrees) for degrees in ({"dp_replicate": 2}, {"dp_shard": 2}))
        assert shards.total_bytes > replicas.total_bytes


@given(SHAPES)
def test_weights_that_stay_until_backward_are_gathered_less_often(model: ModelShape) -> None:
    idle = [memory(model, dp_shard=2, zero=zero).allocator_bytes for zero in (1, 3)]
    assert idle[0] <= idle[1]


def test_positions_that_are_exchanged_for_heads_leave_gaps_of_their_copies() -> None:
    """28 copies of a token and block, of which three quarters lie idle, beside a kept output of its heads."""
    model = shape(16, hidden=256, heads=8, layers=16)
    alone, exchanged = (memory(model, micro_batch=8, dp_shard=2), memory(model, micro_batch=16, cp=2))
    copied = 28 * 4 * model.hidden * model.layers * 128 * 8
    kept = exchanged.activations_bytes - alone.activations_bytes
    assert exchanged.allocator_bytes - alone.allocator_bytes == pytest.approx(0.75 * (copied + kept), rel=1e-3)


def test_groups_of_several_axes_have_rings() -> None:
    both, one = (memory(shape(), tp=2, dp_replicate=copies, zero=3) for copies in (2, 1))
    assert both.allocator_bytes - one.allocator_bytes >= 2 * (4 << 20)


def test_units_that_are_mapped_leave_no_gaps() -> None:
    """Embedding and output together are the root: of one token less than 8 Mi values it is in the heap."""
    rows = (8 << 20) // (2 * 64)
    heap, mapped = (memory(shape(rows + more, tie_embeddings=False), dp_shard=2).allocator_bytes for more in (-8, 8))
    assert heap - mapped > 4 * (32 << 20)
