"""The plan of preference tuning: pairs are two sequences, and a frozen reference reads them first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plan.run.test_adapters import SHAPE, job, of
from trainworks.errors import LayoutError
from trainworks.plan.run.pricing import RunJob, count_in_sequences
from trainworks.plan.run.steps import num_steps, sequences_in
from trainworks.plan.run.trainable import check_trainable

PAIRS = {"source": "pairs.jsonl", "sequence_length": 64, "chat": {"pairs": True}}


def preference(lora: dict[str, Any] | None = None, **changes: Any) -> RunJob:
    return job(lora, **({"preference": {}, "data": PAIRS} | changes))


def test_a_frozen_copy_takes_the_memory_of_its_weights():
    layouts = of(dp_shard=2)[1]
    plain, pairs = job(None).memories(layouts).terms(), preference().memories(layouts).terms()
    assert pairs.weights_bytes - plain.weights_bytes == 4 * SHAPE.num_parameters / 2
    assert pairs.optimizer_bytes == plain.optimizer_bytes


def test_the_copy_is_in_16_bits_with_bf16():
    layouts = of(dp_replicate=2)[1]
    plain, pairs = (
        one.memories(layouts).terms() for one in (job(None, precision="bf16"), preference(precision="bf16"))
    )
    assert pairs.weights_bytes - plain.weights_bytes == 2 * SHAPE.num_parameters


def test_an_adapter_is_its_own_reference():
    layouts = of(dp_replicate=2)[1]
    assert (
        preference({"rank": 4}).memories(layouts).terms().weights_bytes
        == job({"rank": 4}).memories(layouts).terms().weights_bytes
    )


def test_a_pair_has_the_activations_of_two_sequences():
    one, two = of(dp_replicate=2)[1], of(dp_replicate=2)[1]
    assert preference().memories(one).activations_bytes[0] == 2 * job(None).memories(two).activations_bytes[0]


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_step_is_that_of_two_sequences_and_a_forward_of_the_reference(lora):
    layouts, workload = of(dp_replicate=2)[1], preference(lora).workload
    plain, pairs = job(lora).step_times(count_in_sequences(layouts, workload)), preference(lora).step_times(layouts)
    assert pairs.backward_s == plain.backward_s
    assert pairs.forward_s == 2 * plain.forward_s
    assert plain.total_s < pairs.total_s < 2 * plain.total_s


def test_the_reference_adds_a_third_of_the_flops():
    assert preference().flops_per_token == pytest.approx(job(None).flops_per_token * 4 / 3)


def test_steps_count_the_tokens_of_both_answers():
    workload = preference(train_for="10240 tokens").workload
    assert num_steps(workload, tokens_in_data=None) == 10240 // (8 * 2 * 64)
    assert sequences_in(workload.data, 20 * 2 * 65) == 20


def test_ranks_of_tp_share_the_reference():
    layout, layouts = of(tp=2)
    check_trainable(layout, preference().workload, SHAPE)
    plain, pairs = job(None).memories(layouts).terms(), preference().memories(layouts).terms()
    assert pairs.weights_bytes - plain.weights_bytes == 4 * SHAPE.num_parameters / 2


@pytest.mark.parametrize(
    ("lora", "cut", "message"),
    [
        (None, {"pp": 2}, r"a model with a reference .* is not cut over pp"),
        ({"rank": 4}, {"pp": 2}, r"a model with a reference .* is not cut over pp"),
    ],
)
def test_a_reference_is_cut_over_tp_alone(lora, cut, message):
    layout, _ = of(**cut)
    with pytest.raises(LayoutError, match=message):
        check_trainable(layout, preference(lora).workload, SHAPE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hf": "base"}}, "a checkpoint, the reference"),
        ({"data": PAIRS | {"chat": True}}, "`preference` trains on pairs of answers"),
        ({"preference": None}, "`data.chat.pairs` is for `preference`"),
        ({"data": PAIRS | {"pack": True}}, "`pack` does not support `chat.pairs`"),
        ({"precision": "fp8"}, "`preference` does not support `precision: fp8`"),
    ],
)
def test_what_preferences_cannot_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        preference(**changes)
