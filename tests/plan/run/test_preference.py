"""The plan of preference tuning: pairs are two sequences, and a frozen reference reads them first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.plan.run.test_adapters import SHAPE, job, of
from trainworks.errors import LayoutError
from trainworks.plan.parameters import reward_shape
from trainworks.plan.run.pricing import RunJob, count_in_sequences
from trainworks.plan.run.steps import num_steps, sequences_in
from trainworks.plan.run.trainable import check_trainable, trainable

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
        (None, {"pp": 2}, r"a model that trains on preferences .* is not cut over pp"),
        ({"rank": 4}, {"pp": 2}, r"a model that trains on preferences .* is not cut over pp"),
    ],
)
def test_a_reference_is_cut_over_tp_alone(lora, cut, message):
    layout, _ = of(**cut)
    with pytest.raises(LayoutError, match=message):
        check_trainable(layout, preference(lora).workload, SHAPE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"hf": "base"}}, "`preference` needs `task: causal-lm` and a checkpoint"),
        ({"data": PAIRS | {"chat": True}}, "`preference` trains on pairs of answers"),
        ({"preference": None}, "`data.chat.pairs` is for `preference`"),
        ({"data": PAIRS | {"pack": True}}, "`pack` does not support `chat.pairs`"),
        ({"precision": "fp8"}, "`preference` does not support `precision: fp8`"),
    ],
)
def test_what_preferences_cannot_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        preference(**changes)


ANSWERS = {"source": "answers.jsonl", "sequence_length": 64, "chat": {"labels": True}}


def kto(lora: dict[str, Any] | None = None, **changes: Any) -> RunJob:
    return preference(lora, **({"preference": {"method": "kto"}, "data": ANSWERS} | changes))


def reward(lora: dict[str, Any] | None = None) -> RunJob:
    planned = preference(lora, preference={"method": "reward"})
    return replace(planned, shape=reward_shape(planned.shape))


def test_answers_alone_are_one_sequence_with_a_frozen_copy():
    layouts = of(dp_shard=2)[1]
    plain, answers = job(None).memories(layouts).terms(), kto().memories(layouts).terms()
    assert answers.weights_bytes - plain.weights_bytes == 4 * SHAPE.num_parameters / 2
    assert answers.activations_bytes == plain.activations_bytes


def test_a_step_of_kto_has_three_forwards_more():
    """Of the model on other answers, and of the reference on both."""
    layouts = of(dp_replicate=2)[1]
    plain, answers = job(None).step_times(layouts), kto().step_times(layouts)
    assert answers.backward_s == plain.backward_s
    assert answers.forward_s == 4 * plain.forward_s
    assert kto().flops_per_token == pytest.approx(2 * job(None).flops_per_token)


def test_steps_count_the_tokens_of_an_answer_alone():
    assert num_steps(kto(train_for="10240 tokens").workload, tokens_in_data=None) == 10240 // (8 * 64)
    assert sequences_in(kto().workload.data, 20 * 66) == 20  # each with its label


def test_margins_stand_behind_both_rows_of_a_pair():
    data = preference(preference={"method": "reward"}, data=PAIRS | {"chat": {"pairs": True, "margins": True}}).workload
    assert sequences_in(data.data, 20 * 2 * 66) == 20


def test_kto_needs_two_answers_in_a_micro_batch():
    layout, layouts = of(dp_shard=2)
    with pytest.raises(LayoutError, match="another answer of its micro-batch, and micro_batch is 1"):
        check_trainable(layout, kto().workload, SHAPE)
    check_trainable(layout.model_copy(update={"micro_batch": 2}), kto().workload, SHAPE)
    assert not trainable(layouts, kto().workload, SHAPE).any()


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_reward_model_has_no_reference_no_logits_and_no_output_matrix(lora):
    layouts = of(dp_replicate=2)[1]
    memory, pairs = reward(lora).memories(layouts).terms(), preference(lora).memories(layouts).terms()
    assert memory.logits_bytes == 0
    assert memory.activations_bytes == pairs.activations_bytes
    assert memory.weights_bytes < pairs.weights_bytes
    assert reward(lora).step_times(layouts).head_s == 0
    assert reward(lora).flops_per_token < job(lora).flops_per_token


def test_a_reward_model_has_a_head_of_one_output():
    """As `transformers` counts: without the output matrix, and with one weight per hidden value."""
    output = SHAPE.vocabulary * SHAPE.hidden
    assert reward_shape(SHAPE).num_parameters == SHAPE.num_parameters - output + SHAPE.hidden


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"preference": {"method": "kto"}}, "KTO trains on single answers with labels"),
        ({"data": ANSWERS}, "`preference` trains on pairs of answers"),
        ({"preference": None, "data": ANSWERS}, "`data.chat.labels` is for `preference`"),
        ({"data": PAIRS | {"chat": {"pairs": True, "labels": True}}}, "`labels` are of single answers"),
        ({"data": PAIRS | {"chat": {"margins": True}}}, "`margins` are those of pairs"),
        ({"data": PAIRS | {"chat": {"pairs": True, "margins": True}}}, "`data.chat.margins` are for a reward model"),
        ({"preference": {"desirable_weight": 2.0}}, "`desirable_weight` is for `kto`, not for `method: dpo`"),
        ({"preference": {"method": "reward", "beta": 0.2}}, "`beta` is for `dpo` and `kto`"),
        ({"preference": {"method": "reward"}, "sample_prompt": "a"}, "a reward model does not generate text"),
    ],
)
def test_what_a_method_does_not_have_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        preference(**changes)
