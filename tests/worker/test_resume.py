"""A run that was killed and resumed is bit-identical to one that never was."""

from __future__ import annotations

import random
import signal

import pytest

from tests.lanes import amount
from tests.worker.harness import events
from trainworks.record.manifest import complete_checkpoints

DROPOUT = {"workload__model": {"architecture": "gpt2", "layers": 2, "hidden": 32, "heads": 4, "dropout": 0.1}}


GROUPS = {
    "lr": 3e-3,
    "warmup": "4 steps",
    "groups": [{"parameters": "*embed*", "lr": 1e-3}, {"parameters": "*norm*", "weight_decay": 0.2}],
}
AT_NIGHT = pytest.mark.lane("nightly")
"""Of states whose parts another case has: shards, fp32 weights beside those of 16 bits, several micro-batches."""
MUON = {"name": "muon", "lr": 3e-3, "warmup": "4 steps"}


@pytest.mark.parametrize("step", [1, *random.Random(7).sample(range(2, 24), amount(test=1, test_all=1, nightly=22))])
def test_a_run_killed_at_any_step_resumes_bit_identically(new_run, undisturbed, step):
    run = new_run()
    run.train(until=run.step_is_recorded(step))
    assert run.train() == [0, 0]
    assert run.curve() == undisturbed().curve()


def test_a_run_killed_while_it_writes_a_checkpoint_resumes_bit_identically(new_run, undisturbed):
    run = new_run()
    run.train(until=run.checkpoint_is_being_written(16))
    assert run.train() == [0, 0]
    assert run.curve() == undisturbed().curve()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(DROPOUT, id="dropout"),
        pytest.param(DROPOUT | {"layout": {"dp_shard": 2, "recompute": "selective"}}, id="dropout-recompute"),
        pytest.param(DROPOUT | {"layout": {"tp": 2}}, id="dropout-sequence-parallel"),
        pytest.param({"layout": {"dp_shard": 2}}, id="shards", marks=AT_NIGHT),
        pytest.param({"workload__optimizer": GROUPS, "layout": {"dp_shard": 2}}, id="groups-shards"),
        pytest.param({"workload__optimizer": MUON, "layout": {"dp_shard": 2}}, id="muon-shards"),
        pytest.param({"workload__precision": "bf16"}, id="bf16", marks=AT_NIGHT),
        pytest.param({"workload__precision": "fp16"}, id="fp16-loss-scaling"),
        pytest.param({"layout": {"dp_replicate": 2, "micro_batch": 2}}, id="accumulation", marks=AT_NIGHT),
        pytest.param({"cluster__processes_per_node": 3, "workload__global_batch": 9}, id="three-ranks"),
        pytest.param({"cluster__processes_per_node": 1}, id="one-rank"),
    ],
)
def test_every_kind_of_state_is_restored(new_run, undisturbed, changes):
    run = new_run(**changes)
    run.train(until=run.a_checkpoint_is_complete, before=24)
    assert run.train() == [0] * run.world_size
    assert events(run, "attempt")[-1]["resumed_from_step"] in (8, 16)
    assert run.curve() == undisturbed(**changes).curve()


def test_a_stopped_run_has_a_checkpoint_of_its_last_step(new_run, undisturbed):
    run = new_run()
    assert run.train(until=run.step_is_recorded(3), kill=signal.SIGTERM, before=16) == [0, 0]
    stopped_at = events(run, "stopped")[0]["step"]
    assert complete_checkpoints(run.run_dir)[-1][0].step == stopped_at
    assert run.train() == [0, 0]
    assert run.curve() == undisturbed().curve()


def test_a_stop_file_stops_all_ranks_at_the_same_step(new_run):
    run = new_run()
    run.run_dir.stop_file.touch()
    assert run.train() == [0, 0]
    assert [event["step"] for event in events(run, "stopped")] == [1]


def test_only_the_newest_checkpoints_are_kept(new_run):
    run = new_run(checkpoint={"every": "4 steps", "keep": 2})
    run.train()
    assert [step for step, _ in run.run_dir.checkpoint_folders()] == [20, 24]


@pytest.mark.parametrize(
    ("changes", "file"),
    [
        pytest.param({}, "metadata.json", id="replicas-metadata"),
        pytest.param({"layout": {"dp_shard": 2}}, "rank-1.safetensors", id="shards-rank-1"),
        pytest.param({}, "rank-1.safetensors", id="replicas-rank-1", marks=AT_NIGHT),
        pytest.param({"layout": {"dp_shard": 2}}, "metadata.json", id="shards-metadata", marks=AT_NIGHT),
    ],
)
def test_a_run_whose_newest_checkpoint_is_damaged_goes_on_bit_identically_from_the_one_before(
    new_run, undisturbed, changes, file
):
    run = new_run(**changes)
    run.train(until=lambda: len(complete_checkpoints(run.run_dir)) == 2)
    (_, older), (_, newest) = complete_checkpoints(run.run_dir)[-2:]
    content = bytearray((newest / file).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / file).write_bytes(content)
    assert run.train() == [0, 0]
    assert events(run, "attempt")[-1]["resumed_from_step"] == int(older.name.removeprefix("step-"))
    assert run.curve() == undisturbed(**changes).curve()


def test_a_run_without_a_checkpoint_that_can_be_loaded_ends_with_one_clear_error(new_run):
    run = new_run()
    run.train(until=run.a_checkpoint_is_complete, before=16)
    for _, folder in complete_checkpoints(run.run_dir):
        (folder / "metadata.json").unlink()
    assert run.train() == [3, 3]
    failure = events(run, "failure")[-1]
    assert failure["message"].endswith(": metadata.json: missing")
    assert "no checkpoint can be loaded: step 8" in failure["message"]
    assert "start a new run" in failure["hint"]


def test_a_checkpoint_of_other_data_is_refused(new_run, corpus, tmp_path):
    from tests.worker.harness import make_run, write_corpus

    run = new_run()
    run.train(until=run.a_checkpoint_is_complete)
    other = make_run(tmp_path / "other", write_corpus(tmp_path / "text", words=20_000), tmp_path / "cache")
    run.data = other.data
    assert run.train() == [3, 3]
    assert "the data changed" in events(run, "failure")[-1]["message"]
