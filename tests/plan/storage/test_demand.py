"""What a run asks of storage: laws, and checkpoints that were published."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.storage.demands import images, text
from trainworks.errors import UsageError
from trainworks.plan.storage.demand import Demand, checkpoint_size
from trainworks.plan.trace import leaves

GIB = 2**30
RATES = st.floats(1e-3, 1e9)


@given(RATES, RATES)
def test_a_faster_run_never_asks_for_less(one: float, other: float) -> None:
    slow, fast = (images(samples_per_s=rate) for rate in sorted((one, other)))
    assert all(getattr(fast, each.name).value >= getattr(slow, each.name).value for each in fields(Demand))


@given(st.floats(1e-4, 0.9))
def test_saving_takes_the_share_that_was_allowed(share: float) -> None:
    demand = text(stall_share=share)
    assert math.isclose(demand.checkpoint.value / demand.write.value, share * demand.interval.value, rel_tol=1e-9)


@given(st.floats(1e-4, 0.9))
def test_saving_behind_the_training_takes_less_bandwidth_by_the_stall_share(share: float) -> None:
    demand = text(stall_share=share)
    assert math.isclose(demand.drain.value, share * demand.write.value, rel_tol=1e-9)


def test_a_save_in_the_background_has_until_the_next_one() -> None:
    demand = text(interval_s=600.0)
    assert (demand.interval.value, demand.save.value) == (600.0, 600.0)
    assert demand.write.value == demand.checkpoint.value / 600
    assert "checkpoint drain" not in {figure.name for figure in demand.figures()}


def test_a_failure_loses_half_an_interval_and_the_write_that_it_breaks_off() -> None:
    demand = text(interval_s=600.0, num_nodes=2000)
    assert demand.lost.value == pytest.approx((300 + 600) / (30 * 86400 / 2000))


@pytest.mark.parametrize(
    ("parameters", "master_bytes", "published", "error"),
    [
        (176_247_271_424, 4, 2.3 * 1024 * GIB, -0.024),  # BLOOM, 2.3 TB beside 329 GB that are GiB of its weights
        (174_604_000_000, 0, 1.6 * 1024 * GIB, -0.008),  # OPT-175B keeps no fp32 weights; 992 files of 1.7 GB
        (8_030_261_248, 4, 105 * GIB, -0.003),  # MLPerf Storage v2.0: Llama 3 8B, 70B, 405B
        (70_553_706_496, 4, 912 * GIB, 0.009),
        (405_853_388_800, 4, 5290 * GIB, 0.0004),
    ],
)
def test_published_checkpoints_are_as_large_as_computed_within_three_percent(
    parameters: int, master_bytes: int, published: float, error: float
) -> None:
    size = checkpoint_size(parameters, master_bytes=master_bytes).value
    assert size / published - 1 == pytest.approx(error, abs=0.001)
    assert abs(error) < 0.03


def test_one_more_kept_checkpoint_takes_its_size_and_the_free_space_beside_it() -> None:
    more = text(keep=4).capacity.value - text(keep=3).capacity.value
    assert math.isclose(more, 70e9 * 14 / 0.8)


def test_every_replica_reads_the_state_on_a_restart() -> None:
    assert math.isclose(text(restart_copies=4).restart.value, 4 * text().restart.value)


def test_weights_that_are_in_fp32_alone_have_no_copy() -> None:
    assert checkpoint_size(10, copy_bytes=0).value == 120


def test_packed_samples_open_few_files() -> None:
    assert images(samples_per_file=2000).opens.value == images().opens.value / 2000


def test_small_files_are_found_out_and_shards_are_not() -> None:
    assert (images().small, images(samples_per_file=2327).small, text().small) == (True, False, False)


def test_a_figure_of_a_cache_is_shown_only_where_the_data_are_read_again() -> None:
    names = {item.name for item in images().figures()} - {item.name for item in text().figures()}
    assert names == {"cache fill", "copies in local drives", "files opened to fill", "files opened when packed"}


def test_every_number_says_where_it_comes_from() -> None:
    assert all(leaf.source for figure in images().figures() for leaf in leaves(figure))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples_per_s": 0.0}, "samples per second must be greater than 0, got 0"),
        ({"dataset_bytes": -1.0}, "dataset size must be greater than 0, got -1"),
        ({"stall_share": 1.0}, "stall share must be less than 1, got 1"),
        ({"stall_share": 0.0}, "stall share must be greater than 0, got 0"),
        ({"num_nodes": 0}, "nodes must be greater than 0, got 0"),
        ({"restart_s": 0.0}, "restart time must be greater than 0, got 0"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        text(**changes)
    assert refused.value.message == message
