"""The network of a cluster with its alternatives, the messages of a job on it, and its price."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainworks.plan.cost.owning import Purchase
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
from trainworks.plan.network.design import NetworkDesign, serves
from trainworks.plan.network.grids import GridNetwork
from trainworks.plan.network.groups import GroupNetwork
from trainworks.plan.network.support import SupportNetworks
from trainworks.plan.network.traffic import Message, Placement, message_time
from trainworks.plan.network.trees import TreeNetwork, leaf_ports
from trainworks.plan.trace import Traced, ceil, computed, fact, maximum, total
from trainworks.results import Result, ResultVerdict
from trainworks.units import format_counted


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
    purchase: Purchase | None = None
    """Price of the nodes and of a usual network; None where it is not known."""

    @property
    def verdict(self) -> ResultVerdict:
        """What to build, whether it blocks, and which design needs fewer switches or has more room."""
        design = self.design
        switches = "without switches"
        if design.switch is not None:
            kind = f"{design.switch.ports} ports" if design.switch.network == "unnamed" else design.switch.name
            switches = f"of {design.num_switches:,} x {kind}"
        action = f"Build a {design.topology} network {switches} and {format_counted(design.num_cables, 'cable')}"
        blocks = (
            "nothing blocks"
            if design.oversubscription <= 1
            else f"it is oversubscribed {design.oversubscription:.3g}:1"
        )
        bill = bill_total(bill_of_materials(design, self.prices))
        complete = bill is not None and all(
            each.each_usd is not None for each in bill_of_materials(design, self.prices)
        )
        price = f", {self.prices.exchange.format(bill.value)}" if bill is not None and complete else ""
        room = "any number of nodes" if design.max_nodes is None else format_counted(design.max_nodes, "node")
        figure = f"{blocks} and it holds {room}{price}"
        serving = [each for each in self.others if serves(each)]
        fewest = min(serving, key=lambda each: (each.num_switches, each.num_cables), default=None)
        if not serves(design):
            unless = f"nodes do not all reach each other at {design.taper:g}:1"
            if design.switch is None:
                unless = "a failed node or cable cuts a ring of it"
            instead = ""
            if fewest is not None:
                instead = f", a {fewest.topology} of {format_counted(fewest.num_switches, 'switch')} has no such limit"
            return ResultVerdict(action, figure, unless + instead, "check")
        if fewest is not None and fewest.num_switches < design.num_switches:
            fewer = format_counted(fewest.num_switches, "switch")
            return ResultVerdict(action, figure, f"a {fewest.topology} of {fewer} serves as well")
        growing = (each for each in serving if each.topology != "rail-only")  # whose rails never meet in a switch
        larger = [each for each in growing if design.max_nodes is not None and (each.max_nodes or 0) > design.max_nodes]
        if larger and design.max_nodes is not None:
            grown = min(larger, key=lambda each: each.num_switches)
            beyond = f"beyond {format_counted(design.max_nodes, 'node')} take a {grown.topology}"
            return ResultVerdict(action, figure, f"{beyond} of {grown.num_switches:,} switches from the start")
        return ResultVerdict(action, figure)

    @property
    def cables_csv(self) -> str:
        """The cable plan."""
        return cables_as_csv(self.design, nodes_per_rack=self.nodes_per_rack)

    @property
    def bill_csv(self) -> str:
        """The order list."""
        network = compute_lines(self.design, self.prices, nodes_per_rack=self.nodes_per_rack)
        return bill_as_csv([*self.room, *network, *support_lines(self.design, self.support)], self.purchase)

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


_DOWN = "the most links down that are at most that many to one link up"
_UP = "of those that leave no taper too large, the one with the fewest switches (plan/network/trees.py)"
_SPINES = "the smallest divisor of a leaf's links up that has links for all leaves of a pod (plan/network/trees.py)"
_CORES = "links up of the spines with one place in their pods, over the links of a switch, rounded up"
_GROUPS = "whole groups for all endpoints (plan/network/groups.py)"


def figures_of(design: NetworkDesign) -> list[Traced]:
    """Switches and cables by tier and together, bisection, oversubscription, hops and the largest cluster."""
    given = _given(design)
    nic = fact("bandwidth of a NIC", design.endpoint_bytes_per_s, "bytes/s", source=design.cluster.name)
    endpoints = (given["nodes"] * given["nics"]).named("endpoints", "", nodes=given["nodes"], nics=given["nics"])
    cut = computed("links of the worst cut", design.bisection_links, "", by=_cut_rule(design), endpoints=endpoints)
    bisection = (cut * nic).named("bisection", "bytes/s", cut=cut, nic=nic)
    blocking = (endpoints / 2 / cut).named("oversubscription", "", cut=cut)
    hops = computed("worst hops", design.hops_worst, "", by="switches, or NICs, on the longest of the shortest paths")
    tiers = _tiers(design, given)
    return [*_sum("switches", tiers), *_cables(design, tiers), bisection, blocking, hops, *_largest(design, given)]


def _given(design: NetworkDesign) -> dict[str, Traced]:
    """Inputs of the counts, by their symbols in formulas."""
    named = design.cluster.name
    inputs = {
        "nodes": fact("nodes", design.nodes, "", source=named),
        "nics": fact("NICs of a node", design.nics, "", source=named),
        "spare": fact("spare slots", design.spare_slots, "", source="asked for"),
        "rails": fact("rails", design.rails, "", source=f"NICs with the same place in nodes of {named}"),
        "planes": fact("planes", design.planes, "", source=f"topology {design.topology}"),
        "taper": fact("oversubscription of a leaf", design.taper, "", source="asked for, at most"),
    }
    if design.ports is not None:
        name = design.ports.switch.name
        ports = fact("ports of a switch", design.ports.switch.ports, "", source=name)
        split = fact("links of a port", design.ports.split, "", source=f"the NIC's speed on a port of {name}")
        inputs["links"] = (ports * split).named("links of a switch", "", ports=ports, split=split)
    return inputs


def _cut_rule(design: NetworkDesign) -> str:
    if isinstance(design.fabric, GridNetwork):
        return "2 * parallel cables * nodes / longest side (plan/network/grids.py)"
    if isinstance(design.fabric, GroupNetwork):
        return "links of a pair of groups * groups^2 / 4, at most half of the endpoints (plan/network/groups.py)"
    return "half of the links up from all leaves, at most half of the endpoints (plan/network/design.py)"


def _tiers(design: NetworkDesign, given: Mapping[str, Traced]) -> dict[str, Traced]:
    fabric, counts = design.fabric, design.switches
    if isinstance(fabric, GridNetwork):
        return {}
    if isinstance(fabric, GroupNetwork):
        inputs: dict[str, Any] = dict(given)
        return {name: computed(f"{name} switches", n, "", by=_GROUPS, **inputs) for name, n in counts.items()}
    if not fabric.up:
        return {"switch": _one_tier(design, given)}
    leaf = _leaves(design, fabric, given)
    up = computed("links up of a leaf", fabric.up, "", by=_UP, links=given["links"], taper=given["taper"])
    upper = {name: rule for name, rule in (("spine", _SPINES), ("core", _CORES)) if name in counts}
    return {"leaf": leaf} | {
        name: computed(f"{name} switches", counts[name], "", by=rule, leaves=leaf, up=up, links=given["links"])
        for name, rule in upper.items()
    }


def _one_tier(design: NetworkDesign, given: Mapping[str, Traced]) -> Traced:
    if design.topology == "rail-only":
        return given["rails"].named("edge switches", "")
    links, nics, spare = given["links"], given["nics"], given["spare"]
    together = maximum(1, -ceil(-links * given["rails"] / ((given["nodes"] + spare) * nics))).named(
        "rails that fit on a switch", "", links=links, nics=nics, spare=spare
    )
    return ceil(given["rails"] / together).named("edge switches", "", together=together)


def _leaves(design: NetworkDesign, fabric: TreeNetwork, given: Mapping[str, Traced]) -> Traced:
    """Leaf switches by formula; as counted if full pods need a few more."""
    nodes, nics, spare, rails = (given[name] for name in ("nodes", "nics", "spare", "rails"))
    full_down = leaf_ports(fabric.ports, design.taper)[0]
    down = computed("links down of a full leaf", full_down, "", by=_DOWN, links=given["links"], taper=given["taper"])
    if design.topology in ("rail-optimised", "rail-only", "multi-plane"):
        if design.set_nodes is not None:
            return _leaves_of_units(design, given)
        full = (-ceil(-down * rails / nics)).named("nodes of a full leaf", "", down=down, nics=nics)
        sets = ceil((nodes + spare) / full).named("sets of leaves", "", full=full, spare=spare)
        leaves = (given["planes"] * rails * sets).named("leaf switches", "", sets=sets)
    else:
        leaves = maximum(2, ceil((nodes + spare) * nics / down)).named(
            "leaf switches", "", down=down, nics=nics, spare=spare
        )
    if leaves.value == design.switches["leaf"]:
        return leaves
    rule = "the same leaves in each pod"
    return computed("leaf switches in whole pods", design.switches["leaf"], "", by=rule, needed=leaves)


def _leaves_of_units(design: NetworkDesign, given: Mapping[str, Traced]) -> Traced:
    """Leaf switches for whole scalable units and whole racks."""
    nodes, spare, rails, planes = (given[name] for name in ("nodes", "spare", "rails", "planes"))
    source = (
        f"the design in which {design.cluster.node_name} is sold" if design.unit > 1 else "one: nodes are sold alone"
    )
    unit = fact("nodes of a scalable unit", design.unit, "", source=source)
    whole = "whole racks, or nodes, that a leaf has links down for"
    full = computed("nodes of a set of leaves", design.set_nodes or 1, "", by=whole, links=given["links"])
    units = ceil((nodes + spare) / unit).named("scalable units", "", unit=unit, spare=spare)
    sets = ceil(units * unit / full).named("sets of leaves", "", units=units, unit=unit, full=full)
    return (planes * rails * sets).named("leaf switches", "", planes=planes, sets=sets)


def _cables(design: NetworkDesign, tiers: Mapping[str, Traced]) -> list[Traced]:
    inputs: dict[str, Any] = dict(tiers)
    kinds = {
        f"{name.replace('-', '_')}_cables": computed(
            f"{name} cables",
            count,
            "",
            by="ends of what it joins, several links to a cable where ports are split",
            **inputs,
        )
        for name, count in design.cables.items()
    }
    return _sum("cables", kinds)


def _sum(name: str, parts: Mapping[str, Traced]) -> list[Traced]:
    return [total(*parts.values()).named(name, "", **parts)] if parts else []


def _largest(design: NetworkDesign, given: Mapping[str, Traced]) -> list[Traced]:
    if design.max_nodes is None:
        return []
    rule = "the topology's limit with this switch (plan/network/topologies.py)"
    nodes = computed("largest nodes", design.max_nodes, "", by=rule, links=given["links"], taper=given["taper"])
    return [(nodes * given["nics"]).named("largest endpoints", "", nodes=nodes, nics=given["nics"])]
