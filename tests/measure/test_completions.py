"""Layouts that are known in part: every completion agrees with what is known, and the best of them fits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import UNFUSED, job, known
from trainworks.measure.completions import best_completion, completions, lacking_bytes
from trainworks.plan.layouts import Layouts, Recompute
from trainworks.plan.memory import predict_memories
from trainworks.plan.parameters import resized
from trainworks.plan.search import limit_bytes
from trainworks.plan.software import Software
from trainworks.plan.space import Fixed
from trainworks.plan.step_time import TrainingJob

LLAMA = job(software=UNFUSED)
"""Of 32 blocks, with the scores of attention to compute again."""
OPEN = {"dp": 4, "dp_shard": 4, "zero": 1, "tp": 2, "pp": 4, "cp": 1, "ep": 1, "sequence_parallel": 1}


def filled(decided: Fixed = OPEN, global_batch: int = 64, of: TrainingJob = LLAMA) -> Layouts:
    return completions(of, decided, global_batch=global_batch)


def device_bytes(of: TrainingJob, layouts: Layouts) -> np.ndarray:
    memories = predict_memories(
        of.shape, layouts, sequence_length=of.sequence_length, precision=of.precision, software=of.software
    )
    return memories.device_bytes()


def test_every_completion_has_the_known_degrees() -> None:
    layouts = filled()
    for name, degree in OPEN.items():
        assert (getattr(layouts, name) == degree).all()


def test_what_is_open_takes_every_value_in_every_combination() -> None:
    layouts = filled()
    options = {(row["micro_batch"], row["recompute"], row["interleave"]) for row in map(layouts.row, range(48))}
    assert options == {(size, kind, v) for size in (1, 2, 4, 8) for kind in Recompute for v in (1, 2, 4, 8)}
    assert len(layouts) == 48


@given(micro_batch=st.sampled_from([1, 2, 4]), recompute=st.sampled_from(Recompute), interleave=st.sampled_from([1, 2]))
def test_what_is_known_is_kept(micro_batch: int, recompute: Recompute, interleave: int) -> None:
    layouts = filled(OPEN | {"micro_batch": micro_batch, "recompute": recompute, "interleave": interleave})
    row = layouts.row(0)
    assert (len(layouts), row["micro_batch"], row["recompute"], row["interleave"]) == (
        1,
        micro_batch,
        recompute,
        interleave,
    )


@given(per_rank=st.integers(1, 64))
def test_micro_batches_divide_what_a_rank_gets(per_rank: int) -> None:
    layouts = filled(global_batch=4 * per_rank)
    assert (per_rank % layouts.micro_batch == 0).all()
    assert (layouts.micro_batch * layouts.accum == per_rank).all()


@pytest.mark.parametrize(("pp", "layers"), [(1, 32), (4, 31)])
def test_blocks_that_cannot_be_cut_stay_one_chunk(pp: int, layers: int) -> None:
    layouts = filled(OPEN | {"pp": pp}, of=job(resized(known("llama2-7b"), layers=layers)))
    assert (layouts.interleave == 1).all()


def test_activations_are_offloaded_only_where_the_host_is_near() -> None:
    assert not filled().offload.any()
    assert filled(of=job(cluster="32x GH200")).offload.any()


@pytest.mark.parametrize(
    ("program", "year", "chunks", "kinds"),
    [
        ("Megatron-LM", 2021, {1, 2, 4, 8}, {Recompute.NONE, Recompute.FULL}),
        ("Megatron-LM", 2022, {1, 2, 4, 8}, set(Recompute)),
        ("Megatron-DeepSpeed", 2022, {1}, {Recompute.NONE, Recompute.FULL}),
    ],
)
def test_what_a_program_cannot_do_completes_no_row(
    program: str, year: int, chunks: set[int], kinds: set[Recompute]
) -> None:
    layouts = filled(of=job(software=Software.of(program, year=year)))
    assert (set(layouts.interleave), set(layouts.recompute)) == (chunks, kinds)


@pytest.mark.parametrize("cluster", ["32x A100-SXM-80GB", "32x A100-SXM-40GB", "32x GH200"])
def test_the_best_completion_is_the_fastest_that_fits(cluster: str) -> None:
    of = job("llama2-13b", cluster)
    chosen, times = best_completion(of, OPEN, global_batch=64)
    everything = filled(of=of)
    fitting = everything.take(device_bytes(of, everything) <= 1.25 * of.cluster.accelerator.memory_bytes)
    assert len(chosen) == 1
    assert times.total_s == pytest.approx(of.step_times(fitting).total_s.min(), rel=1e-12)


@pytest.mark.parametrize("pp", [1, 2, 4])
def test_where_nothing_fits_the_fastest_near_the_smallest_is_taken(pp: int) -> None:
    of, decided = job("llama3.1-405b"), OPEN | {"pp": pp}
    _, times = best_completion(of, decided, global_batch=64)
    everything = filled(decided, of=of)
    used = device_bytes(of, everything)
    assert used.min() > 1.25 * of.cluster.accelerator.memory_bytes
    near = everything.take(used <= 1.25 * used.min())
    assert times.total_s == pytest.approx(of.step_times(near).total_s.min(), rel=1e-12)


def test_a_layout_without_anything_open_is_taken_as_it_is() -> None:
    decided = OPEN | {"micro_batch": 8, "recompute": Recompute.NONE, "interleave": 1}
    chosen, _ = best_completion(job("llama3.1-405b"), decided, global_batch=64)
    assert chosen.row(0) == filled(decided).row(0)


def test_nothing_is_lacking_where_the_smallest_completion_fits() -> None:
    assert lacking_bytes(LLAMA, OPEN, global_batch=64) == 0


def test_what_the_smallest_completion_needs_above_the_limit_is_lacking() -> None:
    large = job("megatron-gpt-1t")
    smallest = device_bytes(large, filled(of=large)).min()
    assert lacking_bytes(large, OPEN, global_batch=64) == pytest.approx(smallest - limit_bytes(large))
