"""One rank that is the slowest in interval after interval is a straggler; ranks that take turns are noise."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes import metrics_row
from trainworks.recover.stragglers import INTERVALS, find_straggler


def interval(rank: int, extra_s: float, step: int = 1) -> Any:
    return metrics_row(step, step_s=0.1, slowest={"rank": rank, "extra_s": extra_s, "extra_data_s": 0.0})


def test_the_rank_its_node_and_its_cost_are_named() -> None:
    found = find_straggler([interval(5, 0.05)] * INTERVALS, ranks_per_node=4)
    assert found is not None
    assert (found.rank, found.node, found.extra_s) == (5, 1, 0.05)
    assert found.message == "rank 5 works 50 ms longer than its peers, 50% of a step"


@pytest.mark.parametrize(
    "rows",
    [
        [interval(5, 0.05)] * (INTERVALS - 1),
        [interval(5, 0.01)] * INTERVALS,
        [*[interval(5, 0.05)] * (INTERVALS - 1), interval(3, 0.05)],
        [metrics_row(1)] * 20,
    ],
    ids=["too-short", "too-little", "another-rank", "records-of-older-versions"],
)
def test_noise_is_not_named(rows: list[Any]) -> None:
    assert find_straggler(rows, ranks_per_node=4) is None
