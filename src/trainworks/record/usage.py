"""usage/node-N.json: resources used by the processes of one node, written every few seconds by its agent.

All figures only grow while the agent lives, so a reader may miss a version without loss. The energy grows on from one
agent to the next.
"""

from __future__ import annotations

from trainworks.config.spec import Spec


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
