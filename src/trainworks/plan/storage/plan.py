"""Storage of a planned run: the demand, the needs of a node, and every kind of storage judged by them."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.storage.demand import Demand
from trainworks.plan.storage.node_needs import NodeNeeds
from trainworks.plan.storage.raid import LEVELS, Raid, raid
from trainworks.plan.storage.systems import StorageVerdict
from trainworks.plan.trace import Traced
from trainworks.results import Result

RAID_DRIVES = 8
RAID_DRIVE_BYTES = 3.84e12


@dataclass(frozen=True, slots=True)
class StoragePlan(Result):
    """Storage that a run demands, and the kinds of storage that deliver it."""

    plan: ClusterPlan
    demand: Demand
    needs: NodeNeeds
    verdicts: list[StorageVerdict]

    def arrays(self) -> list[Raid]:
        """RAID levels with the drives of one server."""
        return [raid(level, RAID_DRIVES, drive_bytes=RAID_DRIVE_BYTES) for level in LEVELS]

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        servers = [count for verdict in self.verdicts for count in verdict.servers]
        return [*self.demand.figures(), *self.needs.figures(), *servers, *raid_figures(self.arrays()[2])]


def raid_figures(array: Raid) -> list[Traced]:
    """Capacity, bandwidth and risks of an array."""
    return [array.capacity, array.reads, array.writes, array.rebuild, array.loss, array.read_error]
