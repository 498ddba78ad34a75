"""Electricity and carbon of a cluster, and of the accelerators of a run.

    energy = N * P * u * PUE * h        carbon = energy * i

Symbols:
    N   nodes                           u    share of that power while training
    P   largest power of a node, W      PUE  power of the building over that of the nodes
    h   hours                           i    greenhouse gases of a kilowatt-hour, kg CO2e

Left out: what the making of the hardware emitted, the network's switches, and certificates that a buyer holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from trainworks.catalog.catalog import find_row, grid, has, names, reference_node
from trainworks.catalog.cluster import ClusterDescription
from trainworks.errors import UsageError
from trainworks.plan.assumptions import GIVEN, assumed
from trainworks.plan.trace import Traced, fact, with_changed
from trainworks.record.resolved import Plan
from trainworks.record.step_time import StepTimeTerms

AVERAGE_GRID = "World"
NODE_POWER = "node power"


def node_count(cluster: ClusterDescription) -> Traced:
    """Nodes of the cluster."""
    return fact("nodes", cluster.num_nodes, "", source=f"`{cluster.name}`")


def node_power(cluster: ClusterDescription, given: Mapping[str, float] | None = None) -> Traced:
    """Largest power of one node, W: the vendor's figure, else that of its accelerators times the overhead of a node.

    Args:
        cluster: whose nodes.
        given: numbers that replace assumptions, by their names; `node power` among them, in W.

    Raises:
        UsageError: neither the node's nor the accelerator's power is published.
    """
    if given is not None and NODE_POWER in given:
        return fact(NODE_POWER, given[NODE_POWER], "W", source=GIVEN)
    known = _published(cluster)
    if known is not None:
        return known
    part = cluster.accelerator
    if part.power_w is None:
        raise UsageError(
            f"unknown power: no published figure for {part.name} or its node",
            hint='give the maximum power of a node in W: `--assume "node power=5000"`',
        )
    each = fact("accelerator power", part.power_w, "W", source=_power_source(part.name, "accelerators"))
    count = fact("accelerators per node", cluster.accelerators_per_node, "", source=f"`{cluster.name}`")
    over = assumed("node power over accelerators", given)
    return (count * each * over).named(NODE_POWER, "W", count=count, each=each, over=over)


def _published(cluster: ClusterDescription) -> Traced | None:
    """Power of the node itself, or of the catalogue's node with the same accelerators."""
    nodes = [] if cluster.node is None else [cluster.node]
    if cluster.accelerator.reference_node is not None:
        nodes.append(reference_node(cluster.accelerator.name))
    for node in nodes:
        same = node.accelerators == cluster.accelerators_per_node
        if same and node.power_w is not None and has("nodes", node.name):
            return fact(NODE_POWER, node.power_w, "W", source=_power_source(node.name, "nodes"))
    return None


def _power_source(name: str, kind: str) -> str:
    row = find_row(name, "nodes" if kind == "nodes" else "accelerators")
    figure = row.figure("power")
    return f"{row.name}: {figure.source}, {figure.date}"


def energy(cluster: ClusterDescription, hours: Traced, given: Mapping[str, float] | None = None) -> Traced:
    """Electricity of training for these hours, cooling and losses of the building included, in Wh.

    Raises:
        UsageError: the power is not published.
    """
    nodes = node_count(cluster)
    power = node_power(cluster, given)
    training = assumed("power while training", given)
    PUE = assumed("PUE", given)
    return (nodes * power * training * PUE * hours).named("energy", "Wh", power=power, training=training, hours=hours)


def carbon(energy_wh: Traced, grid_name: str | None = None) -> Traced:
    """Greenhouse gases of that electricity, kg of CO2 equivalent.

    Args:
        energy_wh: in Wh.
        grid_name: a country or cloud region; None is the world's average, between the cleanest and the dirtiest grid.

    Raises:
        UsageError: no such grid in the catalogue.
    """
    chosen = grid(grid_name or AVERAGE_GRID)
    figure = find_row(chosen.name, "grids").figures[0]
    ends = sorted(grid(name).kg_co2e_per_kwh for name in names("grids")) if grid_name is None else [None]
    intensity = fact(
        "carbon intensity",
        chosen.kg_co2e_per_kwh,
        "kg/kWh",
        source=f"{chosen.name}: {figure.source}, {figure.date}",
        low=ends[0],
        high=ends[-1],
    )
    return (energy_wh / 1000 * intensity).named("carbon", "kg CO2e", intensity=intensity)


_SHARES = [f"accelerator power while {doing}" for doing in ("computing", "waiting", "idle")]
_PLAN = "the plan"


def run_energy(plan: Plan, power_limit_w: float) -> Traced:
    """Energy of the accelerators for the whole run, J, by what they do in it.

        E = P (c n t_c + w n t_w + i (T - n (t_c + t_w)))

    Symbols:
        P    power limit of all accelerators, W     c, w, i   shares of it while they compute, wait and are idle
        n    steps                                  t_c       products of a step: forward, backward, recomputation, head
        T    time from the launch to the last step  t_w       the rest of a step: communication, bubble, optimizer, host

    Waiting kernels of collectives keep the clocks high, so waiting is not idle. Start and checkpoints count as idle.

    The range has all three shares at their low or at their high ends.

    Args:
        plan: of the run.
        power_limit_w: of all accelerators together.
    """
    step_time, groups = plan.step_time, plan.step_time.groups
    bubble_s = step_time.bubble_s if isinstance(step_time, StepTimeTerms) else 0.0
    computing = fact("computing", groups.compute_s - bubble_s, "s", source=_PLAN)
    waiting = fact("waiting", step_time.total_s - computing.value, "s", source=_PLAN)
    steps = fact("steps", plan.num_steps, "", source=_PLAN)
    rest = fact("rest", max(0.0, plan.run_time_s - plan.num_steps * step_time.total_s), "s", source=_PLAN)
    limit = fact("power limit", power_limit_w, "W", source="the driver")
    c, w, i = (assumed(name) for name in _SHARES)
    energy = (limit * (c * steps * computing + w * steps * waiting + i * rest)).named("energy", "J", c=c, w=w, i=i)
    low = with_changed(energy, {share.name: share.low or share.value for share in (c, w, i)}).value
    high = with_changed(energy, {share.name: share.high or share.value for share in (c, w, i)}).value
    return replace(energy, low=low, high=high)
