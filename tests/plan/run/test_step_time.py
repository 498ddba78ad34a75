"""Step time: a sum of terms, each of which follows its formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import processes
from tests.plan.shapes import calibration, layout, shape, workload
from trainworks.config.layout import Layout, ResolvedLayout, resolve_layout
from trainworks.plan.run.plan import bucket_mib
from trainworks.plan.run.pricing import calibration_request, pricing
from trainworks.record.model_shape import ModelShape
from trainworks.record.step_time import StepTimeGroups


def predicted(ranks: ResolvedLayout, model: ModelShape | None = None, **measured: float) -> StepTimeGroups:
    """A step of sequences of 128 tokens."""
    return pricing(workload(), model or shape(), processes(1, ranks.world_size), calibration(**measured))(
        ranks
    ).step_time.groups


def step(dp_shard: int = 1, dp_replicate: int = 1, accumulate: int = 1, **measured: float) -> StepTimeGroups:
    """A step of shards or replicas."""
    return predicted(layout(dp_shard, dp_replicate, accumulate=accumulate), **measured)


def of_layout(accumulate: int = 4, measured: dict[str, float] | None = None, **written: object) -> StepTimeGroups:
    """A predicted step of micro-batches of one sequence of 128 tokens."""
    wanted = Layout.model_validate(written)
    dp = wanted.dp_replicate * wanted.dp_shard
    world_size = dp * wanted.cp * wanted.tp * wanted.pp
    resolved = resolve_layout(wanted, world_size=world_size, global_batch=dp * accumulate, micro_batch=1)
    return predicted(resolved, **measured or {})


def muon_s(dp_shard: int = 1, **measured: float) -> float:
    """What Muon takes beside AdamW per step."""
    job, by = workload(), calibration(**measured)
    ranks = layout(dp_shard)
    muon = job.model_copy(update={"optimizer": job.optimizer.model_copy(update={"name": "muon"})})
    both = (pricing(each, shape(), processes(1, dp_shard), by)(ranks).step_time.optimizer_s for each in (muon, job))
    return next(both) - next(both)


def test_muon_computes_each_matrix_once_per_group_that_shares_it_and_moves_it_twice() -> None:
    free = {"all_reduce_latency_s": 0.0, "all_reduce_bytes_per_s": 1e30, "memory_bytes_per_s": 1e30}
    alone = muon_s(**free)
    assert alone > 0
    assert muon_s(2, **free) == pytest.approx(alone / 2, rel=0.1)  # a last one may be without a partner
    assert muon_s(2) > muon_s(2, **free)
    assert muon_s(1) == pytest.approx(muon_s(1, all_reduce_latency_s=1.0))


def test_one_rank_does_not_communicate() -> None:
    assert step(all_reduce_latency_s=1.0).communication_s == 0


@pytest.mark.parametrize("axis", ["dp_shard", "dp_replicate", "cp", "tp", "pp"])
def test_more_ranks_communicate(axis: str) -> None:
    assert of_layout(**{axis: 2}).communication_s > 0


@pytest.mark.parametrize("axis", ["cp", "tp"])
def test_ranks_that_share_a_sequence_share_its_work(axis: str) -> None:
    assert of_layout(**{axis: 2}).compute_s < of_layout().compute_s


@given(st.integers(4, 64))
def test_a_pipeline_wastes_less_the_more_micro_batches_it_has(accumulate: int) -> None:
    few, many = (of_layout(count, pp=4).compute_s / count for count in (accumulate, accumulate + 1))
    assert many < few


def test_interleaving_and_zero_bubble_make_the_bubble_smaller() -> None:
    plain = of_layout(pp=2).compute_s
    assert of_layout(pp=2, interleave=2).compute_s < plain
    assert of_layout(pp=2, zero_bubble=True).compute_s < plain


def test_what_is_computed_again_takes_a_third_of_the_blocks_time() -> None:
    none, selective, full = (of_layout(recompute=what).compute_s for what in ("none", "selective", "full"))
    assert none < selective < full < none * 4 / 3


@pytest.mark.parametrize(("zero", "other"), [(1, 2), (2, 3)])
def test_the_more_zero_shares_the_more_is_exchanged(zero: int, other: int) -> None:
    assert of_layout(dp_shard=2, zero=zero).communication_s < of_layout(dp_shard=2, zero=other).communication_s


def test_sequence_parallelism_moves_half_more_where_a_scatter_is_an_all_reduce() -> None:
    """A gather moves half of an all-reduce, gloo's reduction to shards all of it, and each copies its message."""
    split, whole = (of_layout(tp=2, sequence_parallel=parallel) for parallel in (True, False))
    copies = 2 * 2 * whole.communication_s  # 20 GB/s of messages in memory are as fast as 10 GB/s of two bytes each
    assert 1.5 * whole.communication_s < split.communication_s <= 1.5 * whole.communication_s + copies


