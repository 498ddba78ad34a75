"""Drain nodes that fail their health check; it takes the rights of an administrator of the cluster."""

from __future__ import annotations

import re

from trainworks.api.nodes import backend_on
from trainworks.backends.slurm.client import SlurmClient
from trainworks.errors import UsageError
from trainworks.measure.health.fleet import FleetHealth
from trainworks.measure.health.node_health import NodeHealth

_STATE = re.compile(r"\bState=(\S+)")


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


def drain_failing(fleet: FleetHealth, cluster: str) -> list[str]:
    """Drain the nodes of a fleet on which a check failed; running jobs continue, and none starts there.

    Args:
        fleet: reports of the nodes.
        cluster: where they are: a name such as `slurm`, or a run file.

    Returns:
        Nodes that were drained now; a node that takes no jobs already keeps its reason.

    Raises:
        UsageError: the cluster does not know one of the nodes, and none was drained; or it refuses.
        EnvironmentProblem: it does not answer.
    """
    backend = backend_on(cluster)
    states = {node.name: node.state for node in backend.nodes()} if fleet.failing else {}
    if unknown := [node.name for node in fleet.failing if node.name not in states]:
        hint = "run `trainworks health --json` where SLURMD_NODENAME or NODE_NAME is the name that the cluster uses"
        raise UsageError(f"`{cluster}` has no node `{unknown[0]}`", place="--drain", hint=hint)
    drained = [node for node in fleet.failing if states[node.name] not in ("drained", "draining")]
    for node in drained:
        backend.drain(node.name, f"trainworks: {'; '.join(node.failed)}")
    return [node.name for node in drained]
