"""Check the health of this node, and compare the nodes of a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.run_file import RunFile
from trainworks.measure.health.expectation import Expectation, expectation_of
from trainworks.measure.health.fleet import FleetHealth, read_fleet
from trainworks.measure.health.node import NodeView
from trainworks.measure.health.node_health import NodeHealth, check_node

__all__ = ["FleetHealth", "NodeHealth", "expectation_of_run", "fleet_health", "health"]


def health(expect: str | None = None) -> NodeHealth:
    """Run every health check on this machine; nothing is changed.

    Args:
        expect: what the node should have: a description of one node or of a cluster of it, such as
            `8x H100-SXM-80GB, 8x NDR`, or a run file with a described cluster. Without it the node is compared with
            what it shows itself.

    Raises:
        ArgumentError: `expect` is neither a description nor a run file with one.

    >>> len(health().results) >= 40
    True
    """
    expected = Expectation() if expect is None else expectation_of(described_hardware(expect))
    return check_node(NodeView(expected=expected))


def fleet_health(files: Sequence[Path | str]) -> FleetHealth:
    """Find the nodes of a fleet that fail or differ, from the JSON that `health` wrote on each.

    Raises:
        UsageError: a file is not the report of a node, or two are of the same node.
    """
    return read_fleet([Path(file) for file in files])


def expectation_of_run(run_file: RunFile) -> Expectation:
    """The hardware of a node of the cluster that a run file describes; without one, what the node shows itself."""
    described = run_file.cluster.of
    return Expectation() if described is None else expectation_of(parse_cluster(described))
