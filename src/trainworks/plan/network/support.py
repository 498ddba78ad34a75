"""Networks in addition to the compute fabric: storage, and out-of-band management.

    storage     two ports of each node, on two leaves of a pair; 36 of a leaf's 64 ports are for nodes, 28 for the
                storage system, or, with more than one pair, for spines: an even number that has these ports
    management  a port of each node, each switch and each of a rack's two power distribution units, on switches of 48
                ports, with two links up from each

NVIDIA's enterprise reference architectures also join nodes to storage by two ports to two switches, and put every
device on the management network; the ratio of about 4:3 is that of its DGX SuperPOD with DGX H100. The storage network
carries provisioning and logins, too. The number of ports of the storage system is unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.trace import Traced, ceil, fact, minimum

NODES_PER_RACK = 4
NODE_PORTS, OTHER_PORTS = 36, 28
"""Ports of a storage leaf."""
_RULES = "sizing rule of this planner, docs/concepts/networks.md"


@dataclass(frozen=True, slots=True)
class SupportNetworks:
    """Switches and cables of both."""

    storage_leaves: Traced
    storage_spines: Traced
    storage_cables: Traced
    management_switches: Traced
    management_cables: Traced
    racks: Traced

    @property
    def figures(self) -> tuple[Traced, ...]:
        """All that can be explained."""
        return tuple(getattr(self, each.name) for each in fields(self) if each.name != "racks")


def support_networks(design: NetworkDesign, *, nodes_per_rack: int = NODES_PER_RACK) -> SupportNetworks:
    """Storage and management networks of the same nodes.

    Args:
        design: the compute fabric.
        nodes_per_rack: determines the number of racks, which have power distribution units.
    """
    nodes = fact("nodes", design.nodes, "", source=design.cluster.name)
    down = fact("node ports of a storage leaf", NODE_PORTS, "", source=_RULES)
    up = fact("other ports of a storage leaf", OTHER_PORTS, "", source=_RULES)
    leaves = (2 * ceil(nodes / down)).named("storage leaf switches", "", down=down)
    # One pair has its other ports for the storage system; more pairs meet in spines.
    spines = (2 * ceil(leaves * up / (2 * (up + down))) * minimum(1, leaves - 2)).named(
        "storage spine switches", "", leaves=leaves, up=up, down=down
    )
    cables = (2 * nodes + leaves * up * minimum(1, spines)).named(
        "storage cables", "", leaves=leaves, up=up, spines=spines
    )
    per_rack = fact("nodes per rack", nodes_per_rack, "", source=_RULES)
    racks = ceil(nodes / per_rack).named("racks of nodes", "", per_rack=per_rack)
    compute = fact("compute switches", design.num_switches, "", source="the compute fabric")
    ports = (nodes + compute + leaves + spines + 2 * racks).named(
        "management ports", "", compute=compute, leaves=leaves, spines=spines, racks=racks
    )
    each = fact("ports of a management switch", 48, "", source=_RULES)
    management = ceil(ports / each).named("management switches", "", ports=ports, each=each)
    managed = (ports + 2 * management).named("management cables", "", ports=ports, switches=management)
    return SupportNetworks(leaves, spines, cables, management, managed, racks)
