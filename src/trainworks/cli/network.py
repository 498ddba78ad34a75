"""`trainworks network`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import blamed_on, check_writable, on_cluster, option_value, said_by
from trainworks.api.cluster_plan import ClusterPlan, plan_cluster
from trainworks.api.cluster_scales import search_layouts
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.cli.network_view import Answer, answer_as_json, print_answer
from trainworks.cli.options import AsJson, wide_console
from trainworks.config.load import Source, load_run_file
from trainworks.config.run_file import Goal, RunFile
from trainworks.errors import QuantityError, UsageError
from trainworks.files import write_atomic
from trainworks.plan.network.bill import Prices
from trainworks.plan.network.cables import cables_as_csv
from trainworks.plan.network.design import NetworkDesign, design_network, topologies_compared
from trainworks.plan.network.messages import Message, messages_of_job, usual_messages
from trainworks.plan.network.support import support_networks
from trainworks.plan.network.switches import find_switch
from trainworks.plan.network.topologies import TOPOLOGIES
from trainworks.plan.network.traffic import PLACEMENTS, Placement, effective_cluster
from trainworks.plan.sizing.facility import nodes_per_rack as usual_nodes_per_rack
from trainworks.plan.uncertainty import PRIOR
from trainworks.report.explain import explain as print_explanation
from trainworks.report.network_dot import network_dot
from trainworks.report.network_drawing import network_svg
from trainworks.units import parse_usd

__all__ = ["command"]

RunFilePath = Annotated[Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file, for its messages.")]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster: `16 nodes of DGX A100`.")]
TopologyName = Annotated[
    str, typer.Option("--topology", metavar="NAME", help=f"auto, {', '.join(TOPOLOGIES)}.", show_default=False)
]
Oversubscription = Annotated[
    str, typer.Option("--oversubscription", metavar="RATIO", help="Links down to links up of a leaf, at most: `2:1`.")
]
SwitchName = Annotated[
    str | None, typer.Option("--switch", metavar="SWITCH", help="Of the catalogue, or `64x 400 Gb/s`.")
]
SpareSlots = Annotated[
    int, typer.Option("--spare-slots", metavar="N", help="Places for nodes that a fabric manager takes.")
]
PerRack = Annotated[
    int | None,
    typer.Option("--nodes-per-rack", metavar="N", min=1, help="For the lengths of cables. As many as air cools."),
]
Draw = Annotated[Path | None, typer.Option("--draw", metavar="FILE", help="Write a drawing: .svg, or .dot (Graphviz).")]
Cables = Annotated[Path | None, typer.Option("--cables", metavar="FILE", help="Write the cable plan as CSV.")]
Price = Annotated[str | None, typer.Option("--switch-price", metavar="USD", help="Of one switch: `30000 USD`.")]
CablePrice = Annotated[str | None, typer.Option("--cable-price", metavar="USD", help="Of one, without transceivers.")]
TransceiverPrice = Annotated[str | None, typer.Option("--transceiver-price", metavar="USD", help="A cable has two.")]
NicPrice = Annotated[str | None, typer.Option("--nic-price", metavar="USD", help="Of one NIC.")]
Power = Annotated[float | None, typer.Option("--switch-power", metavar="WATTS", min=0, help="Of one switch.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="How a figure comes about.")]


def command(
    run_file: RunFilePath = None,
    on: On = None,
    topology: TopologyName = "auto",
    oversubscription: Oversubscription = "1:1",
    switch: SwitchName = None,
    spare_slots: SpareSlots = 0,
    nodes_per_rack: PerRack = None,
    draw: Draw = None,
    cables: Cables = None,
    switch_price: Price = None,
    cable_price: CablePrice = None,
    transceiver_price: TransceiverPrice = None,
    nic_price: NicPrice = None,
    switch_power: Power = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """The one that suits, all that could be built instead, and what each takes for the messages of a job."""
    _check_files({"--draw": draw, "--cables": cables})
    if switch_power is not None and not math.isfinite(switch_power):
        raise UsageError(f"{switch_power:g} watts of a switch", place="--switch-power", hint="write a number")
    taper = option_value("--oversubscription", _ratio, oversubscription) or 0.0
    loaded = None if run_file is None else load_run_file(run_file)
    cluster = _cluster(loaded, on)
    model = None if switch is None else find_switch(switch)
    design = design_network(cluster, topology=topology, oversubscription=taper, switch=model, spare_slots=spare_slots)
    others = topologies_compared(cluster, oversubscription=taper, switch=model, spare_slots=spare_slots)
    plan = _planned(loaded, design)
    per_rack = nodes_per_rack or usual_nodes_per_rack(design.cluster)
    answer = Answer(
        design=design,
        others=others,
        messages=_messages(plan, design),
        step_times_s=_step_times(plan, design),
        support=support_networks(design, nodes_per_rack=per_rack),
        prices=Prices(
            switch_usd=option_value("--switch-price", parse_usd, switch_price, zero=True),
            cable_usd=option_value("--cable-price", parse_usd, cable_price, zero=True),
            transceiver_usd=option_value("--transceiver-price", parse_usd, transceiver_price, zero=True),
            nic_usd=option_value("--nic-price", parse_usd, nic_price, zero=True),
            switch_power_w=switch_power,
        ),
    )
    if cables is not None:
        _write(cables, "--cables", cables_as_csv(design, nodes_per_rack=per_rack))
    if draw is not None:
        drawing = network_dot if draw.suffix == ".dot" else network_svg
        _write(draw, "--draw", drawing(design, answer.support))
    if explain is not None:
        typer.echo(print_explanation(answer.figures, explain))
    elif as_json:
        typer.echo(json.dumps(answer_as_json(answer), indent=2))
    else:
        print_answer(answer, wide_console())


def _cluster(loaded: tuple[RunFile, Source] | None, on: str | None) -> ClusterDescription:
    if on is not None:
        with said_by("--on"):
            return parse_cluster(on)
    described = loaded[0].cluster.of if loaded else None
    if described is None:
        raise UsageError("no cluster to design a network for", hint="name one: `--on '16 nodes of DGX A100'`")
    return parse_cluster(described)


def _planned(loaded: tuple[RunFile, Source] | None, design: NetworkDesign) -> ClusterPlan | None:
    """The job on the cluster of the design, as if its network blocked nothing; None without a job."""
    if loaded is None:
        return None
    run_file, source = loaded
    return plan_cluster(on_cluster(run_file, design.cluster.name).model_copy(update={"goal": Goal()}), source)


def _messages(plan: ClusterPlan | None, design: NetworkDesign) -> list[Message]:
    """Of the job's fastest layout; some usual sizes without a job, or where it sends nothing over the network."""
    usual = usual_messages(design.cluster)
    return usual if plan is None else messages_of_job(plan.job, plan.best[0]) or usual


