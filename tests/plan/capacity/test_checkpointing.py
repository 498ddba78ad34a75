"""What spot nodes cost the jobs on them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.capacity.policy import Spot, kept_s, optimal_interval_s, slowdown

SPOT = Spot(mean_life_s=3600.0, checkpoint_write_s=60.0, notice_s=0.0)
NO_INTERVAL = math.nan


@given(st.integers(1, 20), st.floats(1, 1e5))
def test_no_other_interval_loses_noticeably_less(nodes: int, interval_s: float) -> None:
    def wall(of_s: float) -> float:
        return math.expm1(min((of_s + 60.0) / (3600.0 / nodes), 100.0)) / of_s

    assert wall(optimal_interval_s(SPOT, nodes)) <= wall(interval_s) * 1.01


@given(st.floats(0, 1e6), st.integers(1, 64), st.floats(1, 1e4))
def test_what_is_kept_is_at_most_the_work_and_lacks_less_than_an_interval(work_s, nodes, interval_s) -> None:
    kept = kept_s(SPOT, nodes, interval_s, work_s)
    assert work_s - interval_s <= kept <= work_s


def test_checkpoints_that_the_job_writes_anyway_do_not_slow_it_down() -> None:
    assert slowdown(SPOT, 1, 600.0) == 1.0
    assert slowdown(SPOT, 1, NO_INTERVAL) == pytest.approx(1 + 60 / optimal_interval_s(SPOT, 1))


@pytest.mark.parametrize(("notice_s", "kept"), [(59.0, 600.0), (60.0, 890.0)])
def test_the_notice_helps_if_a_checkpoint_fits_into_it(notice_s: float, kept: float) -> None:
    spot = Spot(mean_life_s=3600.0, checkpoint_write_s=60.0, notice_s=notice_s)
    assert kept_s(spot, 1, 600.0, 950.0) == kept
