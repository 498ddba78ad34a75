"""`trainworks capacity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.files import write_file
from trainworks.cli.options import AsJson, check_writable, option_errors
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.errors import UsageError
from trainworks.report.rendering.progress_bar import waiting


def capacity_command(
    file: Annotated[Path, typer.Argument(metavar="TRACE.csv|TEAMS.yaml", help="A trace of jobs, or teams.")],
    node: Annotated[str | None, typer.Option(help="Node of the catalogue, e.g. `DGX H100`.")] = None,
    accelerators_per_node: Annotated[
        int | None, typer.Option(min=1, max=1024, help="Accelerators per node, instead of --node.")
    ] = None,
    fixed: Annotated[
        int | None, typer.Option("--fixed", min=0, max=100_000, help="Fixed nodes, owned or reserved.")
    ] = None,
    on_demand_max: Annotated[
        int | None, typer.Option(min=0, max=100_000, help="Largest number of on-demand nodes.")
    ] = None,
    spot_max: Annotated[int | None, typer.Option(min=0, max=100_000, help="Largest number of spot nodes.")] = None,
    price: Annotated[float | None, typer.Option(help="On-demand price, USD per accelerator hour.")] = None,
    spot_price: Annotated[float | None, typer.Option(help="Spot price, USD per accelerator hour.")] = None,
    own_price: Annotated[float | None, typer.Option(help="Fixed nodes, USD per accelerator hour.")] = None,
    start_latency: Annotated[str, typer.Option(help="Time from ordering a node to its first job.")] = "5m",
    idle_timeout: Annotated[str, typer.Option(help="Time after which an idle elastic node is released.")] = "15m",
    spot_life: Annotated[str, typer.Option("--spot-node-life", help="Mean life of a spot node.")] = "8h",
    wait: Annotated[
        str | None, typer.Option("--wait", help="Wait that 90 % of a team's jobs do not exceed; 4h when left out.")
    ] = None,
    deadlines: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Share of each team's deadlines to meet, instead of --wait.")
    ] = None,
    html: Html = None,
    pdf: Pdf = None,
    save_trace: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the sampled jobs as CSV.")] = None,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Seed of the sampled jobs and of the lives of spot nodes.")
    ] = 1,
    explain: Annotated[str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure.")] = None,
    as_json: AsJson = False,
) -> None:
    """Prints how many fixed nodes meet a target, their spare capacity, and what elastic nodes would change."""
    check_pages(html, pdf)
    check_writable(save_trace, "--save-trace")
    with option_errors(), waiting("replaying") as progress:
        plan = trainworks.capacity(
            file,
            node=node,
            accelerators_per_node=accelerators_per_node,
            fixed=fixed,
            on_demand_max=on_demand_max,
            spot_max=spot_max,
            price=price,
            spot_price=spot_price,
            own_price=own_price,
            start_latency=start_latency,
            idle_timeout=idle_timeout,
            spot_node_life=spot_life,
            wait=wait,
            deadlines=deadlines,
            seed=seed,
            progress=progress,
        )
    if save_trace is not None:
        if plan.sampled_trace is None:
            raise UsageError(f"`{file}` is a trace already", place="--save-trace", hint="give a YAML file of teams")
        write_file(save_trace, plan.sampled_trace, "--save-trace")
    show(plan, as_json=as_json, figure=explain, html=html, pdf=pdf)
