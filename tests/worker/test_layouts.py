"""Every layout computes what one process computes, and every checkpoint loads under every layout.

A checkpoint has the names and shapes of the whole model, so writing and reading it are independent: each layout is
written once and read once.
"""

from __future__ import annotations

import functools
import shutil

import pytest

from tests.lanes import cases

ONE, TWO, THREE, FOUR, EIGHT = (
    {"cluster__processes_per_node": ranks, "workload__model__layers": 3} for ranks in (1, 2, 3, 4, 8)
)
LAYOUTS = {
    "one": ONE,
    "replicas": TWO,
    "shards": TWO | {"layout": {"dp_shard": 2}},
    "replicas-of-shards": FOUR | {"layout": {"dp_replicate": 2, "dp_shard": 2}},
    "accumulation": TWO | {"layout": {"dp_replicate": 2, "micro_batch": 1}},
    "shards-and-accumulation": TWO | {"layout": {"dp_shard": 2, "micro_batch": 2}},
    "tensor": TWO | {"layout": {"tp": 2}},
    "context": TWO | {"layout": {"cp": 2}},
    "pipeline": THREE | {"layout": {"pp": 3, "micro_batch": 2}},  # with a stage that lacks the tied embedding
    "shards-tensor": FOUR | {"layout": {"dp_shard": 2, "tp": 2}},
    "shards-tensor-pipeline": EIGHT | {"layout": {"dp_shard": 2, "tp": 2, "pp": 2, "micro_batch": 1}},
}
AT_NIGHT = {"replicas-of-shards", "shards-and-accumulation", "shards-tensor"}
"""Layouts whose parts others have: a run resumes in the first one, and in the last one with Muon."""


def losses(run):
    return [row["loss"] for row in run.rows()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus, cache):
    """A function: the run of a layout that has trained to its end, once for all tests that ask for it."""
    from tests.worker.harness import make_run

    @functools.cache
    def of(name):
        run = make_run(tmp_path_factory.mktemp(name), corpus, cache, **LAYOUTS[name])
        assert run.train() == [0] * run.world_size
        return run

    return of


@pytest.fixture(scope="module")
def one_process(finished):
    return losses(finished("one"))


def test_the_loss_falls(one_process):
    assert one_process[-1] < one_process[0] - 0.5


@pytest.mark.parametrize("name", cases([*LAYOUTS][1:], at_night=AT_NIGHT))
def test_a_layout_has_the_loss_curve_of_one_process(finished, one_process, name):
    assert losses(finished(name)) == pytest.approx(one_process, rel=2e-4)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("replicas", "tensor"),
        ("context", "pipeline"),
        ("shards-tensor-pipeline", "one"),
        ("shards-tensor-pipeline", "replicas-of-shards"),
    ],
)
def test_a_run_resumes_from_the_checkpoint_of_another_layout(new_run, finished, one_process, before, after):
    run = new_run(**LAYOUTS[after])
    shutil.copytree(finished(before).run_dir.checkpoint(8), run.run_dir.checkpoint(8))
    assert run.train() == [0] * run.world_size
    assert run.rows()[0]["step"] == 9
    assert losses(run) == pytest.approx(one_process[8:], rel=2e-4)


def test_muon_over_shards_resumes_bit_for_bit_and_on_one_process(tmp_path, new_run, corpus, cache):
    from tests.worker.harness import make_run

    muon = {"workload__optimizer__name": "muon"}
    whole = new_run(**LAYOUTS["shards-tensor"], **muon)
    assert whole.train() == [0] * 4
    for name, tolerance in (("shards-tensor", 0.0), ("one", 1e-5)):
        run = make_run(tmp_path / name, corpus, cache, **LAYOUTS[name], **muon)
        shutil.copytree(whole.run_dir.checkpoint(8), run.run_dir.checkpoint(8))
        assert run.train() == [0] * run.world_size
        assert run.rows()[0]["step"] == 9
        assert losses(run) == pytest.approx(losses(whole)[8:], rel=tolerance, abs=0.0)


def test_bf16_follows_fp32_closely(new_run, one_process):
    run = new_run(**ONE, workload__precision="bf16")
    run.train()
    assert losses(run) == pytest.approx(one_process, rel=0.02)


def test_the_parts_of_a_step_add_up(undisturbed):
    for row in undisturbed().rows():
        parts = sum(
            row[f"{part}_s"] for part in ("data", "compute", "communication", "optimizer", "checkpoint", "other")
        )
        assert parts == pytest.approx(row["step_s"])
        assert min(row["compute_s"], row["communication_s"]) > 0
