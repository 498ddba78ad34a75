"""Choice of the network for a job, by the communication time it adds to a step.

Every option is planned with its best layout, because slow networks favour other layouts. The leanest option whose step
is at most a few percent slower than on the fastest suffices: a better network costs a share of the capital (10 to
25 %), so a network that saves less than that share does not pay for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.catalog.cluster import ClusterDescription, fabric_of
from trainworks.catalog.cluster_words import NodeFabric
from trainworks.plan.prediction import Prediction

FABRIC_TOLERANCE = 0.05
"""Share of the step time that a leaner network may cost."""


@dataclass(frozen=True, slots=True)
class FabricOption:
    """NICs of one node."""

    fabric: NodeFabric

    @property
    def kind(self) -> str:
        """`Ethernet` through the kernel, `RoCE` or `InfiniBand`."""
        return "Ethernet" if self.fabric.network == "TCP" else self.fabric.network

    @property
    def over(self) -> str:
        """The NICs in a cluster's description, after `over`."""
        return str(self.fabric)


@dataclass(frozen=True, slots=True)
class PlannedFabric:
    """An option with the best plan on it."""

    option: FabricOption
    best: Prediction

    @property
    def exposed_s(self) -> float:
        """Communication that computing does not hide, in one step."""
        terms = self.best.step_time
        return terms.tp_s + terms.cp_s + terms.ep_s + terms.pp_s + terms.dp_s


def fabric_options(cluster: ClusterDescription) -> list[FabricOption]:
    """Options between one slow Ethernet port and one InfiniBand port per accelerator, leaner ones first.

    Ports are at most as fast as the slot of an accelerator.

    Args:
        cluster: whose nodes get other NICs.
    """
    per_node = cluster.accelerators_per_node
    speed = max(
        (gbit for gbit in (100, 200, 400, 800) if gbit / 8 * 1e9 <= cluster.accelerator.host_bytes_per_s), default=100
    )
    infiniband = {100: "HDR100", 200: "HDR", 400: "NDR", 800: "XDR"}[speed]
    roce = f"RoCE {speed}"
    leaner = [(1, "TCP 25"), (1, "TCP 100"), (1, "RoCE 100"), (1, roce), (max(1, per_node // 2), roce)]
    ports = dict.fromkeys([*leaner, (per_node, roce), (per_node, infiniband)])
    return [FabricOption(fabric_of(nics, port)) for nics, port in ports]


def choose_fabric(planned: Sequence[PlannedFabric], *, tolerance: float) -> PlannedFabric:
    """The first, leanest one whose step is at most `tolerance` slower than the fastest.

    Args:
        planned: leanest first, not empty.
        tolerance: 0.05 accepts 5 % more time.
    """
    fastest = min(item.best.step_time_s for item in planned)
    return next(item for item in planned if item.best.step_time_s <= fastest * (1 + tolerance))
