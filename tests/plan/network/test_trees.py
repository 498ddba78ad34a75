"""Fat trees: ports suffice, links are shared out evenly, and published sizes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainworks.plan.network.trees import TreeNetwork, leaf_ports, most_leaves, smallest_divisor, tree

RADIX = st.integers(4, 144)
TAPER = st.floats(1.0, 4.0)
TIERS = st.sampled_from((2, 3))


def built(ports: int, leaves: int, taper: float, tiers: int) -> TreeNetwork:
    down = leaf_ports(ports, taper)[0]
    found = tree(ports, leaves, down, taper=taper, tiers=tiers)
    assume(found is not None)
    assert found is not None
    return found


@given(RADIX, TAPER)
def test_a_leaf_has_at_most_its_ports_and_at_most_the_taper(ports: int, taper: float) -> None:
    down, up = leaf_ports(ports, taper)
    assert down + up <= ports
    assert down <= taper * up + 1e-6


@given(st.integers(1, 500), st.integers(1, 500))
def test_a_smallest_divisor_divides_and_is_large_enough(number: int, least: int) -> None:
    found = smallest_divisor(number, least)
    assert found is None if least > number else (number % (found or 1) == 0 and (found or 0) >= least)


@given(RADIX, st.integers(2, 60), TAPER, TIERS)
def test_no_switch_of_a_tree_has_more_links_than_ports(ports: int, leaves: int, taper: float, tiers: int) -> None:
    found = built(ports, leaves, taper, tiers)
    assert found.down + found.up <= ports
    assert found.pod_leaves * found.up // found.pod_spines + found.spine_up(0) <= ports
    assert (found.leaf_spine_links if found.cores else 0) <= found.cores * ports


@given(RADIX, st.integers(2, 60), TAPER, TIERS)
def test_each_leaf_has_the_same_number_of_links_to_every_spine_of_its_pod(
    ports: int, leaves: int, taper: float, tiers: int
) -> None:
    found = built(ports, leaves, taper, tiers)
    assert found.up % found.pod_spines == 0


@given(RADIX, st.integers(2, 60), TAPER, TIERS)
def test_a_tree_has_the_leaves_that_were_asked_for_and_no_empty_pod(
    ports: int, leaves: int, taper: float, tiers: int
) -> None:
    found = built(ports, leaves, taper, tiers)
    assert found.leaves == leaves
    assert (found.pods - 1) * found.pod_leaves < leaves <= found.pods * found.pod_leaves


@given(RADIX, st.integers(2, 60), TAPER)
def test_spines_have_as_many_links_to_cores_as_to_leaves(ports: int, leaves: int, taper: float) -> None:
    found = built(ports, leaves, taper, 3)
    assert found.pod_spines * sum(found.spine_up(pod) for pod in range(found.pods)) == found.leaf_spine_links


@given(RADIX, st.integers(2, 60), TIERS)
def test_a_tree_without_a_taper_has_as_many_links_up_as_down(ports: int, leaves: int, tiers: int) -> None:
    found = built(ports, leaves, 1.0, tiers)
    assert found.leaf_spine_links >= leaves * found.down


@given(RADIX, TIERS)
def test_the_largest_tree_can_be_built_and_no_larger_one(ports: int, tiers: int) -> None:
    down, most = leaf_ports(ports, 1.0)[0], most_leaves(ports, tiers)
    assert tree(ports, most, down, taper=1.0, tiers=tiers) is not None
    assert tree(ports, most + 1, down, taper=1.0, tiers=tiers) is None


@pytest.mark.parametrize(
    ("ports", "leaves", "spines"), [(144, 32, 18), (144, 64, 36), (64, 24, 16), (64, 16, 8), (64, 8, 4)]
)
def test_spines_are_a_divisor_of_the_links_up_as_in_published_designs(ports: int, leaves: int, spines: int) -> None:
    found = tree(ports, leaves, ports // 2, taper=1.0, tiers=2)
    assert found is not None
    assert found.spines == spines


def test_links_up_that_a_leaf_does_not_need_may_save_spines() -> None:
    found = tree(64, 8, 31, taper=1.0, tiers=2)
    assert found is not None
    assert (found.up, found.spines) == (32, 4)
