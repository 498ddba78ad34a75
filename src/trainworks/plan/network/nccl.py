"""NCCL settings for a network, beyond what NCCL detects.

NCCL detects adapters, rails, PCIe distances, peer access and in-node switches, and a setting that repeats them breaks
when a node changes: `NCCL_IB_HCA=mlx5_0`, often copied, uses one adapter of eight. So few variables are set, each with
its reason. Source: NCCL User Guide, Environment Variables; aws-ofi-nccl.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription
from trainworks.record.processes import Processes

_VENDORS = ("NVIDIA", "AMD")
"""AMD's RCCL reads the same variables."""
_WIDE_BYTES_PER_S = 100e9 / 8
"""Bandwidth of one adapter above that of the sockets NCCL opens by default."""


@dataclass(frozen=True, slots=True)
class NcclSetting:
    """One variable of the ranks' environment, set where the user has not set it."""

    name: str
    value: str
    why: str


ADDING_SWITCHES = NcclSetting("NCCL_COLLNET_ENABLE", "1", "the switches add up, which NCCL does not ask for")
"""The variable that ranks need behind switches that reduce (SHARP)."""


def nccl_settings(cluster: ClusterDescription) -> tuple[NcclSetting, ...]:
    """The variables that ranks on this cluster need; none on one node.

    >>> from trainworks.catalog.cluster import parse_cluster
    >>> [setting.name for setting in nccl_settings(parse_cluster("16 nodes of DGX H100 with SHARP"))]
    ['NCCL_COLLNET_ENABLE']
    >>> nccl_settings(parse_cluster("16 nodes of DGX H100"))
    ()
    """
    if cluster.num_nodes == 1 or cluster.accelerator.vendor not in _VENDORS:
        return ()
    settings = []
    if cluster.in_network_reduction:
        settings.append(ADDING_SWITCHES)
    if cluster.network == "EFA":
        settings.append(NcclSetting("FI_PROVIDER", "efa", "libfabric may take TCP otherwise"))
    if cluster.network == "TCP" and cluster.nics and cluster.node_bytes_per_s / cluster.nics >= _WIDE_BYTES_PER_S:
        why = "one TCP stream does not fill such an adapter"
        settings += [NcclSetting("NCCL_SOCKET_NTHREADS", "4", why), NcclSetting("NCCL_NSOCKS_PERTHREAD", "4", why)]
    return tuple(settings)


def nccl_environment(cluster: ClusterDescription, processes: Processes) -> dict[str, str]:
    """The same variables for the processes of a run; none without NCCL, or on one node."""
    if processes.backend != "nccl" or processes.nodes == 1:
        return {}
    return {setting.name: setting.value for setting in nccl_settings(cluster)}
