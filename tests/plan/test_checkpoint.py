"""How often to save."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.checkpoint import checkpoint_interval, young_interval_s
from trainworks.spec.quantities import CheckpointInterval

SAVE_S = st.floats(1e-3, 100)
MTTF_S = st.floats(1e3, 1e8)


def lost_share(interval_s: float, save_s: float, mttf_s: float) -> float:
    """Young's first-order cost: saving, and half an interval per failure."""
    return save_s / interval_s + interval_s / (2 * mttf_s)


@given(SAVE_S, MTTF_S, st.floats(0.1, 10))
def test_no_other_interval_loses_less(save_s: float, mttf_s: float, factor: float) -> None:
    best = young_interval_s(save_s=save_s, job_mttf_s=mttf_s)
    assert lost_share(best, save_s, mttf_s) <= lost_share(best * factor, save_s, mttf_s) * (1 + 1e-9)


@given(SAVE_S, MTTF_S, st.integers(1, 1000))
def test_more_nodes_save_more_often(save_s: float, mttf_s: float, nodes: int) -> None:
    _, few = checkpoint_interval(CheckpointInterval(), save_s=save_s, node_mttf_s=mttf_s, num_nodes=nodes)
    _, many = checkpoint_interval(CheckpointInterval(), save_s=save_s, node_mttf_s=mttf_s, num_nodes=nodes + 1)
    assert many < few


@pytest.mark.parametrize(
    ("wanted", "interval"),
    [(CheckpointInterval(steps=50), (50, None)), (CheckpointInterval(seconds=600.0), (None, 600.0))],
)
def test_what_was_asked_for_is_kept(wanted: CheckpointInterval, interval: tuple[int | None, float | None]) -> None:
    assert checkpoint_interval(wanted, save_s=2.0, node_mttf_s=3600.0, num_nodes=1) == interval


def test_automatic_is_young_s_interval_of_the_job() -> None:
    assert checkpoint_interval(CheckpointInterval(), save_s=2.0, node_mttf_s=14400.0, num_nodes=4) == (None, 120.0)
