"""`trainworks plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainworks.api.arguments import blamed_on, check_writable, on_cluster
from trainworks.api.cluster_layout import parse_layout
from trainworks.api.cluster_plan import ClusterPlan, plan_cluster
from trainworks.api.planned_model import preset_shape
from trainworks.api.resolve import resolve
from trainworks.cli.cluster_plan_view import (
    explanation_as_json,
    plan_as_json,
    print_cluster_plan,
    print_explanation,
)
from trainworks.cli.launch import Nodes, ProcessesPerNode, Recalibrate, Wanted, wanted
from trainworks.cli.options import AsJson, RunFilePath, RunsOption, runs_folder, wide_console
from trainworks.cli.plan_view import print_plan
from trainworks.config.run_file import Goal, RunFile
from trainworks.errors import UsageError
from trainworks.plan.prediction import Prediction, describe_layout
from trainworks.report.console import SafeConsole
from trainworks.report.plan_page import PlannedLayout, write_plan_page
from trainworks.report.printable import say

__all__ = ["command"]

On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="Plan for this cluster: `4x p4d.24xlarge`.")]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="LAYOUT", help="Why not this one: `tp=8,pp=4,micro_batch=1`.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Write where time and memory go as an HTML page.")
]

_ONLY_PLANNED = (
    "note: a preset is planned and not trained here, because it is a shape without a tokenizer and weights; to train "
    "it, name a checkpoint folder or hub id in `workload.model.hf`, or give its dimensions"
)

Sizes = Annotated[bool, typer.Option("--sizes", help="Plan for fewer nodes, too: time, memory and accelerators.")]


def command(
    run_file: RunFilePath,
    on: On = None,
    explain: Explain = None,
    plot: Plot = None,
    sizes: Sizes = False,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    recalibrate: Recalibrate = False,
) -> None:
    """For this machine, which the first plan measures for a few seconds; or for any cluster that you can describe."""
    asked = wanted([str(run_file)], nodes=nodes, nproc=nproc, name=None)
    described = on_cluster(asked.run_file, on)
    if described.cluster.engine == "described":
        _check_options({"--nodes": nodes, "--nproc": nproc, "--recalibrate": recalibrate or None})
        _plan_described(asked, described, explain, plot, sizes=sizes, as_json=as_json)
        return
    if explain is not None or plot is not None or sizes:
        told = "--explain, --plot and --sizes are for a described cluster"
        raise UsageError(told, hint="name one with --on or in `cluster`")
    folder = runs_folder(runs, asked.run_file.checkpoint.to)
    shape = preset_shape(asked.run_file, asked.source)
    resolved = resolve(
        asked.run_file,
        asked.source,
        run_id=asked.run_file.name,
        runs=folder,
        calibrate_again=recalibrate,
        shape=shape,
    )
    if resolved.plan is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    if as_json:
        typer.echo(resolved.plan.model_dump_json(indent=2))
    else:
        print_plan(resolved, SafeConsole())
    if shape is not None:
        say(_ONLY_PLANNED, err=True)


def _check_options(given: dict[str, int | None]) -> None:
    """Options of this machine say nothing of a cluster that is described."""
    if named := [name for name, value in given.items() if value is not None]:
        are = f"{' and '.join(named)} {'is' if len(named) == 1 else 'are'}"
        raise UsageError(
            f"{are} for this machine, and the cluster is a described one",
            hint='say it in the description: `--on "4 nodes of 8x H100"`; `trainworks calibrate` takes measurements',
        )


def _plan_described(
    asked: Wanted, run_file: RunFile, explain: str | None, plot: Path | None, *, sizes: bool, as_json: bool
) -> None:
    check_writable(plot, "--plot")
    layout = None if explain is None else parse_layout(explain)
    fastest = plan_cluster(run_file, asked.source, all_sizes=sizes)
    if layout is None:
        _plot(plot, run_file.name, fastest, fastest.best)
        if as_json:
            typer.echo(json.dumps(plan_as_json(fastest), indent=2))
        else:
            print_cluster_plan(fastest, wide_console())
        return
    this = plan_cluster(run_file.model_copy(update={"goal": Goal()}), asked.source, layout=layout)
    _plot(plot, run_file.name, fastest, [this.best[0], fastest.best[0]])
    if as_json:
        typer.echo(json.dumps(explanation_as_json(this, fastest), indent=2))
    else:
        print_explanation(this, fastest, wide_console())


def _plot(plot: Path | None, title: str, plan: ClusterPlan, rows: list[Prediction]) -> None:
    if plot is None:
        return
    about = f"{plan.job.cluster.name}, {plan.global_batch} sequences per step, {plan.job.precision}"
    with blamed_on("--plot", plot):
        write_plan_page(plot, title=title, about=about, layouts=[_drawn(row) for row in rows])


def _drawn(row: Prediction) -> PlannedLayout:
    terms = ("weights", "gradients", "optimizer", "activations", "logits", "working")
    return PlannedLayout(
        name=describe_layout(row.layout),
        step_time_s=row.step_time_s,
        low_s=row.low_s,
        high_s=row.high_s,
        terms_s=row.terms_s,
        memory_bytes={term: getattr(row.memory, f"{term}_bytes") for term in terms},
    )
