"""The search: held against plain loops over a tiny space, and laws of what it returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import job, known
from trainworks.catalog.cluster import parse_cluster
from trainworks.errors import UsageError
from trainworks.plan import space as space_module
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import predict_memories
from trainworks.plan.parameters import resized
from trainworks.plan.search import (
    TIGHT_SHARE,
    SearchResult,
    fits,
    limit_bytes,
    pareto_front,
    preferred_s,
    search,
    search_layouts,
)
from trainworks.plan.software import Software
from trainworks.plan.space import Space, recomputations
from trainworks.plan.step_time import TrainingJob
from trainworks.record.model_shape import ModelShape

LLAMA = job(sequence_length=4096)
"""Of 32 A100s."""
DEEP = job("llama3-70b", "8 nodes of 8x A100-SXM-80GB over 8x HDR", sequence_length=8192)
SMALL = known("tinyllama-1.1b")
BATCH = 64


def memory_of(text: str, gibibytes: float) -> TrainingJob:
    """A small model on accelerators with so much memory."""
    cluster = parse_cluster(text)
    smaller = cluster.accelerator.model_copy(update={"memory_bytes": int(gibibytes * 2**30)})
    shape = resized(SMALL, layers=4)
    small = job(shape, sequence_length=512)
    return TrainingJob(
        shape=shape,
        sequence_length=512,
        precision="bf16",
        cluster=cluster.model_copy(update={"accelerator": smaller}),
        software=small.software,
    )


def searched(of: TrainingJob, *, batch: int = BATCH, keep: int = 10, **fixed: int) -> SearchResult:
    return search(Space(of, of.cluster.num_accelerators, batch, fixed), keep=keep)


def divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


def every_layout(shape: ModelShape, length: int, world: int, batch: int) -> Iterator[dict[str, int]]:
    """What the documentation says can run, one by one in plain loops."""
    for tp, pp, cp, dp in every_mesh(shape, length, world, batch):
        for zero, dp_shard, micro_batch, interleave, zero_bubble, recompute, sequence_parallel, *offload in product(
            range(4), divisors(dp), divisors(batch // dp), range(1, shape.layers + 3), (0, 1),
            (Recompute.NONE, Recompute.FULL), (0, 1) if tp > 1 else (0,), (0, 1), (0, 1),
        ):  # fmt: skip
            accum = batch // dp // micro_batch
            sharding = allowed_sharding(zero, dp_shard, dp=dp, cp=cp, pp=pp)
            if sharding and allowed_schedule(interleave, zero_bubble, pp=pp, layers=shape.layers, accum=accum):
                yield {
                    "dp": dp, "dp_shard": dp_shard, "zero": zero, "tp": tp, "pp": pp, "cp": cp, "ep": 1,
                    "sequence_parallel": sequence_parallel, "interleave": interleave, "micro_batch": micro_batch,
                    "recompute": int(recompute), "recompute_layers": 0, "zero_bubble": zero_bubble, "accum": accum,
                    "offload": offload[0], "offload_optimizer": offload[1],
                    "gradient_compression": 0, "powersgd_rank": 0, "expert_capacity": 0, "fp8_all_gather": 0,
                }  # fmt: skip


def every_mesh(shape: ModelShape, length: int, world: int, batch: int) -> Iterator[tuple[int, int, int, int]]:
    for tp, pp, cp, dp in product(divisors(world), repeat=4):
        divided = not (shape.heads % tp or shape.feed_forward % tp or batch % dp or (cp > 1 and length % (2 * cp)))
        if tp * pp * cp * dp == world and pp <= shape.layers and divided:
            yield tp, pp, cp, dp


def allowed_sharding(zero: int, dp_shard: int, *, dp: int, cp: int, pp: int) -> bool:
    """Nothing over one rank; states over all of them, gradients without a pipeline; weights over any part."""
    if zero == 0:
        return dp_shard == 1
    if dp * cp == 1 or (zero == 2 and pp > 1):
        return False
    return dp_shard == dp if zero < 3 else dp_shard > 1 or dp == 1


def allowed_schedule(interleave: int, zero_bubble: int, *, pp: int, layers: int, accum: int) -> bool:
    if pp == 1:
        return interleave == 1 and not zero_bubble
    if interleave > 1:
        shared = 0 in (
            layers % (pp * interleave),
            (layers + 2) % (pp * interleave),
        )  # or one less in the first and last
        return shared and not zero_bubble and accum % pp == 0
    return True


@pytest.mark.parametrize(("nodes", "gibibytes"), [("2x A100-SXM-80GB", 80), ("4x A100-SXM-80GB", 6)])
def test_the_search_prices_what_plain_loops_enumerate(nodes: str, gibibytes: float) -> None:
    of = memory_of(nodes, gibibytes)
    expected = list(every_layout(of.shape, 512, of.cluster.num_accelerators, 4))
    found = searched(of, batch=4)
    fitting = [row for row in expected if fits_alone(of, row)]
    assert (found.evaluated, found.fitting) == (len(expected), len(fitting))
    space = Space(of, of.cluster.num_accelerators, 4, {})
    filled = Layouts.concatenate([*space.layouts(lambda *_: None)])
    assert keys(rows_of(filled)) == keys(expected)
    assert keys(of_all_layers(found)) <= keys(fitting)


def keys(rows: Iterable[dict[str, int]]) -> set[tuple[tuple[str, int], ...]]:
    return {tuple(sorted(row.items())) for row in rows}


def fits_alone(of: TrainingJob, row: dict[str, int]) -> bool:
    degrees = {name: value for name, value in row.items() if name != "accum"}
    one = Layouts.of(global_batch=4, **degrees)
    memories = predict_memories(
        of.shape, one, sequence_length=of.sequence_length, precision=of.precision, software=of.software
    )
    return bool(fits(memories, of)[0])


def rows(result: SearchResult) -> list[dict[str, int]]:
    return rows_of(result.layouts)


def of_all_layers(result: SearchResult) -> list[dict[str, int]]:
    """The layouts with what they recompute repeated in all layers, and those without as they are."""
    return [row | {"recompute_layers": 0} for row in rows(result)]


def rows_of(layouts: Layouts) -> list[dict[str, int]]:
    return [layouts.row(index) for index in range(len(layouts))]


def preferred(result: SearchResult, of: TrainingJob = LLAMA) -> np.ndarray:
    return preferred_s(of, result.layouts, result.seconds, result.memories.device_bytes())


def test_the_ten_best_are_the_ten_best_of_all() -> None:
    of = memory_of("4x A100-SXM-80GB", 8)
    everything, best = (searched(of, batch=8, keep=keep) for keep in (10**6, 10))
    of_all, of_ten = (preferred(found, of)[found.families[:10]].tolist() for found in (everything, best))
    assert of_all == of_ten


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return searched(LLAMA)


def test_the_layouts_are_sorted_by_preference(result: SearchResult) -> None:
    assert (np.diff(preferred(result)) >= 0).all()


def test_the_first_layout_is_the_first_of_its_family_and_families_differ_by_more_than_chunks(
    result: SearchResult,
) -> None:
    schedule = ("interleave", "zero_bubble", "sequence_parallel", "accum", "dp")
    named = [{name: value for name, value in row.items() if name not in schedule} for row in rows(result)]
    listed = [named[index] for index in result.families]
    assert result.families[0] == 0
    assert all(listed.count(row) == 1 for row in listed)


def test_a_plain_layout_is_preferred_to_one_that_is_one_per_cent_faster() -> None:
    plain, exotic = Layouts.of(global_batch=64, dp=4, tp=8), Layouts.of(global_batch=64, dp=2, tp=2, pp=8)
    both, used = Layouts.concatenate([plain, exotic]), np.zeros(2)
    near, far = (preferred_s(LLAMA, both, np.array([1.0, 1.0 - saved]), used) for saved in (0.01, 0.10))
    assert (near.argmin(), far.argmin()) == (0, 1)


def test_a_layout_with_room_in_memory_is_preferred_to_a_tight_one() -> None:
    both = Layouts.concatenate([Layouts.of(global_batch=64, dp=32)] * 2)
    used = np.array([0.5, 0.99]) * limit_bytes(LLAMA)
    assert preferred_s(LLAMA, both, np.array([1.0, 0.99]), used).argmin() == 0


def test_the_usual_space_has_no_context_parallelism_of_short_sequences_and_tp_within_the_node() -> None:
    layouts = search_layouts(job("llama2-70b", "8 nodes of DGX H100", sequence_length=4096), 512, {}, keep=50).layouts
    assert len(layouts)
    assert (layouts.tp <= 8).all()
    assert (layouts.cp == 1).all()
    assert (layouts.zero_bubble == 0).all()


@pytest.mark.parametrize(
    "fixed", [{"cp": 8}, {"tp": 16}, {"zero_bubble": 1}, {"sequence_parallel": 0, "tp": 2}], ids=str
)
def test_an_unusual_decision_is_searched(fixed: dict[str, int]) -> None:
    layouts = search_layouts(job("llama2-70b", "8 nodes of DGX H100", sequence_length=4096), 512, fixed, keep=5).layouts
    assert len(layouts)
    assert all((getattr(layouts, name) == value).all() for name, value in fixed.items())


def test_an_unusual_layout_is_searched_where_no_usual_one_fits() -> None:
    of = job("llama3.1-405b", "2 nodes of DGX H100", sequence_length=4096)
    usual = search(Space(of, 16, 16, {"offload": 0, "offload_optimizer": 0}, usual=True))
    assert usual.fitting == 0
    assert search_layouts(of, 16, {}, keep=1).evaluated > usual.evaluated


def test_every_layout_multiplies_to_the_world_size(result: SearchResult) -> None:
    assert (result.layouts.world_size == 32).all()


def test_every_layout_divides_the_batch(result: SearchResult) -> None:
    layouts = result.layouts
    assert (layouts.dp * layouts.micro_batch * layouts.accum == BATCH).all()
    assert (layouts.accum % 1 == 0).all()


def test_every_layout_fits(result: SearchResult) -> None:
    assert fits(result.memories, LLAMA).all()


def test_every_layout_is_legal(result: SearchResult) -> None:
    legal = {tuple(sorted(row.items())) for row in every_layout(LLAMA.shape, 4096, 32, BATCH)}
    assert {tuple(sorted(row.items())) for row in of_all_layers(result)} <= legal


def test_the_times_are_those_of_the_layouts(result: SearchResult) -> None:
    assert (result.seconds == LLAMA.step_times(result.layouts).total_s).all()


def test_every_layout_that_was_priced_fits_or_is_counted_as_rejected(result: SearchResult) -> None:
    rejected = sum(rejection.count for rejection in result.rejections if rejection.unit == "layouts")
    assert result.fitting + rejected == result.evaluated


def test_a_rejection_names_the_layout_that_came_nearest(result: SearchResult) -> None:
    assert all(rejection.count > 0 and rejection.nearest for rejection in result.rejections)


def test_the_front_is_not_dominated(result: SearchResult) -> None:
    seconds, used = result.seconds, result.memories.device_bytes()
    for index in result.front:
        assert not ((seconds <= seconds[index]) & (used < used[index])).any()
        assert not ((seconds < seconds[index]) & (used <= used[index])).any()


def test_the_fastest_layout_is_on_the_front(result: SearchResult) -> None:
    assert result.seconds[result.front[0]] == result.seconds.min()


@pytest.mark.parametrize(
    "fixed",
    [
        {"tp": 4, "pp": 2},
        {"dp": 8, "zero": 3},
        {"micro_batch": 2},
        {"interleave": 2},
        {"zero_bubble": 1},
        {"recompute": int(Recompute.FULL)},
        {"offload": 1, "offload_optimizer": 1},
        {"cp": 2, "sequence_parallel": 0},
        {"zero": 1, "dp_shard": 16},
        {"zero": 2, "pp": 2},
    ],
    ids=str,
)
def test_what_is_decided_is_kept(fixed: dict[str, int]) -> None:
    found = searched(LLAMA, **fixed)
    assert found.fitting
    assert all((getattr(found.layouts, name) == value).all() for name, value in fixed.items())


@pytest.mark.parametrize(
    ("program", "year", "most"),
    [
        ("Megatron-LM", 2021, {"zero": 0, "sequence_parallel": 0}),
        ("Megatron-LM", 2022, {"zero": 3, "sequence_parallel": 1, "interleave": 8}),
        ("Megatron-DeepSpeed", 2026, {"zero": 1, "sequence_parallel": 0, "interleave": 1}),
    ],
)
def test_a_program_is_planned_with_what_it_has(program: str, year: int, most: dict[str, int]) -> None:
    of = job(software=Software.of(program, year=year))
    layouts = Layouts.concatenate([*Space(of, 32, BATCH, {"tp": 2, "pp": 4}).layouts(lambda *_: None)])
    assert {name: int(getattr(layouts, name).max()) for name in most} == most


@pytest.mark.parametrize(
    ("program", "year", "saves"),
    [("Megatron-LM", 2026, False), ("torchtitan", 2025, True), ("MaxText", 2025, True), ("PyTorch FSDP", 2021, False)],
)
def test_selective_recomputation_is_searched_where_it_saves_memory(program: str, year: int, saves: bool) -> None:
    assert (Recompute.SELECTIVE in recomputations(job(software=Software.of(program, year=year)))) is saves


def test_a_decided_layout_is_priced_alone(result: SearchResult) -> None:
    row = {name: value for name, value in result.layouts.row(0).items() if name != "accum"}
    one = searched(LLAMA, **row)
    assert (one.evaluated, one.fitting) == (1, 1)
    assert one.seconds[0] == result.seconds[0]


def test_deciding_something_is_never_better(result: SearchResult) -> None:
    for fixed in ({"tp": 8}, {"zero": 0}, {"micro_batch": 1}):
        assert preferred(searched(LLAMA, **fixed))[0] >= preferred(result)[0]


def test_no_more_layers_recompute_than_memory_asks_for() -> None:
    limit = TIGHT_SHARE * limit_bytes(DEEP)
    layouts = searched(DEEP, batch=128, tp=8, pp=4).layouts
    some = layouts.take(layouts.recompute_layers > 0)
    assert len(some)
    assert (DEEP.memories(some).device_bytes() <= limit).all()
    fewer = some.take(some.recompute_layers > 1)
    assert (DEEP.memories(replace(fewer, recompute_layers=fewer.recompute_layers - 1)).device_bytes() > limit).all()


def test_a_recomputation_that_is_written_is_that_of_all_layers() -> None:
    written = searched(DEEP, batch=128, tp=8, pp=4, recompute=int(Recompute.FULL)).layouts
    assert not written.recompute_layers.any()


def test_layers_that_are_written_recompute() -> None:
    written = searched(DEEP, batch=128, tp=8, pp=4, recompute_layers=5).layouts
    assert len(written)
    assert (written.recompute_layers == 5).all()
    assert (written.recompute != Recompute.NONE).all()


def test_megatron_counts_layers_that_recompute_by_chunk() -> None:
    named = replace(DEEP, software=Software.of("Megatron-LM 2024"))
    layouts = searched(named, batch=128, tp=8, pp=4).layouts
    some = layouts.take(layouts.recompute_layers > 0)
    assert len(some)
    assert not (some.recompute_layers % some.interleave).any()


def test_a_model_that_is_too_large_has_no_layout_and_reasons() -> None:
    found = searched(job("llama3.1-405b", "2x A100-SXM-80GB"))
    assert (found.fitting, len(found.layouts), len(found.front)) == (0, 0, 0)
    assert sum(rejection.count for rejection in found.rejections) >= found.evaluated > 0


@pytest.mark.parametrize(
    ("changes", "batch", "fixed", "reason"),
    [
        ({}, 64, {"tp": 32, "pp": 1}, None),
        ({"model": "gpt2"}, 64, {"tp": 32}, "tp does not divide 12 heads and 3072 columns of the MLP"),
        ({"model": "gpt2"}, 64, {"pp": 32}, "more stages than the 12 layers"),
        ({"sequence_length": 1001}, 64, {"cp": 2}, "2 * cp does not divide 1001 tokens"),
        ({}, 33, {"dp": 32}, "dp does not divide 33 sequences"),
    ],
)
def test_a_mesh_that_cannot_run_is_counted_with_its_reason(
    changes: dict[str, Any], batch: int, fixed: dict[str, int], reason: str | None
) -> None:
    found = searched(job(**changes), batch=batch, **fixed)
    assert {rejection.reason for rejection in found.rejections if rejection.unit == "meshes"} == ({reason} - {None})


def test_more_memory_never_hurts() -> None:
    of = [memory_of("4x A100-SXM-80GB", gibibytes) for gibibytes in (5, 6, 8, 80)]
    found = [searched(one, batch=16) for one in of]
    best = [float(result.seconds.min()) for result in found]
    assert best == sorted(best, reverse=True)
    assert [result.fitting for result in found] == sorted(result.fitting for result in found)


def test_experts_are_spread_over_ranks_that_divide_them() -> None:
    found = searched(job("qwen3-30b-a3b", "2 nodes of DGX H100"), keep=500)
    layouts = found.layouts
    assert (layouts.ep > 1).any()
    assert (128 % layouts.ep == 0).all()
    assert ((layouts.dp * layouts.cp * layouts.tp) % layouts.ep == 0).all()


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=30))
def test_the_front_of_points_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    seconds, used = np.array(points, dtype=float).T
    front = {points[index] for index in pareto_front(seconds, used)}
    beaten = {
        (s, u) for s, u in points if any(a <= s and b <= u and (a, b) != (s, u) for a, b in points)
    }  # fmt: skip
    assert front == set(points) - beaten


def test_the_front_of_nothing_is_empty() -> None:
    assert len(pareto_front(np.zeros(0), np.zeros(0))) == 0


def test_a_search_of_too_many_layouts_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space_module, "MAX_LAYOUTS", 100)
    with pytest.raises(UsageError, match="have more than 100 layouts") as raised:
        searched(LLAMA)
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("fix a degree")
    assert searched(LLAMA, tp=8, pp=1, cp=1, zero=1, micro_batch=1).evaluated


def test_the_meshes_of_a_million_nodes_are_few() -> None:
    rejected: list[str] = []
    space = Space(job("llama3.1-405b", "1048576 nodes of DGX H100"), 2**23, 2**23, {})
    found = list(space.meshes(lambda reason, _: rejected.append(reason)))
    assert len(found) + len(rejected) < 10_000