@given(st.integers(1, 64))
def test_every_micro_batch_after_the_first_adds_the_same(accumulate: int) -> None:
    once_s, twice_s = step().compute_s, step(accumulate=2).compute_s
    assert twice_s > 2 * once_s, "gradients are added up"
    assert step(accumulate=accumulate).compute_s == pytest.approx(once_s + (accumulate - 1) * (twice_s - once_s))


@given(st.integers(1, 64))
def test_the_optimizer_s_work_is_shared_by_the_shards(dp_shard: int) -> None:
    assert step(dp_shard).optimizer_s == pytest.approx(step().optimizer_s / dp_shard)


@given(st.floats(1, 100))
def test_a_faster_machine_computes_no_slower(factor: float) -> None:
    faster = step(attention_flops_per_s=factor * 1e12, memory_bytes_per_s=factor * 1e10)
    assert faster.compute_s <= step().compute_s


def test_matrix_products_take_their_flops_over_their_rate() -> None:
    """Everything else is made free: 6 FLOPs per weight and token remain."""
    model = shape(vocabulary=1024)
    free = {"attention_flops_per_s": 1e30, "memory_bytes_per_s": 1e30}
    weights = model.num_parameters - model.hidden * (2 * model.layers + 1)
    assert predicted(layout(), model, **free).compute_s == pytest.approx(6 * 128 * weights / 1e12)


def test_what_is_measured_are_the_products_of_the_largest_and_the_smallest_micro_batch() -> None:
    request = calibration_request(shape(), processes(), micro_batch=2, sequence_length=128, precision="bf16")
    smallest, largest = (((m, 64, 64), (m, 192, 64), (m, 1000, 64)) for m in (128, 256))
    assert request.gemm_shapes == (*smallest, *largest)


@given(st.floats(1e-6, 1e-2), st.floats(1e7, 1e11), st.sampled_from([0.5, 2.0]))
def test_no_other_bucket_is_cheaper_in_latency_and_exposed_bytes(latency: float, rate: float, factor: float) -> None:
    measured = calibration(all_reduce_latency_s=latency, all_reduce_bytes_per_s=rate)
    chosen = bucket_mib(shape().num_parameters, 4, measured)
    gradient_bytes = 4 * shape().num_parameters

    def cost(mib: float) -> float:
        sent = 1.5 * mib * 2**20 / rate
        return gradient_bytes / (mib * 2**20) * latency + sent

    other = factor * chosen
    if 1 < chosen < 256:
        assert cost(chosen) <= cost(other)


def test_a_bucket_has_bounds() -> None:
    slow = calibration(all_reduce_latency_s=1.0, all_reduce_bytes_per_s=1e12)
    fast = calibration(all_reduce_latency_s=1e-9, all_reduce_bytes_per_s=1e6)
    assert (
        bucket_mib(shape().num_parameters, 2, slow),
        bucket_mib(shape().num_parameters, 2, fast),
        bucket_mib(shape().num_parameters, 1, slow),
    ) == (256, 1, 25)


def test_gradients_in_16_bits_expose_less() -> None:
    whole = layout(1, 2)
    half = whole.model_copy(update={"gradient_compression": "bf16"})
    seconds = [predicted(ranks, all_reduce_latency_s=0.0).communication_s for ranks in (whole, half)]
    assert seconds[1] == pytest.approx(seconds[0] / 2)
