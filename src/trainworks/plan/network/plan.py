"""The network of a cluster with its alternatives, the messages of a job on it, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainworks.plan.network.bill import (
    NetworkPrices,
    OrderLine,
    bill_as_csv,
    bill_of_materials,
    bill_total,
    compute_lines,
    support_lines,
    switch_power,
    usual_share,
)
from trainworks.plan.network.cables import cables_as_csv
from trainworks.plan.network.design import NetworkDesign
from trainworks.plan.network.figures import figures_of
from trainworks.plan.network.messages import Message
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.network.traffic import Placement, message_time
from trainworks.plan.trace import Traced
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class NetworkPlan(Result):
    """The network of a cluster, the alternatives, and the time of its messages."""

    design: NetworkDesign
    others: list[NetworkDesign]
    """Every topology that holds the cluster."""
    messages: list[Message]
    step_times_s: Mapping[Placement, float]
    """Step times of a job on this network by the placement of its ranks; empty without a job."""
    support: SupportNetworks
    prices: NetworkPrices
    nodes_per_rack: int = 1
    room: tuple[OrderLine, ...] = ()
    """Nodes, racks and power, for the order list."""

    @property
    def cables_csv(self) -> str:
        """The cable plan."""
        return cables_as_csv(self.design, nodes_per_rack=self.nodes_per_rack)

    @property
    def bill_csv(self) -> str:
        """The order list."""
        network = compute_lines(self.design, self.prices, nodes_per_rack=self.nodes_per_rack)
        return bill_as_csv([*self.room, *network, *support_lines(self.design, self.support)])

    @property
    def figures(self) -> list[Traced]:
        """Figures that can be explained."""
        times = [message_time(self.design, message) for message in self.messages]
        scattered = [
            message_time(self.design, each, "scattered") for each in self.messages if each.kind == "all_reduce"
        ]
        bill = bill_of_materials(self.design, self.prices)
        money = [bill_total(bill), *(item.total_usd for item in bill), switch_power(self.design, self.prices)]
        known = [*figures_of(self.design), *times, *scattered, *filter(None, money)]
        return [*known, *self.support.figures, usual_share()]
