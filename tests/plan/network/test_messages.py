"""The messages of a job's layout."""

from __future__ import annotations

from tests.plan.jobs import JOBS, layouts
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.memory import predict_memories
from trainworks.plan.network.traffic import Message, messages_of_job, usual_messages
from trainworks.plan.prediction import predictions


def messages(name: str, **degrees: int) -> dict[str, Message]:
    job, wanted = JOBS[name], layouts(**degrees)
    memories = predict_memories(
        job.shape, wanted, sequence_length=job.sequence_length, precision=job.precision, software=job.software
    )
    planned = predictions(job, wanted, memories, global_batch=256, belief=belief_from([], job))
    return {message.name: message for message in messages_of_job(job, planned[0])}


def test_plain_data_parallelism_reduces_a_gradient_of_each_parameter() -> None:
    message = messages("dense", dp=32)["gradient all-reduce"]
    parameters = JOBS["dense"].shape.num_parameters
    assert message.ranks == 32
    assert 0.99 < message.size_bytes / (JOBS["dense"].software.gradient_bytes * parameters) < 1.01


def test_sharding_does_not_change_what_is_reduced() -> None:
    plain, sharded = messages("dense", dp=32), messages("dense", dp=32, dp_shard=32, zero=2)
    assert abs(sharded["gradient all-reduce"].size_bytes / plain["gradient all-reduce"].size_bytes - 1) < 1e-6


def test_tensor_parallel_ranks_lie_between_those_that_reduce() -> None:
    message = messages("dense", dp=4, tp=8)["gradient all-reduce"]
    assert (message.ranks, message.stride) == (4, 8)


def test_a_single_copy_of_the_model_reduces_nothing() -> None:
    assert messages("dense", tp=8, pp=4) == {}


def test_experts_get_their_tokens() -> None:
    job, message = JOBS["experts"], messages("experts", dp=128, ep=16, micro_batch=2)["expert all-to-all"]
    assert message.ranks == 16
    assert message.size_bytes == 2 * 2 * job.sequence_length * job.shape.hidden * job.shape.experts_per_token


def test_a_dense_model_sends_no_tokens() -> None:
    assert set(messages("dense", dp=32)) == {"gradient all-reduce"}


def test_usual_messages_are_of_all_accelerators() -> None:
    found = usual_messages(JOBS["dense"].cluster)
    assert [message.ranks for message in found] == [32] * 6
    assert [message.size_bytes for message in found[:3]] == [1e6, 64e6, 1e9]
