"""`trainworks plan`."""

from __future__ import annotations

import json
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from trainworks.catalog.cluster import parse_cluster
from trainworks.cli.cluster_plan_view import plan_as_json, print_cluster_plan, print_explanation
from trainworks.cli.cluster_planning import plan_cluster
from trainworks.cli.launch import Nodes, ProcessesPerNode, Recalibrate, Wanted, wanted
from trainworks.cli.options import AsJson, RunFilePath, RunsOption, runs_folder, wide_console
from trainworks.cli.plan_view import print_plan
from trainworks.cli.planning import resolve
from trainworks.errors import UsageError
from trainworks.plan.learning import fixed_of
from trainworks.plan.prediction import Prediction, describe_layout
from trainworks.report.plan_page import PlannedLayout, write_plan_page
from trainworks.spec.layout import Layout
from trainworks.spec.run_file import Goal, RunFile

__all__ = ["command", "named_degrees"]

On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="Plan for this cluster: `4x p4d.24xlarge`.")]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="LAYOUT", help="Why not this one: `tp=8,pp=4,micro_batch=1`.")
]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Write where time and memory go as an HTML page.")
]


def command(
    run_file: RunFilePath,
    on: On = None,
    explain: Explain = None,
    plot: Plot = None,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    recalibrate: Recalibrate = False,
) -> None:
    """For this machine, which the first plan measures for a few seconds; or for any cluster that you can describe."""
    asked = wanted([str(run_file)], nodes=nodes, nproc=nproc, name=None)
    cluster = asked.run_file.cluster
    if on is not None:
        parse_cluster(on)  # blamed here on the option, later on the run file
        cluster = cluster.model_copy(update={"engine": "described", "of": on})
    if cluster.engine == "described":
        described = asked.run_file.model_copy(update={"cluster": cluster})
        _plan_described(asked, described, explain, plot, as_json=as_json)
        return
    if explain is not None or plot is not None:
        raise UsageError("--explain and --plot are for a described cluster", hint="name one with --on or in `cluster`")
    folder = runs_folder(runs, asked.run_file.checkpoint.to)
    resolved = resolve(
        asked.run_file, asked.source, run_id=asked.run_file.name, runs=folder, calibrate_again=recalibrate
    )
    if resolved.plan is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    if as_json:
        typer.echo(resolved.plan.model_dump_json(indent=2))
    else:
        print_plan(resolved, Console())


def _plan_described(asked: Wanted, run_file: RunFile, explain: str | None, plot: Path | None, *, as_json: bool) -> None:
    plan = plan_cluster(run_file, asked.source)
    if plot is not None:
        about = f"{plan.job.cluster.name}, {plan.global_batch} sequences per step, {plan.job.precision}"
        write_plan_page(plot, title=run_file.name, about=about, layouts=[_drawn(row) for row in plan.best])
    if explain is not None:
        free = run_file.model_copy(update={"layout": None, "goal": Goal()})
        wanted_one = plan_cluster(free, asked.source, fixed=named_degrees(explain)).best[0]
        if as_json:
            both = {"asked": wanted_one.model_dump(mode="json"), "fastest": plan.best[0].model_dump(mode="json")}
            typer.echo(json.dumps(both, indent=2))
        else:
            print_explanation(wanted_one, plan.best[0], wide_console())
    elif as_json:
        typer.echo(json.dumps(plan_as_json(plan), indent=2))
    else:
        print_cluster_plan(plan, wide_console())


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


def named_degrees(text: str) -> dict[str, int]:
    """`tp=8,pp=4,recompute=full` as fields of the search; what is not named stays open.

    Raises:
        UsageError: a name that no layout has, or a value that it cannot have.
    """
    named = dict(pair.partition("=")[::2] for pair in text.replace(" ", "").split(",") if pair)
    if unknown := sorted(named.keys() - Layout.model_fields.keys()):
        near = get_close_matches(unknown[0], Layout.model_fields, n=1)
        known = ", ".join(Layout.model_fields)
        raise UsageError(
            f"no layout has `{unknown[0]}`", hint=f"did you mean `{near[0]}`?" if near else f"there are {known}"
        )
    try:
        layout = Layout.model_validate({name: int(v) if v.isdigit() else v for name, v in named.items()})
    except ValidationError as error:
        detail = error.errors()[0]
        raise UsageError(f"{detail['loc'][0]} `{detail['input']}`: {detail['msg'].lower()}") from None
    fixed = fixed_of(layout) | ({} if layout.zero == "auto" else {"zero": layout.zero})
    searched = {"offload_activations": "offload", "dp_replicate": "dp"}
    chosen = {searched.get(name, name) for name in named}
    if "dp_shard" in named:
        chosen |= {"zero"} | ({"dp"} if "dp_replicate" in named else set())
    elif "dp_replicate" in named:
        chosen |= {"zero", "dp_shard"}
    return {name: value for name, value in fixed.items() if name in chosen}
