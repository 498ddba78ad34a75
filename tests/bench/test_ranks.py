"""Transfers between ranks: rounds of pairs, and message sizes."""

from __future__ import annotations

from itertools import combinations

import pytest

from trainworks.worker.bench.collectives import sizes
from trainworks.worker.bench.pairs import rounds


@pytest.mark.parametrize("nodes", range(2, 34))
def test_every_pair_meets_once_and_no_node_has_two_partners_at_a_time(nodes: int) -> None:
    found = rounds(nodes)
    assert sorted(pair for pairs in found for pair in pairs) == list(combinations(range(nodes), 2))
    for pairs in found:
        assert len({node for pair in pairs for node in pair}) == 2 * len(pairs)
    assert len(found) == nodes - 1 + nodes % 2


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 24])
def test_sizes_grow_to_the_limit_in_whole_elements_for_every_rank(ranks: int) -> None:
    found = sizes(16 << 20, ranks, full=True)
    assert all(size % (4 * ranks) == 0 for size in found)
    assert found == sorted(set(found))
    assert found[-1] >= 16 << 20
    assert set(sizes(1 << 20, ranks, full=False)) <= set(found)