def _step_times(plan: ClusterPlan | None, design: NetworkDesign) -> dict[Placement, float]:
    """Seconds of a step with the layout that is fastest on this network, by the placement of ranks."""
    if plan is None:
        return {}
    times: dict[Placement, float] = {}
    for placement in PLACEMENTS:
        job = replace(plan.job, cluster=effective_cluster(plan.job.cluster, design, placement))
        found = search_layouts(job, plan.global_batch, {}, keep=1, belief=PRIOR)
        times[placement] = float(found.times.total_s[0])
    return times


def _ratio(text: str) -> float:
    """2 of `2:1` or `2`."""
    down, _, up = text.partition(":")
    try:
        return float(down) / float(up or 1)
    except (ValueError, ZeroDivisionError):
        raise QuantityError(f"`{text}` is no ratio", hint="write it like `2:1`") from None


def _check_files(files: dict[str, Path | None]) -> None:
    for option, path in files.items():
        check_writable(path, option)
        if option == "--draw" and path is not None and path.suffix not in (".svg", ".dot"):
            raise UsageError(f"`{path}` is neither .svg nor .dot", place=option, hint="try `--draw network.svg`")


def _write(path: Path, option: str, text: str) -> None:
    with blamed_on(option, path):
        write_atomic(path, text)
