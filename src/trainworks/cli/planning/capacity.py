"""`trainworks capacity`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, check_writable, option_errors
from trainworks.cli.output import show, write_file
from trainworks.errors import UsageError
from trainworks.report.rendering.progress_bar import waiting

__all__ = ["command"]

File = Annotated[Path, typer.Argument(metavar="TRACE.csv|TEAMS.yaml", help="A trace of jobs, or teams.")]
NodeName = Annotated[str | None, typer.Option("--node", help="Node of the catalogue, e.g. `DGX H100`.")]
Size = Annotated[
    int | None,
    typer.Option("--accelerators-per-node", min=1, max=1024, help="Accelerators per node, instead of --node."),
]
Fixed = Annotated[int | None, typer.Option("--fixed", min=0, max=100_000, help="Fixed nodes, owned or reserved.")]
OnDemandMax = Annotated[
    int | None, typer.Option("--on-demand-max", min=0, max=100_000, help="Largest number of on-demand nodes.")
]
SpotMax = Annotated[int | None, typer.Option("--spot-max", min=0, max=100_000, help="Largest number of spot nodes.")]
Price = Annotated[float | None, typer.Option("--price", help="On-demand price, USD per accelerator hour.")]
SpotPrice = Annotated[float | None, typer.Option("--spot-price", help="Spot price, USD per accelerator hour.")]
OwnPrice = Annotated[float | None, typer.Option("--own-price", help="Fixed nodes, USD per accelerator hour.")]
Latency = Annotated[str, typer.Option("--start-latency", help="Time from ordering a node to its first job.")]
Timeout = Annotated[str, typer.Option("--idle-timeout", help="Time after which an idle elastic node is released.")]
Life = Annotated[str, typer.Option("--spot-node-life", help="Mean life of a spot node.")]
Wait = Annotated[
    str | None, typer.Option("--wait", help="Wait that 90 % of a team's jobs do not exceed; 4h when left out.")
]
Deadlines = Annotated[
    str | None,
    typer.Option("--deadlines", metavar="SHARE", help="Share of each team's deadlines to meet, instead of --wait."),
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write cost against wait as an HTML page.")]
SaveTrace = Annotated[Path | None, typer.Option("--save-trace", metavar="FILE", help="Write the sampled jobs as CSV.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the sampled jobs and of the lives of spot nodes.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Print the derivation of a figure.")]


def command(
    file: File,
    node: NodeName = None,
    accelerators_per_node: Size = None,
    fixed: Fixed = None,
    on_demand_max: OnDemandMax = None,
    spot_max: SpotMax = None,
    price: Price = None,
    spot_price: SpotPrice = None,
    own_price: OwnPrice = None,
    start_latency: Latency = "5m",
    idle_timeout: Timeout = "15m",
    spot_life: Life = "8h",
    wait: Wait = None,
    deadlines: Deadlines = None,
    plot: Plot = None,
    save_trace: SaveTrace = None,
    seed: Seed = 1,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Prints how many fixed nodes meet a target, their spare capacity, and what elastic nodes would change."""
    check_writable(plot, "--plot")
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
    show(plan, as_json=as_json, figure=explain, plot=plot)
