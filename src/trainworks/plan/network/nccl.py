"""NCCL settings for a network, beyond what NCCL detects.

NCCL detects adapters, rails, PCIe distances, peer access and in-node switches, and a setting that repeats them breaks
when a node changes: `NCCL_IB_HCA=mlx5_0`, often copied, uses one adapter of eight. So few variables are set, each with
its reason; a stack names its rails, and only its hosts name them to NCCL. Source: NCCL User Guide, Environment
Variables; aws-ofi-nccl.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.stack_parts.fabric import Fabric
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


@dataclass(frozen=True, slots=True)
class LosslessEthernet:
    """Numbers that hosts, switches, NCCL and UCX have to agree on, so that RoCE loses no packet.

    Source: NVIDIA Cumulus Linux, RDMA over Converged Ethernet, whose lossless mode has these code points and
    priorities.
    """

    dscp: int = 26
    """Code point of RDMA packets."""
    priority: int = 3
    """Priority that PFC pauses, and no other."""
    cnp_dscp: int = 48
    cnp_priority: int = 6
    """Congestion notifications: they overtake what they are to slow down."""
    gid_index: int = 3
    """Entry of an adapter's table with RoCE v2 and its IPv4 address, where it has one address: 0 and 1 are of IPv6."""
    host_mtu: int = 9000
    """Largest packet: RDMA takes 4096 of it."""
    switch_mtu: int = 9216
    """A switch carries more than a host sends."""
    ecn_min_kb: int = 150
    ecn_max_kb: int = 1500
    """Queue from which packets are marked, and from which all are."""

    @property
    def traffic_class(self) -> int:
        """The byte of the IP header: the code point, and the bit that says that the sender understands ECN."""
        return self.dscp << 2 | 0b10


ROCE = LosslessEthernet()
_GID = NcclSetting(
    "NCCL_IB_GID_INDEX",
    str(ROCE.gid_index),
    "RoCE v2 with the IPv4 address; entry 0 is RoCE v1, which no router forwards",
)


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


def rail_settings(fabric: Fabric) -> tuple[NcclSetting, ...]:
    """The variables of hosts with these adapters, of which NCCL is to use the rails alone: nccl.conf, line by line."""
    whole = "these adapters are the rails; one for storage is left out. `=` is for whole names: mlx5_1 is not mlx5_10"
    bridges = "addresses of the first messages; a bridge of containers has one that no other node reaches"
    settings = [
        NcclSetting("NCCL_IB_HCA", f"={','.join(fabric.devices)}", whole),
        NcclSetting("NCCL_SOCKET_IFNAME", "^lo,docker0", bridges),
    ]
    if fabric.link == "roce":
        code = f"{ROCE.dscp} << 2, and the bit of ECN"
        why = f"{code}: without it, packets have priority 0, and are dropped when it is full"
        settings += [_GID, NcclSetting("NCCL_IB_TC", str(ROCE.traffic_class), why)]
    if fabric.design is not None and fabric.design.sharp:
        settings.append(ADDING_SWITCHES)
    return tuple(settings)


def pod_environment(fabric: Fabric) -> dict[str, str]:
    """The same variables for a pod, which sees no file of its host.

    An interface of the pod has entries of its own in the table of an adapter: NCCL, from 2.21 on, finds them itself.
    """
    return {each.name: each.value for each in rail_settings(fabric) if each is not _GID}


def nccl_environment(cluster: ClusterDescription, processes: Processes) -> dict[str, str]:
    """The same variables for the processes of a run; none without NCCL, or on one node."""
    if processes.backend != "nccl" or processes.nodes == 1:
        return {}
    return {setting.name: setting.value for setting in nccl_settings(cluster)}
