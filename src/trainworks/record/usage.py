"""usage/node-N.json: resources used by the processes of one node, written every few seconds by its agent.

All figures only grow while the agent lives, so a reader may miss a version without loss. The energy grows on from one
agent to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from trainworks.config.spec import Spec

QUIET_SHARE = 0.1
"""Share of the cores' time for other programs up to which a machine counts as quiet: an assumption."""


class NodeUsage(Spec):
    """The content of usage/node-N.json."""

    agent_pid: int
    """Agent that counts; another agent starts at zero."""
    monotonic_s: float
    """Time by the node's monotonic clock, which stops while the machine sleeps."""
    cpu_s: float
    """Processor time of all descendants of the agent, ended ones included."""
    io_bytes: int | None
    """Bytes read and written by them, files and pipes alike; None if the kernel does not report it."""
    network_bytes: int | None
    """Bytes received by the machine on all interfaces but loopback; None if the kernel does not report it."""
    disk_waits: int
    """Number of samples in which one of them waited for a disk or a file system."""
    accelerator_s: float | None
    """Busy time of the busiest accelerator, unmeasurable time included; None without accelerators."""
    energy_j: float | None = None
    """Energy of the accelerators while agents of this run held them; None where the driver does not report it."""
    others_s: float | None = None
    """Processor time of all but the agent and its descendants on the cores that it may use; None where the kernel does
    not report it, and in records of older versions."""
    cores_s: float | None = None
    """Time of these cores: how many they are, times the time for which the agent has counted."""
    host: str | None = None
    """Name of the machine; None in records of older versions."""


def others_share(now: Mapping[int, NodeUsage], before: Mapping[int, NodeUsage]) -> float | None:
    """Share of the cores' time, 0 to 1, that programs outside of the run used on the busiest node; None if unknown.

    Usage is by node. The time until `before` is left out; that of other agents does not matter.
    """
    spent = {node: _difference(usage, before.get(node)) for node, usage in now.items()}
    of_host: dict[str, float] = defaultdict(float)
    for node, (cpu_s, _, _) in spent.items():
        of_host[_host(now, node)] += cpu_s
    return max(
        (
            min(1.0, max(0.0, others_s - (of_host[_host(now, node)] - cpu_s)) / cores_s)
            for node, (cpu_s, others_s, cores_s) in spent.items()
            if cores_s > 0
        ),
        default=None,
    )


def _host(now: Mapping[int, NodeUsage], node: int) -> str:
    """Machine of a node, of its own where the record does not name it."""
    return now[node].host or f"node {node}"


def _difference(now: NodeUsage, before: NodeUsage | None) -> tuple[float, float, float]:
    """Processor time of the run, that of other programs, and that of all cores; the last is 0 if they are unknown."""
    if now.others_s is None or now.cores_s is None:
        return now.cpu_s, 0.0, 0.0
    if before is None or before.agent_pid != now.agent_pid or before.others_s is None or before.cores_s is None:
        return now.cpu_s, now.others_s, now.cores_s
    return now.cpu_s - before.cpu_s, now.others_s - before.others_s, now.cores_s - before.cores_s
