"""What is free on the nodes of one class."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainworks.queueing.node_pool import NodePool, pool_need


@given(st.integers(1, 1000), st.integers(1, 16))
def test_a_job_gets_what_it_asks_for_and_wastes_less_than_a_node(accelerators: int, size: int) -> None:
    nodes, each = pool_need(accelerators, size)
    assert accelerators <= nodes * each < accelerators + size


def test_a_small_job_goes_where_the_fewest_accelerators_stay_free() -> None:
    pool = NodePool(8, range(2))
    pool.take([1], 5)
    assert pool.find((1, 3)) == [1]


def test_a_gang_needs_empty_nodes() -> None:
    pool = NodePool(8, range(2))
    pool.take([0], 1)
    assert pool.find((2, 8)) == []


def test_nodes_to_avoid_are_not_found() -> None:
    assert NodePool(8, range(3)).find((2, 8), avoid={0}) == [1, 2]


@given(st.lists(st.integers(1, 24), max_size=20))
def test_what_is_taken_and_given_back_leaves_the_pool_as_it_was(wanted: list[int]) -> None:
    pool, taken = NodePool(8, range(6)), []
    for accelerators in wanted:
        need = pool_need(accelerators, 8)
        if nodes := pool.find(need):
            pool.take(nodes, need[1])
            taken.append((nodes, need[1]))
    assert all(0 <= free <= 8 for free in pool.free.values())
    assert pool.free_accelerators == 48 - sum(len(nodes) * each for nodes, each in taken)
    for nodes, each in taken:
        pool.give_back(nodes, each)
    assert (pool.num_empty, pool.free_accelerators) == (6, 48)


def test_a_reservation_is_when_enough_nodes_are_free_and_takes_those_that_are_free_last() -> None:
    pool = NodePool(8, range(4))
    pool.take([0, 1], 8)
    pool.take([2], 8)
    ends = [(50.0, [0, 1], 8), (20.0, [2], 8)]
    assert pool.reservation((2, 8), ends) == (20.0, {2, 3})
    assert pool.reservation((3, 8), ends) == (50.0, {2, 0, 1})


def test_a_small_job_is_reserved_the_node_that_first_has_room() -> None:
    pool = NodePool(8, range(2))
    pool.take([0], 6)
    pool.take([1], 8)
    assert pool.reservation((1, 3), [(50.0, [0], 6), (70.0, [1], 8)]) == (50.0, {0})
