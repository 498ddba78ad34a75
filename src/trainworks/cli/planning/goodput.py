"""`trainworks goodput`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Settings
from trainworks.cli.options import AsJson, option_errors, read_settings
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.report.rendering.progress_bar import waiting

_time = partial(typer.Option, metavar="TIME")


def goodput_command(
    run_file: Annotated[
        Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; or --on and --work.")
    ] = None,
    settings: Settings = None,
    on: Annotated[str | None, typer.Option(metavar="CLUSTER", help="Cluster, e.g. `2048 nodes of DGX H100`.")] = None,
    work: Annotated[str | None, _time(help="Failure-free time on all nodes, instead of a run file.")] = None,
    deadline: Annotated[str | None, _time(help="Print the chance of meeting it.")] = None,
    spares: Annotated[
        int | None, typer.Option(min=0, help="Nodes in reserve; as many as are needed when left out.")
    ] = None,
    node_mttf: Annotated[
        str | None, _time(help="Mean time between failures of one node; that of a published fleet when left out.")
    ] = None,
    save: Annotated[
        str | None, _time(help="Time a checkpoint stops the training; from its size when left out.")
    ] = None,
    save_write: Annotated[
        str | None,
        _time(help="Time from then until it can be restored; from its size when left out, 0s for a synchronous save."),
    ] = None,
    every: Annotated[str | None, _time(help="Interval between checkpoints; the optimal one when left out.")] = None,
    detect: Annotated[
        str | None, _time(help="Time until a failure is detected; from the catalogue when left out.")
    ] = None,
    restart: Annotated[
        str | None, _time(help="Time from detection until training resumes; from the catalogue when left out.")
    ] = None,
    repair: Annotated[
        str | None, _time(help="Time until a failed node is a spare; from the catalogue when left out.")
    ] = None,
    elastic: Annotated[
        int | None, typer.Option(metavar="NODES", min=1, help="Continue with fewer nodes, down to this number.")
    ] = None,
    slow: Annotated[str | None, _time(help="Mean time until a node becomes a straggler.")] = None,
    slow_speed: Annotated[str, typer.Option(metavar="SHARE", help="Relative speed of a job with a straggler.")] = "94%",
    slow_found: Annotated[str, _time(help="Time until a straggler is replaced.")] = "1d",
    spot: Annotated[str | None, _time(help="Mean life of preemptible capacity.")] = None,
    spot_notice: Annotated[str, _time(help="Warning before a preemption.")] = "0s",
    spot_wait: Annotated[str, _time(help="Mean wait for new capacity.")] = "0s",
    queue: Annotated[str, _time(help="Wait before the first start.")] = "0s",
    trials: Annotated[int, typer.Option(min=10, max=100_000, help="Simulated runs.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulation.")] = 1,
    html: Html = None,
    pdf: Pdf = None,
    explain: Annotated[str | None, typer.Option(metavar="FIGURE", help="Print the derivation of a figure.")] = None,
    as_json: AsJson = False,
) -> None:
    """Formulas give the mean; a simulation of every failure, repair and restart gives the spread."""
    check_pages(html, pdf)
    with option_errors(), waiting("simulating") as progress:
        forecast = trainworks.goodput(
            run_file,
            settings=read_settings(settings),
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
    show(forecast, as_json=as_json, figure=explain, html=html, pdf=pdf)
