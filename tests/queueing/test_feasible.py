"""A gang that could never run is refused, with what would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from tests.queueing.queues import NODES, SHAPES, node, nodes, shape, with_roles
from trainworks.errors import InfeasibleError
from trainworks.queueing.reasons import check_feasible, needs_text, shrink_to_fit
from trainworks.queueing.snapshot import GangShape, NodeInfo

GB = 10**9


def refusal(of: GangShape, *on: NodeInfo) -> tuple[str, str | None]:
    """Message and hint."""
    with pytest.raises(InfeasibleError) as caught:
        check_feasible(of, on)
    return caught.value.message, caught.value.hint


@pytest.mark.parametrize(
    ("of", "on", "message", "hint"),
    [
        (
            shape(8, count=4),
            nodes(1, 2),
            "4 nodes of 8 accelerators each; there is 1 node with 2 accelerators",
            "`num_nodes: 1`, `accelerators: 2`",
        ),
        (shape(8, count=4), nodes(3), "4 nodes of 8 accelerators each; there are 3 nodes like that", "`num_nodes: 3`"),
        (
            shape(8, count=2),
            (node("n1"), node("n2", 4)),
            "2 nodes of 8 accelerators each; 1 of 2 nodes is like that",
            "`num_nodes: 1`",
        ),
        (
            shape(8, accelerator="H100"),
            nodes(1, 4),
            "1 node of 8 H100; no node has H100, but A100",
            "`accelerators: A100:4`",
        ),
        (
            shape(1),
            nodes(2, 0),
            "1 node of 1 accelerator; there are 2 nodes with no accelerators",
            "leave out `accelerators`",
        ),
        (
            shape(1, accelerator="A100"),
            nodes(1, 0),
            "1 node of 1 A100; no node has A100, but no accelerators",
            "leave out `accelerators`",
        ),
        (
            shape(0, cores_per_node=65.0, memory_per_node_bytes=600 * GB),
            (node("n1"), node("n2", memory_bytes=550 * GB + 1)),
            "1 node of 65 cores and 600 GB of memory; there are 2 nodes with up to 64 cores and 550 GB of memory",
            "`cpus: 64`, `memory: 550`",
        ),
        (
            shape(8, count=2, same_rack=True),
            (node("n1", rack="a"), node("n2", rack="b")),
            "2 nodes in one rack of 8 accelerators each; no rack has as many",
            "`num_nodes: 1`",
        ),
        (
            shape(exclude=frozenset({"n1"})),
            nodes(1),
            "1 node of 8 accelerators; the cluster has no node but the 1 excluded",
            "exclude fewer nodes",
        ),
        (shape(), (), "1 node of 8 accelerators; the cluster has no node", "add a node"),
    ],
)
def test_a_gang_that_could_never_run_is_refused_with_what_would(
    of: GangShape, on: tuple[NodeInfo, ...], message: str, hint: str
) -> None:
    assert refusal(of, *on) == (message, hint)


@pytest.mark.parametrize("out", [{"drained": "disk"}, {"down": "no answer"}])
def test_nodes_out_of_service_come_back(out: dict[str, Any]) -> None:
    check_feasible(shape(count=2), nodes(2, **out))


def test_excluded_nodes_do_not_count() -> None:
    assert refusal(shape(count=2, exclude=frozenset({"n2"})), *nodes(2))[1] == "`num_nodes: 1`"


@given(NODES, SHAPES)
def test_what_would_fit_is_feasible(on: list[NodeInfo], of: GangShape) -> None:
    smaller = shrink_to_fit(of, on)
    if smaller is not None:
        check_feasible(smaller, on)


@given(NODES, SHAPES)
def test_what_fits_already_is_not_made_smaller(on: list[NodeInfo], of: GangShape) -> None:
    smaller = shrink_to_fit(of, on)
    try:
        check_feasible(of, on)
    except InfeasibleError:
        return
    assert smaller is not None
    assert replace(smaller, nodes_max=of.nodes_max) == of


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (shape(1), "needs 1 accelerator on 1 node"),
        (shape(4, count=2, accelerator="A100"), "needs 4 A100 on each of 2 nodes"),
        (shape(0, cores_per_node=1.0), "needs 1 core on 1 node"),
        (
            shape(2, cores_per_node=1.5, memory_per_node_bytes=GB),
            "needs 2 accelerators, 1.5 cores and 1.00 GB of memory on 1 node",
        ),
        (shape(8, count=2, same_rack=True), "needs 8 accelerators on each of 2 nodes of one rack"),
        (shape(0, count=3), "needs 3 nodes"),
    ],
)
def test_a_need_is_said_in_words(of: GangShape, text: str) -> None:
    assert needs_text(of) == text


def test_roles_are_refused_for_the_first_that_fits_nowhere_or_for_all_of_them() -> None:
    trainer, loader = shape(8), shape(0, count=2, cores_per_node=32.0)
    check_feasible(with_roles(trainer, loader), nodes(3))
    assert refusal(with_roles(shape(16), loader), *nodes(3))[0] == (
        "1 node of 16 accelerators; there are 3 nodes with 8 accelerators"
    )
    assert refusal(with_roles(trainer, loader), *nodes(2)) == (
        "the job needs 8 accelerators on 1 node, and 32 cores on each of 2 nodes; there are 2 nodes for all of them",
        "give roles fewer nodes, or smaller ones",
    )
