"""Dragonfly and dragonfly+: ports suffice, and all groups are connected."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from trainworks.plan.network.groups import GroupNetwork, groups, most_groups

RADIX = st.integers(8, 144)
PLUS = st.booleans()


def built(ports: int, endpoints: int, plus: bool, taper: float = 1.0) -> GroupNetwork:
    found = groups(ports, endpoints, plus=plus, taper=taper)
    assume(found is not None)
    assert found is not None
    return found


@given(RADIX, st.integers(2, 5000), PLUS)
def test_no_switch_of_a_group_has_more_links_than_ports(ports: int, endpoints: int, plus: bool) -> None:
    found = built(ports, endpoints, plus)
    leaving = found.pair_links * (found.count - 1)
    local = found.spines or found.members - 1
    assert found.down + local + (0 if plus else -(-leaving // found.members)) <= ports
    assert not plus or found.members + -(-leaving // found.spines) <= ports


@given(RADIX, st.integers(2, 5000), PLUS)
def test_all_endpoints_have_a_place_and_no_group_is_empty(ports: int, endpoints: int, plus: bool) -> None:
    found = built(ports, endpoints, plus)
    assert found.group_endpoints * (found.count - 1) < endpoints <= found.group_endpoints * found.count


@given(RADIX, st.integers(2, 20000), PLUS)
def test_every_two_groups_have_a_link(ports: int, endpoints: int, plus: bool) -> None:
    found = built(ports, endpoints, plus)
    assert found.count >= 2
    assert found.pair_links >= 1


@given(st.integers(8, 40), PLUS)
def test_the_largest_dragonfly_can_be_built_and_no_larger_one(ports: int, plus: bool) -> None:
    count, each = most_groups(ports, plus=plus, taper=1.0)
    assert groups(ports, count * each, plus=plus, taper=1.0) is not None
    assert groups(ports, count * each + 1, plus=plus, taper=1.0) is None


def frontier(taper: float) -> GroupNetwork:
    """37,632 endpoints on switches of 64 ports."""
    found = groups(64, 37632, plus=False, taper=taper)
    assert found is not None
    return found


def test_a_balanced_group_has_twice_as_many_switches_as_endpoints_on_each() -> None:
    assert (frontier(1.0).members, frontier(1.0).down) == (32, 16)


def test_a_taper_takes_links_between_groups_away() -> None:
    assert (frontier(1.0).pair_links, frontier(1.753).pair_links) == (7, 4)


def test_what_one_group_holds_is_no_dragonfly() -> None:
    assert groups(64, 512, plus=False, taper=1.0) is None
    assert groups(64, 513, plus=False, taper=1.0) is not None
