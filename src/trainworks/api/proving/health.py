"""Check the health of this node, compare the nodes of a fleet, and drain those that fail."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.api.proving.expected_hardware import described_hardware
from trainworks.backends.store_place import is_there_a_store
from trainworks.config.run_file import RunFile
from trainworks.errors import TrainworksError, UsageError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.measure.health.expectation import Expectation, expectation_of
from trainworks.measure.health.node import NodeView, Unreadable
from trainworks.measure.health.node_health import FleetHealth, NodeHealth, check_node, read_fleet
from trainworks.recover.node_history import NodeHistory
from trainworks.system import check_linux

if TYPE_CHECKING:
    from trainworks.backends.slurm.client import SlurmClient

__all__ = [
    "FleetHealth",
    "NodeHealth",
    "drain_failing",
    "drain_unhealthy",
    "expectation_of_run",
    "fleet_health",
    "health",
]


_HISTORY_TIMEOUT_S = 1.0
"""Time in which the job store has to answer."""


def health(expect: str | None = None, *, with_history: bool = True) -> NodeHealth:
    """Run every health check on this machine; nothing is changed.

    Args:
        expect: what the node should have: a description of one node or of a cluster of it, such as
            `8x H100-SXM-80GB, 8x NDR`, a run file with a described cluster, or a stack file. Without it the node is
            compared with what it shows itself.
        with_history: look in the job store for what earlier jobs have seen of this machine.

    Raises:
        ArgumentError: `expect` is neither a description nor a run file with one.
        EnvironmentProblem: this machine does not run Linux.

    >>> len(health().results) >= 40
    True
    """
    check_linux("a health check")
    expected = Expectation() if expect is None else expectation_of(described_hardware(expect))
    return check_node(NodeView(expected=expected, history=_history) if with_history else NodeView(expected=expected))


def _history(name: str, accelerator_name: str | None) -> NodeHistory | None:
    """What earlier jobs have seen of this machine; None without a job store."""
    try:
        if not is_there_a_store():
            return None
        from trainworks.backends.node_histories import history_of_machine  # noqa: PLC0415, imports the database

        answer: Future[NodeHistory | None] = Future()
        look = partial(_settle, answer, partial(history_of_machine, name, accelerator_name))
        threading.Thread(target=look, daemon=True).start()  # a dead file server would hold this one for ever
        return answer.result(_HISTORY_TIMEOUT_S)
    except TrainworksError as error:
        raise Unreadable(error.message) from None
    except TimeoutError:
        raise Unreadable(f"the job store does not answer within {_HISTORY_TIMEOUT_S:g} s") from None


def _settle(answer: Future[NodeHistory | None], look: Callable[[], NodeHistory | None]) -> None:
    try:
        answer.set_result(look())
    except Exception as error:
        answer.set_exception(error)


def fleet_health(files: Sequence[Path | str]) -> FleetHealth:
    """Find the nodes of a fleet that fail or differ, from the JSON that `health` wrote on each.

    Raises:
        UsageError: a file is not the report of a node, or two are of the same node.
    """
    return read_fleet([Path(file) for file in files])


def expectation_of_run(run_file: RunFile) -> Expectation:
    """The hardware of a node of the cluster that a run file describes; without one, what the node shows itself."""
    return Expectation() if run_file.cluster.of is None else expectation_of(described_cluster(run_file))


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
    if slurm is None:
        from trainworks.backends.slurm.client import SlurmClient  # noqa: PLC0415

        slurm = SlurmClient()
    state = _STATE.search(slurm.call("scontrol", "show", "node", result.node, "--oneliner"))
    if state and "DRAIN" in state[1]:
        return False
    slurm.call("scontrol", "update", f"NodeName={result.node}", "State=DRAIN", f"Reason={reason}")
    return True


def drain_failing(fleet: FleetHealth, cluster: str) -> list[str]:
    """Drain the nodes of a fleet on which a check failed; running jobs continue, and none starts there. The cluster has
    a name such as `slurm`, or a run file.

    Returns:
        Nodes that were drained now; a node that takes no jobs already keeps its reason.

    Raises:
        UsageError: the cluster does not know one of the nodes, and none was drained; or it refuses.
        EnvironmentProblem: it does not answer.
    """
    from trainworks.api.nodes import backend_on  # noqa: PLC0415, a check before each job drains nothing

    backend = backend_on(cluster)
    states = {node.name: node.state for node in backend.nodes()} if fleet.failing else {}
    if unknown := [node.name for node in fleet.failing if node.name not in states]:
        hint = "run `trainworks health --json` where SLURMD_NODENAME or NODE_NAME is the name that the cluster uses"
        raise UsageError(f"`{cluster}` has no node `{unknown[0]}`", place="--drain", hint=hint)
    drained = [node for node in fleet.failing if states[node.name] not in ("drained", "draining")]
    for node in drained:
        backend.drain(node.name, f"trainworks: {'; '.join(node.failed)}")
    return [node.name for node in drained]
