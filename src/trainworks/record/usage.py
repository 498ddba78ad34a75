"""usage/node-N.json: what the processes of one node have used so far, by the node's agent every some seconds.

All figures only grow while the agent lives, so that a reader who misses a file loses nothing.
"""

from __future__ import annotations

from trainworks.config.quantities import Spec

__all__ = ["NodeUsage"]


class NodeUsage(Spec):
    """The content of usage/node-N.json."""

    agent_pid: int
    """Who counts; another agent begins anew."""
    monotonic_s: float
    """When, by the node's own clock, which stands still while the machine sleeps."""
    cpu_s: float
    """Processor time of all processes below the agent, those that have ended included."""
    io_bytes: int | None
    """What they have read and written, files and pipes alike; None where the kernel does not say."""
    network_bytes: int | None
    """What the machine has received, by all interfaces but loopback; None where the kernel does not say."""
    disk_waits: int
    """Looks at which one of them waited for a disk or a file system."""
    accelerator_s: float | None
    """Time in which the busiest accelerator of the node computed, or nobody could say; None without accelerators."""
