"""Every layout computes what one process computes, and every checkpoint loads under every layout."""

from __future__ import annotations

import pytest

TWO, FOUR, EIGHT = ({"cluster__processes_per_node": ranks} for ranks in (2, 4, 8))
LAYOUTS = {
    "replicas": {"cluster__processes_per_node": 2},
    "shards": {"cluster__processes_per_node": 2, "layout": {"dp_shard": 2}},
    "replicas-of-shards": {"cluster__processes_per_node": 4, "layout": {"dp_replicate": 2, "dp_shard": 2}},
    "accumulation": {"cluster__processes_per_node": 2, "layout": {"dp_replicate": 2, "micro_batch": 1}},
    "shards-and-accumulation": {"cluster__processes_per_node": 2, "layout": {"dp_shard": 2, "micro_batch": 2}},
    "tensor": TWO | {"layout": {"tp": 2}},
    "context": TWO | {"layout": {"cp": 2}},
    "pipeline": TWO | {"layout": {"pp": 2, "micro_batch": 2}},
    "shards-tensor": FOUR | {"layout": {"dp_shard": 2, "tp": 2}},
    "shards-tensor-pipeline": EIGHT | {"layout": {"dp_shard": 2, "tp": 2, "pp": 2, "micro_batch": 1}},
}
ONE = {"cluster__processes_per_node": 1}


def losses(run):
    return [row["loss"] for row in run.rows()]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory, corpus, cache):
    from tests.worker.harness import make_run

    run = make_run(tmp_path_factory.mktemp("one"), corpus, cache, **ONE)
    run.train()
    return losses(run)


def test_the_loss_falls(one_process):
    assert one_process[-1] < one_process[0] - 0.5


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_has_the_loss_curve_of_one_process(new_run, one_process, name):
    run = new_run(**LAYOUTS[name])
    assert run.train() == [0] * run.world_size
    assert losses(run) == pytest.approx(one_process, rel=2e-4)


@pytest.mark.parametrize("before", ["replicas", "context", "shards-tensor-pipeline"])
@pytest.mark.parametrize("after", ["one", "replicas-of-shards", "tensor", "pipeline"])
def test_a_checkpoint_of_one_layout_goes_on_under_another(new_run, one_process, before, after):
    first = new_run(**LAYOUTS[before])
    first.train(until=first.a_checkpoint_is_complete)
    second = new_run(**({"one": ONE} | LAYOUTS)[after])
    second.run_dir.checkpoints.rmdir()
    first.run_dir.checkpoints.rename(second.run_dir.checkpoints)
    assert second.train() == [0] * second.world_size
    assert second.rows()[0]["step"] in (9, 17)
    assert losses(second) == pytest.approx(one_process[-len(losses(second)) :], rel=2e-4)


def test_bf16_follows_fp32_closely(new_run, one_process):
    run = new_run(**ONE, workload__precision="bf16")
    run.train()
    assert losses(run) == pytest.approx(one_process, rel=0.02)


def test_the_parts_of_a_step_add_up(new_run):
    run = new_run()
    run.train()
    for row in run.rows():
        parts = sum(
            row[f"{part}_s"] for part in ("data", "compute", "communication", "optimizer", "checkpoint", "other")
        )
        assert parts == pytest.approx(row["step_s"])
        assert min(row["compute_s"], row["communication_s"]) > 0
