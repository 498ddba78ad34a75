"""`trainworks network`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Settings
from trainworks.cli.files import WriteStack, write_file, write_proposed_stack
from trainworks.cli.options import AsJson, check_writable, option_errors, read_settings
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.errors import UsageError

TOPOLOGIES = "star, spine-leaf, 3-tier, rail-optimised, rail-only, multi-plane, dragonfly, dragonfly+, ring, torus"


def network_command(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file, whose messages are timed.")
    ] = None,
    settings: Settings = None,
    on: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Cluster, e.g. `16 nodes of DGX A100`.")] = None,
    topology: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Topology: auto, {TOPOLOGIES}.",
            show_default=False,
        ),
    ] = "auto",
    oversubscription: Annotated[
        str | None,
        typer.Option(
            metavar="RATIO",
            help="Largest ratio of links down to links up of a leaf, e.g. `2:1`; that of the cluster by default.",
        ),
    ] = None,
    switch: Annotated[
        str | None, typer.Option(metavar="SWITCH", help="Switch of the catalogue, or `64x 400 Gb/s`.")
    ] = None,
    spare_slots: Annotated[
        int, typer.Option(metavar="N", help="Ports for nodes that other equipment uses, such as a fabric manager.")
    ] = 0,
    nodes_per_rack: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="For the lengths of cables; as many as air cools when left out."),
    ] = None,
    draw: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a drawing: .svg, or .dot (Graphviz).")
    ] = None,
    cables: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the cable plan as CSV.")] = None,
    bill: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the order list as CSV.")] = None,
    write_stack: WriteStack = None,
    switch_price: Annotated[
        str | None,
        typer.Option(
            "--switch-price", metavar="USD", help="Price of a switch, `30000 USD`; that of the catalogue by default."
        ),
    ] = None,
    cable_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a cable, without transceivers.")
    ] = None,
    transceiver_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a transceiver; that of the catalogue by default.")
    ] = None,
    nic_price: Annotated[
        str | None, typer.Option(metavar="USD", help="Price of a NIC; part of the node by default.")
    ] = None,
    switch_power: Annotated[
        float | None,
        typer.Option(
            "--switch-power", metavar="WATTS", min=0, help="Power of a switch; that of the catalogue by default."
        ),
    ] = None,
    html: Html = None,
    pdf: Pdf = None,
    explain: Annotated[str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prints the best topology, the alternatives, and the time of a job's messages on each."""
    _check_files(draw, cables)
    check_pages(html, pdf)
    check_writable(bill, "--bill")
    check_writable(write_stack, "--write-stack")
    with option_errors():
        plan = trainworks.network(
            run_file,
            settings=read_settings(settings),
            on=on,
            topology=topology,
            oversubscription=oversubscription,
            switch=switch,
            spare_slots=spare_slots,
            nodes_per_rack=nodes_per_rack,
            switch_price=switch_price,
            cable_price=cable_price,
            transceiver_price=transceiver_price,
            nic_price=nic_price,
            switch_power=switch_power,
        )
    if cables is not None:
        write_file(cables, plan.cables_csv, "--cables")
    if bill is not None:
        write_file(bill, plan.bill_csv, "--bill")
    if draw is not None:
        from trainworks.report.network_drawing import network_drawing

        write_file(draw, network_drawing(plan, draw.suffix), "--draw")
    if write_stack is not None:
        write_proposed_stack(plan, write_stack)
    show(plan, as_json=as_json, figure=explain, html=html, pdf=pdf)


def _check_files(draw: Path | None, cables: Path | None) -> None:
    check_writable(draw, "--draw")
    check_writable(cables, "--cables")
    if draw is not None and draw.suffix not in (".svg", ".dot"):
        raise UsageError(f"`{draw}` is neither .svg nor .dot", place="--draw", hint="try `--draw network.svg`")
