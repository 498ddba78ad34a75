"""Rings and tori."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.network.grids import grid

NODES, NICS = st.integers(2, 400), st.integers(2, 16)


@given(NODES, NICS)
def test_the_sides_of_a_torus_hold_exactly_its_nodes(nodes: int, nics: int) -> None:
    found = grid(nodes, nics)
    assert found is not None
    assert prod(found.sides) == nodes
    assert min(found.sides) > 1


@given(NODES, NICS)
def test_a_node_uses_no_more_nics_than_it_has(nodes: int, nics: int) -> None:
    found = grid(nodes, nics)
    assert found is not None
    assert 2 <= found.used_nics <= nics
    assert 2 * found.cables == found.used_nics * nodes


@given(NODES)
def test_a_ring_of_nodes_with_two_nics_has_a_cable_for_each_node_and_two_across_the_middle(nodes: int) -> None:
    ring = grid(nodes, 2)
    assert ring is not None
    assert (ring.cables, ring.bisection_links, ring.hops) == (nodes, 2, nodes // 2)


@pytest.mark.parametrize("side", [2, 4, 16])
def test_a_cube_has_three_cables_a_node_and_two_squares_across_its_middle(side: int) -> None:
    cube = grid(side**3, 6)
    assert cube is not None
    assert (cube.sides, cube.cables, cube.bisection_links) == ((side,) * 3, 3 * side**3, 2 * side**2)
    assert cube.hops == 3 * (side // 2)


def test_a_prime_number_of_nodes_is_a_ring() -> None:
    found = grid(31, 8)
    assert found is not None
    assert (found.sides, found.parallel) == ((31,), 4)


@pytest.mark.parametrize(("nodes", "nics"), [(1, 8), (8, 1)])
def test_one_node_or_one_nic_makes_no_grid(nodes: int, nics: int) -> None:
    assert grid(nodes, nics) is None


def test_a_torus_of_very_many_nodes_is_found_at_once() -> None:
    found = grid(10**9, 6)
    assert found is not None
    assert found.sides == (1000, 1000, 1000)
