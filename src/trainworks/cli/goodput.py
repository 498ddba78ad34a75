"""`trainworks goodput`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import check_writable, on_cluster, option_value, said_by
from trainworks.api.goodput import Wishes, forecast
from trainworks.api.goodput_job import Asked, ask, ask_without_run_file
from trainworks.catalog.cluster import parse_cluster
from trainworks.cli.goodput_view import forecast_as_json, print_forecast, write_plot
from trainworks.cli.options import AsJson, wide_console
from trainworks.config.load import load_run_file
from trainworks.errors import UsageError
from trainworks.report.explain import explain as print_explanation
from trainworks.units import parse_duration, parse_share

__all__ = ["command"]

RunFilePath = Annotated[Path | None, typer.Argument(metavar="[RUN_FILE]", help="YAML run file; or --on and --work.")]
On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="The cluster: `2048 nodes of DGX H100`.")]
Work = Annotated[
    str | None,
    typer.Option("--work", metavar="TIME", help="Instead of a run file: time on all nodes, without failures."),
]
Deadline = Annotated[str | None, typer.Option("--deadline", metavar="TIME", help="How likely is the run done by then?")]
Spares = Annotated[int | None, typer.Option("--spares", min=0, help="Nodes in reserve; those needed when left out.")]
NodeMttf = Annotated[
    str | None,
    typer.Option("--node-mttf", metavar="TIME", help="Mean time between failures of one node; a published fleet's."),
]
Save = Annotated[
    str | None,
    typer.Option("--save", metavar="TIME", help="Stand-still for a checkpoint; from its size when left out."),
]
Write = Annotated[
    str | None,
    typer.Option(
        "--write",
        metavar="TIME",
        help="From then until it can be restored; from its size when left out, 0s for a synchronous save.",
    ),
]
Every = Annotated[
    str | None, typer.Option("--every", metavar="TIME", help="Between checkpoints; the optimal interval when left out.")
]
Detect = Annotated[
    str | None,
    typer.Option("--detect", metavar="TIME", help="Until a failure is noticed; an assumption when left out."),
]
Restart = Annotated[
    str | None, typer.Option("--restart", metavar="TIME", help="From then until training goes on; an assumption, too.")
]
Repair = Annotated[
    str | None, typer.Option("--repair", metavar="TIME", help="Until a failed node is a spare; an assumption, too.")
]
Elastic = Annotated[
    int | None, typer.Option("--elastic", metavar="NODES", min=1, help="Go on with fewer nodes, down to these.")
]
Slow = Annotated[str | None, typer.Option("--slow", metavar="TIME", help="Mean time until a node becomes a straggler.")]
SlowSpeed = Annotated[
    str, typer.Option("--slow-speed", metavar="SHARE", help="Speed of a job that has a straggler, as a share.")
]
SlowFound = Annotated[str, typer.Option("--slow-found", metavar="TIME", help="Until a straggler is replaced.")]
Spot = Annotated[str | None, typer.Option("--spot", metavar="TIME", help="Mean life of preemptible capacity.")]
Notice = Annotated[str, typer.Option("--notice", metavar="TIME", help="Warning before it is taken.")]
Wait = Annotated[str, typer.Option("--wait", metavar="TIME", help="Mean wait for new capacity.")]
Queue = Annotated[str, typer.Option("--queue", metavar="TIME", help="Wait before the first start.")]
Trials = Annotated[int, typer.Option("--trials", min=10, max=100_000, help="Simulated runs.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="The same seed gives the same runs.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the finish as an HTML page.")]
Explain = Annotated[str | None, typer.Option("--explain", metavar="FIGURE", help="How a figure comes about.")]


def command(
    run_file: RunFilePath = None,
    on: On = None,
    work: Work = None,
    deadline: Deadline = None,
    spares: Spares = None,
    node_mttf: NodeMttf = None,
    save: Save = None,
    write: Write = None,
    every: Every = None,
    detect: Detect = None,
    restart: Restart = None,
    repair: Repair = None,
    elastic: Elastic = None,
    slow: Slow = None,
    slow_speed: SlowSpeed = "94%",
    slow_found: SlowFound = "1d",
    spot: Spot = None,
    notice: Notice = "0s",
    wait: Wait = "0s",
    queue: Queue = "0s",
    trials: Trials = 1000,
    seed: Seed = 1,
    plot: Plot = None,
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Formulas for the mean, and a simulation of every failure, repair and restart for the rest."""
    check_writable(plot, "--plot")
    wishes = Wishes(
        deadline_s=_seconds("--deadline", deadline),
        spares=spares,
        node_mttf_s=_seconds("--node-mttf", node_mttf),
        save_s=_seconds("--save", save, zero=True),
        write_s=_seconds("--write", write, zero=True),
        every_s=_seconds("--every", every),
        detect_s=_seconds("--detect", detect, zero=True),
        restart_s=_seconds("--restart", restart, zero=True),
        repair_s=_seconds("--repair", repair, zero=True),
        fewest_nodes=elastic,
        slow_mttf_s=_seconds("--slow", slow),
        slow_speed=_share("--slow-speed", slow_speed),
        slow_found_s=_seconds("--slow-found", slow_found) or 0.0,
        capacity_life_s=_seconds("--spot", spot),
        notice_s=_seconds("--notice", notice, zero=True),
        capacity_wait_s=_seconds("--wait", wait, zero=True),
        queue_s=_seconds("--queue", queue, zero=True) or 0.0,
        trials=trials,
        seed=seed,
    )
    found = forecast(_asked(run_file, on, work), wishes)
    write_plot(plot, found)
    if explain is not None:
        typer.echo(print_explanation(found.figures, explain))
    elif as_json:
        typer.echo(json.dumps(forecast_as_json(found), indent=2))
    else:
        print_forecast(found, wide_console())


def _asked(run_file: Path | None, on: str | None, work: str | None) -> Asked:
    """The job: of a run file, or a cluster and so much work."""
    if run_file is None:
        if on is None or work is None:
            raise UsageError(
                "a run file is missing, or `--on CLUSTER` and `--work TIME`",
                hint='trainworks goodput --on "2048 nodes of DGX H100" --work 54d',
            )
        with said_by("--on"):
            cluster = parse_cluster(on)
        return ask_without_run_file(cluster, _seconds("--work", work) or 0.0)
    if work is not None:
        raise UsageError("the work of a run file is planned; `--work` is for a cluster alone", place="--work")
    found, source = load_run_file(run_file)
    return ask(on_cluster(found, on), source)


def _seconds(option: str, text: str | None, *, zero: bool = False) -> float | None:
    return option_value(option, parse_duration, text, zero=zero)


def _share(option: str, text: str) -> float:
    return option_value(option, parse_share, text) or 0.0
