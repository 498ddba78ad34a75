"""`trainworks goodput`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, check_writable, option_errors
from trainworks.cli.output import show
from trainworks.report.rendering.progress_bar import waiting

__all__ = ["command"]

_OLD_NAMES = {"write": "save-write", "notice": "spot-notice", "wait": "spot-wait"}
CONTEXT_SETTINGS = {"token_normalize_func": lambda name: _OLD_NAMES.get(name, name)}
"""Options keep working under their old names."""

RunFilePath = Annotated[Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; or --on and --work.")]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="Cluster, e.g. `2048 nodes of DGX H100`.")]
Work = Annotated[
    str | None,
    typer.Option("--work", metavar="TIME", help="Failure-free time on all nodes, instead of a run file."),
]
Deadline = Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="Print the chance of meeting it.")]
Spares = Annotated[
    int | None, typer.Option("--spares", min=0, help="Nodes in reserve; as many as are needed when left out.")
]
NodeMttf = Annotated[
    str | None,
    typer.Option(
        "--node-mttf",
        metavar="TIME",
        help="Mean time between failures of one node; that of a published fleet when left out.",
    ),
]
Save = Annotated[
    str | None,
    typer.Option("--save", metavar="TIME", help="Time a checkpoint stops the training; from its size when left out."),
]
SaveWrite = Annotated[
    str | None,
    typer.Option(
        "--save-write",
        metavar="TIME",
        help="Time from then until it can be restored; from its size when left out, 0s for a synchronous save.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option("--every", metavar="TIME", help="Interval between checkpoints; the optimal one when left out."),
]
Detect = Annotated[
    str | None,
    typer.Option(
        "--detect", metavar="TIME", help="Time until a failure is detected; from the catalogue when left out."
    ),
]
Restart = Annotated[
    str | None,
    typer.Option(
        "--restart",
        metavar="TIME",
        help="Time from detection until training resumes; from the catalogue when left out.",
    ),
]
Repair = Annotated[
    str | None,
    typer.Option(
        "--repair", metavar="TIME", help="Time until a failed node is a spare; from the catalogue when left out."
    ),
]
Elastic = Annotated[
    int | None,
    typer.Option("--elastic", metavar="NODES", min=1, help="Continue with fewer nodes, down to this number."),
]
Slow = Annotated[str | None, typer.Option("--slow", metavar="TIME", help="Mean time until a node becomes a straggler.")]
SlowSpeed = Annotated[
    str, typer.Option("--slow-speed", metavar="SHARE", help="Relative speed of a job with a straggler.")
]
SlowFound = Annotated[str, typer.Option("--slow-found", metavar="TIME", help="Time until a straggler is replaced.")]
Spot = Annotated[str | None, typer.Option("--spot", metavar="TIME", help="Mean life of preemptible capacity.")]
SpotNotice = Annotated[str, typer.Option("--spot-notice", metavar="TIME", help="Warning before a preemption.")]
SpotWait = Annotated[str, typer.Option("--spot-wait", metavar="TIME", help="Mean wait for new capacity.")]
Queue = Annotated[str, typer.Option("--queue", metavar="TIME", help="Wait before the first start.")]
Trials = Annotated[int, typer.Option("--trials", min=10, max=100_000, help="Simulated runs.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of the simulation.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the finish times as an HTML page.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="Print the derivation of a figure.")]


def command(
    run_file: RunFilePath = None,
    on: On = None,
    work: Work = None,
    deadline: Deadline = None,
    spares: Spares = None,
    node_mttf: NodeMttf = None,
    save: Save = None,
    save_write: SaveWrite = None,
    every: Every = None,
    detect: Detect = None,
    restart: Restart = None,
    repair: Repair = None,
    elastic: Elastic = None,
    slow: Slow = None,
    slow_speed: SlowSpeed = "94%",
    slow_found: SlowFound = "1d",
    spot: Spot = None,
    spot_notice: SpotNotice = "0s",
    spot_wait: SpotWait = "0s",
    queue: Queue = "0s",
    trials: Trials = 1000,
    seed: Seed = 1,
    plot: Plot = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Formulas give the mean; a simulation of every failure, repair and restart gives the spread."""
    check_writable(plot, "--plot")
    with option_errors(), waiting("simulating") as progress:
        forecast = trainworks.goodput(
            run_file,
            on=on,
            work=work,
            deadline=deadline,
            spares=spares,
            node_mttf=node_mttf,
            save=save,
            save_write=save_write,
            every=every,
            detect=detect,
            restart=restart,
            repair=repair,
            elastic=elastic,
            slow=slow,
            slow_speed=slow_speed,
            slow_found=slow_found,
            spot=spot,
            spot_notice=spot_notice,
            spot_wait=spot_wait,
            queue=queue,
            trials=trials,
            seed=seed,
            progress=progress,
        )
    show(forecast, as_json=as_json, figure=explain, plot=plot)
