"""Design the network of a cluster: switches, cables, bandwidth, and the time of a job's messages."""

from __future__ import annotations

import math
from dataclasses import replace

from trainworks.api.inputs import Quantity, RunInput, check_settings, cluster_argument, load_run, money, quantity
from trainworks.api.planning.described import plan_cluster
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.recovery import Goal
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, QuantityError, UsageError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.plan.cluster.plan import ClusterPlan
from trainworks.plan.network.bill import NetworkPrices
from trainworks.plan.network.bill import switch_power as power_of_switches
from trainworks.plan.network.design import NetworkDesign, design_network, topologies_compared
from trainworks.plan.network.plan import NetworkPlan
from trainworks.plan.network.support import support_networks
from trainworks.plan.network.switches import find_switch
from trainworks.plan.network.traffic import PLACEMENTS, Placement, effective_cluster, messages_of_job, usual_messages
from trainworks.plan.search import search_layouts
from trainworks.plan.sizing.facility import nodes_per_rack as usual_nodes_per_rack
from trainworks.plan.sizing.facility import purchase_of, room_lines


def network(
    run: RunInput | None = None,
    *,
    settings: Settings = NO_SETTINGS,
    on: str | None = None,
    topology: str = "auto",
    oversubscription: Quantity | None = None,
    switch: str | None = None,
    spare_slots: int = 0,
    nodes_per_rack: int | None = None,
    switch_price: Quantity | None = None,
    cable_price: Quantity | None = None,
    transceiver_price: Quantity | None = None,
    nic_price: Quantity | None = None,
    switch_power: float | None = None,
) -> NetworkPlan:
    """Design the network of a cluster, and compare the topologies that could be built instead.

    Args:
        run: a run file, whose messages are timed; usual messages without one.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        on: description of the cluster; that of the run file when left out.
        topology: name of a topology, or `auto`.
        oversubscription: links down over links up of a leaf, at most: `"2:1"` or 2; that of the cluster when left out.
        switch: of the catalogue, or ports such as `64x 400 Gb/s`.
        spare_slots: places for nodes that a fabric manager takes.
        nodes_per_rack: for the lengths of cables; as many as air cools when left out.
        switch_price: USD for one switch, instead of the catalogue's.
        cable_price: USD for one cable, without transceivers.
        transceiver_price: USD for one transceiver, twin-port or not, instead of the catalogue's.
        nic_price: USD for one NIC; a node is priced with its NICs when left out.
        switch_power: watts of one switch, instead of the catalogue's.

    Raises:
        UsageError: an argument is not valid, no cluster is given, or the topology does not hold it.
        EnvironmentProblem: no layout of the run fits.

    >>> network(on="16 nodes of DGX A100").design.topology
    'star'
    """
    if switch_power is not None and not (math.isfinite(switch_power) and switch_power >= 0):
        raise ArgumentError(f"{switch_power:g} is not a power in watts", argument="switch_power")
    ratio = quantity("oversubscription", oversubscription, _parse_ratio)
    check_settings(run, settings)
    run_file, source = (None, None) if run is None else load_run(run, settings)
    cluster = _cluster(run_file, source, on)
    if ratio is not None and cluster.oversubscription not in (1.0, ratio):
        message = f"`{cluster.name}` has an oversubscription of {cluster.oversubscription:g}:1, not {ratio:g}:1"
        raise ArgumentError(message, argument="oversubscription", hint="give it once")
    model = None if switch is None else find_switch(switch)
    design = design_network(cluster, topology=topology, oversubscription=ratio, switch=model, spare_slots=spare_slots)
    plan = None
    if run_file is not None:  # as if the network of the design did not block
        free = design.cluster.model_copy(update={"oversubscription": 1.0, "spread_share": 1.0})
        plan = plan_cluster(run_file.model_copy(update={"goal": Goal()}), source, cluster=free)
    # of the job's fastest layout; usual sizes without a job, or where it sends none over the network
    messages = (messages_of_job(plan.job, plan.best[0]) if plan else []) or usual_messages(design.cluster)
    said = {"switch": switch_price, "cable": cable_price, "transceiver": transceiver_price, "nic": nic_price}
    each = {part: money(f"{part}_price", price, zero=True) for part, price in said.items()}
    prices = NetworkPrices(
        switch_usd=usd_of(each["switch"]),
        cable_usd=usd_of(each["cable"]),
        transceiver_usd=usd_of(each["transceiver"]),
        nic_usd=usd_of(each["nic"]),
        exchange=exchange_for(*each.values()),
        switch_power_w=switch_power,
    )
    power = power_of_switches(design, prices)
    return NetworkPlan(
        design=design,
        others=topologies_compared(
            cluster, oversubscription=ratio, switch=design.switch or model, spare_slots=design.spare_slots
        ),
        messages=messages,
        step_times_s=_step_times(plan, design),
        support=support_networks(design, nodes_per_rack=nodes_per_rack or usual_nodes_per_rack(design.cluster)),
        nodes_per_rack=nodes_per_rack or usual_nodes_per_rack(design.cluster),
        room=room_lines(design.cluster, nodes_per_rack, network_w=0.0 if power is None else power.value),
        prices=prices,
        purchase=purchase_of(design.cluster),
    )


def _cluster(run_file: RunFile | None, source: Source | None, on: str | None) -> ClusterDescription:
    if on is not None:
        return cluster_argument(on)
    if run_file is None or run_file.cluster.of is None:
        raise UsageError("no cluster to design a network for", hint="describe one: `--on '16 nodes of DGX A100'`")
    return described_cluster(run_file, source)


def _step_times(plan: ClusterPlan | None, design: NetworkDesign) -> dict[Placement, float]:
    """Seconds of a step with the layout that is fastest on this network, by the placement of ranks."""
    if plan is None:
        return {}
    times: dict[Placement, float] = {}
    for placement in PLACEMENTS:
        job = replace(plan.job, cluster=effective_cluster(plan.job.cluster, design, placement))
        times[placement] = float(search_layouts(job, plan.global_batch, {}, keep=1).seconds[0])
    return times


def _parse_ratio(text: str) -> float:
    """Read `2:1` or `2` as 2."""
    down, _, up = text.partition(":")
    try:
        return float(down) / float(up or 1)
    except (ValueError, ZeroDivisionError):
        raise QuantityError(f"`{text}` is not a ratio", hint="write it like `2:1`") from None
