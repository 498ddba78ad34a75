"""What is said of a layout: names that can be read, figures that add up, and doubts that widen the interval."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.jobs import A100S, BATCH, JOBS, job, layouts, random_layouts
from trainworks.config.layout import ResolvedLayout
from trainworks.plan.cluster.plan import above_published, extrapolation, outside_measured
from trainworks.plan.degrees import fixed_of, planned_layout, written_layout
from trainworks.plan.flops import model_flops_per_token
from trainworks.plan.layouts import Layouts
from trainworks.plan.memory import predict_memories
from trainworks.plan.prediction import Prediction, predictions
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.uncertainty import Belief, Observation, believe, parts_s, prior_of

MANY = random_layouts(60, seed=4)


def predicted(of: TrainingJob, some: Any = None, *, belief: Belief | None = None, **degrees: Any) -> list[Prediction]:
    chosen = layouts(**degrees) if some is None else some
    memories = predict_memories(
        of.shape, chosen, sequence_length=of.sequence_length, precision=of.precision, software=of.software
    )
    return predictions(of, chosen, memories, global_batch=BATCH, belief=belief or Belief.of(prior_of(of)))


def width(prediction: Prediction) -> float:
    return prediction.high_s / prediction.low_s


@pytest.mark.parametrize("name", JOBS)
def test_the_terms_add_up_to_the_step(name: str) -> None:
    for prediction in predicted(JOBS[name], MANY):
        assert sum(prediction.terms_s.values()) == pytest.approx(prediction.step_time_s)


@pytest.mark.parametrize("name", JOBS)
def test_the_memory_adds_up_to_what_is_allocated(name: str) -> None:
    for prediction in predicted(JOBS[name], MANY):
        memory = prediction.memory
        parts = (memory.weights_bytes, memory.gradients_bytes, memory.optimizer_bytes, memory.activations_bytes)
        assert memory.allocated_bytes == sum(parts) + memory.logits_bytes + memory.working_bytes
        assert memory.allocated_bytes <= memory.reserved_bytes < memory.total_bytes


@pytest.mark.parametrize("name", JOBS)
def test_mfu_is_the_model_s_flops_over_the_data_sheet_s(name: str) -> None:
    of = JOBS[name]
    flops = BATCH * of.sequence_length * model_flops_per_token(of.shape, of.sequence_length)
    peak = of.cluster.accelerator.peak_flops_per_s[of.precision]  # type: ignore[index]
    for index, prediction in enumerate(predicted(of, MANY)):
        world = float(MANY.world_size[index])
        assert prediction.mfu == pytest.approx(flops / (prediction.step_time_s * world * peak))
        assert prediction.tokens_per_s == pytest.approx(BATCH * of.sequence_length / prediction.step_time_s)


def test_every_layout_is_said_in_its_order() -> None:
    assert [prediction.layout for prediction in predicted(job(), MANY)] == [planned_layout(MANY, i) for i in range(60)]


def test_what_was_learned_moves_the_step_time_and_its_terms_still_add_up() -> None:
    of, some = job(), layouts()
    measured = Observation(parts_s(of, some)[:, 0], 1.2 * float(of.step_times(some).total_s[0]), of.software)
    belief = believe([measured] * 3, software=of.software)
    (blind,), (taught,) = predicted(of, some), predicted(replace(of, slowdowns=belief.slowdowns), some, belief=belief)
    assert sum(taught.terms_s.values()) == pytest.approx(taught.step_time_s)
    assert taught.step_time_s > blind.step_time_s
    assert width(taught) < width(blind)


@given(st.integers(0, 59))
def test_the_degrees_of_a_layout_multiply_to_its_world_size(index: int) -> None:
    layout = planned_layout(MANY, index)
    product = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp * layout.pp
    assert product == MANY.world_size[index]


def test_what_is_not_shared_is_replicated() -> None:
    layout = planned_layout(layouts(dp=8), 0)
    assert (layout.dp_replicate, layout.dp_shard, layout.zero) == (8, 1, 0)


def test_shards_and_replicas_are_told_apart() -> None:
    layout = planned_layout(layouts(dp=8, dp_shard=2, zero=3), 0)
    assert (layout.dp_replicate, layout.dp_shard, layout.zero) == (4, 2, 3)


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ({"micro_batch": 1}, "micro-batch 1"),
        ({"dp_replicate": 4, "micro_batch": 2}, "dp_replicate 4, micro-batch 2"),
        ({"dp_shard": 8, "zero": 3, "micro_batch": 1}, "dp_shard 8, zero 3, micro-batch 1"),
        (
            {"tp": 8, "sequence_parallel": True, "cp": 2, "micro_batch": 1},
            "zero 3, cp 2, tp 8, sequence-parallel, micro-batch 1",
        ),
        ({"pp": 4, "interleave": 1, "micro_batch": 1}, "pp 4, micro-batch 1"),
        ({"pp": 4, "interleave": 2, "micro_batch": 1}, "pp 4, interleave 2, micro-batch 1"),
        ({"pp": 4, "zero_bubble": True, "micro_batch": 1}, "pp 4, zero bubble, micro-batch 1"),
        ({"micro_batch": 1, "recompute": "full"}, "micro-batch 1, recompute full"),
        ({"micro_batch": 1, "recompute": "none"}, "micro-batch 1"),
        (
            {"micro_batch": 1, "offload_activations": True, "offload_optimizer": True},
            "micro-batch 1, offload activations, offload optimizer",
        ),
    ],
)
def test_a_layout_is_described_without_what_is_off(written: dict[str, Any], text: str) -> None:
    degrees = {"dp_replicate": 1, "dp_shard": 1, "cp": 1, "tp": 1, "pp": 1, "ep": 1, "grad_accum_steps": 1}
    assert ResolvedLayout.model_validate(degrees | written).describe() == text


def test_layouts_that_differ_are_described_differently() -> None:
    of = [planned_layout(MANY, index) for index in range(60)]
    assert len({layout.describe() for layout in of}) == len(set(of))


@pytest.mark.parametrize(
    ("of", "world", "doubt"),
    [
        (job(cluster="8x MI355X"), 8, "no run on MI355X-288GB was ever compared"),
        (job(), 16384, "16384 accelerators are more than the"),
        (job(sequence_length=2**20), 8, "1048576 tokens are more than the"),
        (job("bert-large", sequence_length=512), 8, "no encoder was ever compared"),
    ],
    ids=["accelerator", "world", "length", "encoder"],
)
def test_what_is_unlike_every_measured_run_is_named(of: TrainingJob, world: int, doubt: str) -> None:
    assert [found.startswith(doubt) for found in outside_measured(of, world)] == [True]


@pytest.mark.parametrize("cluster", [A100S, "8x H100-SXM", "8x V100-SXM-32GB", "8x B200", "8x MI300X"])
def test_what_is_like_measured_runs_is_not_doubted(cluster: str) -> None:
    assert outside_measured(job(cluster=cluster), 8) == []


def test_a_part_that_was_never_compared_widens_the_interval() -> None:
    known, unknown = (predicted(job(cluster=text))[0] for text in ("8x H100-SXM", "8x MI355X"))
    assert width(unknown) > 1.1 * width(known)


def test_the_interval_widens_smoothly_with_the_distance_from_what_was_compared() -> None:
    lengths = [2**17, 2**17 + 2**10, 2**18, 2**20]
    widths = [width(predicted(job(cluster="8x MI355X", sequence_length=length))[0]) for length in lengths]
    assert widths == sorted(widths)
    assert widths[1] < 1.02 * widths[0]
    assert widths[3] > 1.05 * widths[0]


def test_eight_bits_many_accelerators_and_a_bus_widen_the_interval() -> None:
    usual = prior_of(job(cluster="8x H100-SXM")).software
    unlike = [replace(job(cluster="8x H100-SXM"), precision="fp8"), job(cluster="128 nodes of DGX H100")]
    unlike.append(job(cluster="8x H100-PCIe"))
    assert all(prior_of(of).software > usual for of in unlike)


def test_the_interval_widens_smoothly_with_the_number_of_accelerators() -> None:
    widths = [prior_of(job(cluster=f"{nodes} nodes of DGX H100")).software for nodes in (32, 33, 48, 64, 128)]
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(widths[1], rel=0.1)


def test_layouts_that_a_search_chose_among_are_slower_than_predicted_alone() -> None:
    of, some = job(), MANY.take(slice(0, 10))
    memories = predict_memories(
        of.shape, some, sequence_length=of.sequence_length, precision=of.precision, software=of.software
    )
    belief, at = Belief.of(prior_of(of)), np.arange(10)
    alone = predictions(of, some, memories, global_batch=BATCH, belief=belief)
    chosen = predictions(of, some, memories, global_batch=BATCH, belief=belief, families=at)
    for one, other in zip(alone, chosen, strict=True):
        assert one.terms_s["selection"] == 0 < other.terms_s["selection"]
        assert sum(other.terms_s.values()) == pytest.approx(other.step_time_s)
        assert width(one) == pytest.approx(width(other))
        assert one.high_s < other.high_s


@pytest.mark.parametrize(("mfu", "is_above"), [(0.5, False), (0.6, True)])
def test_a_plan_above_the_best_published_run_of_its_kind_names_it(mfu: float, is_above: bool) -> None:
    note = above_published(job(cluster="256 nodes of DGX H100"), mfu)
    assert (note is not None) == is_above
    assert note is None or "Llama2-70B on 1024 H100-SXM-80GB" in note or "on 2048 H100-SXM-80GB" in note


def test_no_run_is_named_where_none_is_comparable() -> None:
    assert above_published(job(cluster="8x MI355X"), 0.99) is None
    assert above_published(job(cluster="256 nodes of DGX H100", sequence_length=2**17), 0.99) is None


def written_again(some: Layouts) -> Layouts:
    """Each layout written as a run file has it, and read."""
    rows = [fixed_of(written_layout(planned_layout(some, index))) for index in range(len(some))]
    return Layouts.concatenate([layouts(**row) for row in rows])


def test_a_layout_that_is_written_and_read_is_the_same() -> None:
    legal = MANY.take((MANY.zero == 0) | (MANY.dp_shard > 1))
    again = written_again(legal)
    assert all((getattr(again, field.name) == getattr(legal, field.name)).all() for field in fields(legal))


@pytest.mark.parametrize("zero", [1, 3])
def test_sharing_over_cp_alone_survives_writing_and_reading(zero: int) -> None:
    shared = layouts(cp=2, zero=zero)
    assert fixed_of(written_layout(planned_layout(shared, 0)))["zero"] == zero


def test_a_cluster_far_above_every_compared_run_is_called_an_extrapolation() -> None:
    assert extrapolation(61_440) is None
    assert (extrapolation(8_388_608) or "").startswith("8,388,608 accelerators are 1,365 times the 6,144 of")
