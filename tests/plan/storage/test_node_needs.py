"""Cores, memory and drives of a node."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.plan.storage.demands import images, needs_of, text
from trainworks.errors import UsageError
from trainworks.plan.assumptions import assumed
from trainworks.plan.trace import leaves


def test_the_size_of_the_dataset_does_not_enter_the_memory() -> None:
    small, large = images(dataset_bytes=1e9), images(dataset_bytes=1e15)
    assert needs_of(small).memory.value == needs_of(large).memory.value


@given(st.floats(1.0, 1e7), st.floats(1.0, 10.0))
def test_a_faster_run_never_needs_fewer_cores(rate: float, factor: float) -> None:
    slow, fast = images(samples_per_s=rate), images(samples_per_s=rate * factor)
    assert needs_of(fast).cores.value >= needs_of(slow).cores.value


def test_data_workers_prepare_what_the_node_trains_on() -> None:
    rate = assumed("image preparation").value
    assert needs_of(images()).workers.value == math.ceil(80_000 / 4 * 110_000 / rate)


def test_every_accelerator_has_a_data_worker() -> None:
    assert needs_of(text(), images=False).workers.value == 8


def test_a_node_stages_its_share_of_the_state() -> None:
    assert needs_of(text()).staged.value == text().checkpoint.value / 16


def test_a_replica_is_saved_by_its_own_nodes() -> None:
    assert needs_of(text(), saving_nodes=4).staged.value == text().checkpoint.value / 4


def test_data_that_are_read_once_are_not_cached() -> None:
    assert (needs_of(text()).cached.value, needs_of(text(epochs=2)).cached.value) == (0.0, 4e12 / 16)


def test_drives_hold_the_cache_and_two_checkpoints_beside_free_space() -> None:
    needs = needs_of(images())
    assert math.isclose(needs.local.value, (needs.cached.value + 2 * needs.staged.value) / 0.8)


def test_a_core_has_two_virtual_cpus() -> None:
    needs = needs_of(images())
    assert needs.vcpus.value == 2 * needs.cores.value


def test_every_number_says_where_it_comes_from() -> None:
    assert all(leaf.source for figure in needs_of(images()).figures() for leaf in leaves(figure))


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="samples in a batch must be greater than 0, got 0"):
        needs_of(images(), batch_samples=0)
