"""How often to save."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainworks.config.quantities import CheckpointInterval
from trainworks.plan.reliability.checkpoint_interval import checkpoint_interval, optimal_interval_s

STALL_S = st.floats(1e-3, 100)
MTTF_S = st.floats(1e3, 1e5)
LONGEST_S = 3600.0


def wall_share(interval_s: float, stall_s: float, mttf_s: float) -> float:
    """Daly's wall clock for one unit of work, without recovery."""
    return mttf_s * math.expm1((interval_s + stall_s) / mttf_s) / interval_s


@given(STALL_S, MTTF_S, st.floats(0.1, 10))
def test_no_other_interval_loses_noticeably_less(stall_s: float, mttf_s: float, factor: float) -> None:
    best = optimal_interval_s(stall_s=stall_s, mttf_s=mttf_s)
    assume(best < LONGEST_S)
    assert wall_share(best, stall_s, mttf_s) <= wall_share(best * factor, stall_s, mttf_s) * 1.001


@given(STALL_S, MTTF_S, st.integers(1, 1000))
def test_more_nodes_save_at_least_as_often(stall_s: float, mttf_s: float, nodes: int) -> None:
    few, many = (
        checkpoint_interval(CheckpointInterval(), stall_s=stall_s, node_mttf_s=1e3 * mttf_s, num_nodes=count)[1]
        for count in (nodes, nodes + 1)
    )
    assert many <= few <= LONGEST_S


def test_an_interval_is_long_enough_for_the_write_and_for_a_step() -> None:
    assert optimal_interval_s(stall_s=2.0, mttf_s=3600.0, write_s=300.0) == 298.0
    assert optimal_interval_s(stall_s=2.0, mttf_s=3600.0, shortest_s=500.0) == 500.0


@pytest.mark.parametrize(
    ("wanted", "interval"),
    [(CheckpointInterval(steps=50), (50, None)), (CheckpointInterval(seconds=600.0), (None, 600.0))],
)
def test_what_was_asked_for_is_kept(wanted: CheckpointInterval, interval: tuple[int | None, float | None]) -> None:
    assert checkpoint_interval(wanted, stall_s=2.0, node_mttf_s=3600.0, num_nodes=1) == interval


def test_automatic_is_the_optimal_interval_of_the_job() -> None:
    automatic = checkpoint_interval(CheckpointInterval(), stall_s=2.0, node_mttf_s=14400.0, num_nodes=4)
    assert automatic == (None, optimal_interval_s(stall_s=2.0, mttf_s=3600.0))
    assert automatic[1] == pytest.approx(math.sqrt(2 * 2.0 * 3600.0), rel=0.02)
