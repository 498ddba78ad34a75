"""From a planned run to its demand: what is taken for granted when nothing is said."""

from __future__ import annotations

from typing import Any

import pytest

from trainworks.catalog.cluster import parse_cluster
from trainworks.catalog.models import preset
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.conv_net import ConvJob
from trainworks.plan.prediction import predictions
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.search import search
from trainworks.plan.shapes.conv_net import conv_net_of_hf_config
from trainworks.plan.shapes.transformer import shape_of_hf_config
from trainworks.plan.software import Software
from trainworks.plan.space import Space
from trainworks.plan.step_time import TrainingJob
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.run import StoredRun, storage_of
from trainworks.plan.trace import Traced, fact, walk
from trainworks.worker.data.encoding import Recipe, dtype_of

CLUSTER = parse_cluster("2 nodes of 8x A100-SXM-80GB over 8x HDR")


def run_of(job, global_batch: int, **changes: Any) -> StoredRun:
    found = search(Space(job, CLUSTER.num_accelerators, global_batch, {}), keep=1)
    best = predictions(job, found.layouts, found.memories, global_batch=global_batch, belief=belief_from([], job))[0]
    mttf = usual_node_mttf(CLUSTER.accelerator)
    terms = {"node_mttf": mttf, "interval": fact("checkpoint interval", 1800.0, "s", source="the test")} | changes
    return StoredRun(job=job, best=best, global_batch=global_batch, steps=1000, **terms)


def text(model: str = "llama2-7b", precision: str = "bf16", **changes: Any) -> StoredRun:
    shape = shape_of_hf_config(preset(model))
    return run_of(TrainingJob(shape, 2048, precision, CLUSTER, Software()), 256, **changes)


def images(**changes: Any) -> StoredRun:
    shape = conv_net_of_hf_config(preset("resnet-50") | {"image_size": 224})
    return run_of(ConvJob(shape, "bf16", CLUSTER, Software()), 4096, image_size=224, **changes)


def demand(run: StoredRun) -> Demand:
    return storage_of(run)[0]


def figure(root: Traced, name: str) -> float:
    return next(item.value for item in walk(root) if item.name == name)


@pytest.mark.parametrize(("model", "token_bytes"), [("llama2-7b", 2), ("llama3-8b", 4)])
def test_a_token_of_a_small_vocabulary_takes_two_bytes(model: str, token_bytes: int) -> None:
    assert figure(demand(text(model)).read, "sample size") == 2048 * token_bytes


@pytest.mark.parametrize("entries", [65_535, 65_536, 65_537])
def test_a_token_is_planned_as_wide_as_it_is_written(entries: int) -> None:
    shape = shape_of_hf_config(preset("llama2-7b") | {"vocab_size": entries})
    planned = run_of(TrainingJob(shape, 2048, "bf16", CLUSTER, Software()), 256)
    assert figure(demand(planned).read, "sample size") == 2048 * dtype_of(Recipe(), entries).itemsize


def test_text_is_read_once_when_nobody_says_how_large_it_is() -> None:
    of = demand(text())
    assert (of.epochs.value, of.dataset.value) == (1.0, 256 * 1000 * 4096)


def test_a_dataset_of_half_the_size_is_read_twice() -> None:
    assert demand(text(dataset_bytes=128 * 1000 * 4096)).epochs.value == 2.0


def test_an_image_is_a_file_and_as_large_as_in_imagenet() -> None:
    of = demand(images())
    assert (figure(of.read, "sample size"), figure(of.opens, "samples per file")) == (110_000, 1)
    assert of.dataset.value == 1_281_167 * 110_000


def test_files_that_are_counted_hold_the_dataset() -> None:
    of = demand(images(files=1000, dataset_bytes=1281167 * 110_000))
    assert figure(of.opens, "samples per file") == pytest.approx(1281.167)


def test_as_many_images_as_files_are_stored_where_their_size_is_not_said() -> None:
    of = demand(images(files=14_000_000))
    assert of.dataset.value == 14_000_000 * figure(of.read, "sample size")
    assert figure(of.opens, "samples per file") == 1


def test_a_sample_is_as_large_as_the_run_file_says() -> None:
    assert figure(demand(images(sample_bytes=150_000)).read, "sample size") == 150_000


def test_checkpoints_come_as_often_as_was_asked_for() -> None:
    assert demand(text()).interval.value == 1800.0


def test_samples_per_second_are_those_of_the_step() -> None:
    run = text()
    rate = figure(demand(run).read, "samples per second")
    assert rate == pytest.approx(256 / run.best.step_time_s)
