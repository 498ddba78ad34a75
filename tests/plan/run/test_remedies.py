"""What a run that ran out of memory could do instead."""

from __future__ import annotations

import pytest

from tests.fakes import processes
from tests.plan.shapes import calibration
from trainworks.config.layout import Layout, resolve_layout
from trainworks.config.run_file import RunFile
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.pricing import pricing, run_job
from trainworks.plan.run.remedies import as_written, cheapest_remedies, neighbours, piece_of
from trainworks.plan.shapes.transformer import shape_of_model

WORKLOAD = RunFile.model_validate(
    {
        "name": "demo",
        "workload": {
            "task": "causal-lm",
            "model": {"layers": 4, "hidden": 256, "heads": 4},
            "data": {"source": "python-stdlib", "sequence_length": 256},
            "global_batch": 64,
            "train_for": "300 steps",
        },
    }
).workload
assert WORKLOAD is not None
SHAPE = shape_of_model(WORKLOAD.model, vocabulary=4096, sequence_length=256)
REPLICAS = resolve_layout(Layout(dp_replicate=2), world_size=2, global_batch=64, micro_batch=32)
PRICE = pricing(WORKLOAD, SHAPE, processes(1, 2), calibration())
GB = 10**9


def remedies(needed_bytes, layout=REPLICAS, count=3):
    return cheapest_remedies(WORKLOAD, SHAPE, layout, PRICE, needed_bytes=needed_bytes, count=count)


@pytest.mark.parametrize("needed_bytes", [1, GB // 4, GB // 2, GB])
def test_a_remedy_saves_and_costs_what_the_plan_says_of_both_layouts(needed_bytes):
    before = PRICE(REPLICAS)
    for remedy in remedies(needed_bytes):
        after = PRICE(remedy.layout)
        assert remedy.saves_bytes == before.memory.total_bytes - after.memory.total_bytes > 0
        assert remedy.step_time_ratio == after.step_time.total_s / before.step_time.total_s
        assert remedy.is_enough == (remedy.saves_bytes >= needed_bytes)


def test_what_is_enough_comes_before_what_is_not():
    enough = [remedy.is_enough for remedy in remedies(GB // 2, count=99)]
    assert enough == sorted(enough, reverse=True)
    assert {True, False} == set(enough)


def test_the_cheapest_of_the_micro_batches_that_are_enough_is_given_and_no_other():
    needed = GB // 2
    sizes = {
        layout.micro_batch: PRICE(layout)
        for changes, layout in neighbours(WORKLOAD, SHAPE, REPLICAS, PRICE)
        if set(changes) == {"micro_batch"}
    }
    total = PRICE(REPLICAS).memory.total_bytes
    enough = {size: price for size, price in sizes.items() if total - price.memory.total_bytes >= needed}
    (given,) = [remedy for remedy in remedies(needed, count=99) if set(remedy.changes) == {"micro_batch"}]
    fastest = min(round(price.step_time.total_s / PRICE(REPLICAS).step_time.total_s, 2) for price in enough.values())
    assert given.layout.micro_batch in enough
    assert round(given.step_time_ratio, 2) == fastest


def test_no_remedy_is_given_twice():
    changed = [frozenset(remedy.changes) for remedy in remedies(GB // 2, count=99)]
    assert len(changed) == len(set(changed))


def test_one_process_with_the_smallest_micro_batch_that_computes_again_has_no_neighbour():
    alone = resolve_layout(Layout(recompute="full"), world_size=1, global_batch=1, micro_batch=1)
    assert cheapest_remedies(WORKLOAD.model_copy(update={"global_batch": 1}), SHAPE, alone, PRICE, needed_bytes=1) == ()


def test_every_neighbour_is_accepted_when_it_is_written_into_a_run_file():
    for _, layout in neighbours(WORKLOAD, SHAPE, REPLICAS, PRICE):
        written = Layout.model_validate(as_written(layout))
        job = run_job(WORKLOAD, SHAPE, processes(1, 2), calibration=calibration(), memory_per_rank_bytes=10**15)
        assert choose_layouts(job, written)[0].layout == layout


def test_an_allocation_as_large_as_the_logits_is_named_so():
    logits = 4 * 32 * 256 * 4096
    assert piece_of(logits, SHAPE, REPLICAS, sequence_length=256) == "the logits of a micro-batch"
    assert piece_of(logits + 1, SHAPE, REPLICAS, sequence_length=256) is None


def test_no_part_of_a_remedy_needs_more_memory_by_itself():
    shards = resolve_layout(Layout(dp_shard=2), world_size=2, global_batch=64, micro_batch=32)
    assert all("dp_replicate" not in remedy.changes for remedy in remedies(GB, shards, count=99))
