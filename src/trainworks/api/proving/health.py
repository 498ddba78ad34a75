"""Check the health of this node, compare the nodes of a fleet, and drain a node that fails."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.backends.slurm.client import SlurmClient
from trainworks.catalog.cluster import parse_cluster
from trainworks.config.run_file import RunFile
from trainworks.measure.health.expectation import Expectation, expectation_of
from trainworks.measure.health.fleet import FleetHealth, read_fleet
from trainworks.measure.health.node import NodeView
from trainworks.measure.health.node_health import NodeHealth, check_node

_STATE = re.compile(r"\bState=(\S+)")


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


def drain_unhealthy(result: NodeHealth, reason: str, slurm: SlurmClient | None = None) -> bool:
    """Drain the node in Slurm if a check failed; a node that is drained already keeps its reason.

    Returns:
        True if the node was drained now.

    Raises:
        EnvironmentProblem: Slurm is missing or does not answer.
        UsageError: Slurm refuses.
    """
    if not result.failed:
        return False
    slurm = slurm or SlurmClient()
    state = _STATE.search(slurm.call("scontrol", "show", "node", result.node, "--oneliner"))
    if state and "DRAIN" in state[1]:
        return False
    slurm.call("scontrol", "update", f"NodeName={result.node}", "State=DRAIN", f"Reason={reason}")
    return True


def expectation_of_run(run_file: RunFile) -> Expectation:
    """The hardware of a node of the cluster that a run file describes; without one, what the node shows itself."""
    described = run_file.cluster.of
    return Expectation() if described is None else expectation_of(parse_cluster(described))
