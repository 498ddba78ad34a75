"""`trainworks plan`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

import trainworks
from trainworks.cli.arguments import On, Settings
from trainworks.cli.launch import Nodes, ProcessesPerNode, Recalibrate, Review, Tune, WithoutLearning
from trainworks.cli.options import (
    AsJson,
    RunFilePath,
    RunsOption,
    announce,
    option_errors,
    read_settings,
    refuse_unused,
)
from trainworks.cli.output import Html, Pdf, check_pages, show, show_findings, show_handover
from trainworks.report.rendering.printable import say
from trainworks.report.rendering.progress_bar import working

_NO_WEIGHTS = (
    "a preset has no tokenizer and no weights: it trains from random weights, if its dimensions describe it; for "
    "its own weights name a checkpoint folder or hub id in `workload.model.hf`"
)


def plan_command(
    run_file: RunFilePath,
    on: On = None,
    settings: Settings = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="LAYOUT", help="Compare this layout with the proposed one: `tp=8,pp=4,micro_batch=1`."),
    ] = None,
    target: Annotated[
        Literal["torchtitan", "megatron", "deepspeed"] | None,
        typer.Option("--as", help="Print the proposed layout as the configuration of this program."),
    ] = None,
    html: Html = None,
    pdf: Pdf = None,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Also plan for fewer nodes: time, memory and accelerators.")
    ] = False,
    nodes: Nodes = None,
    nproc: ProcessesPerNode = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
    review: Review = True,
    recalibrate: Recalibrate = False,
    without_learning: WithoutLearning = False,
    tune: Tune = 0,
) -> None:
    """Plans for this machine, which the first plan measures for a few seconds, or for a cluster that you describe."""
    check_pages(html, pdf)
    of_a_plan = {
        "--sizes": sizes,
        "--nodes": nodes,
        "--nproc": nproc,
        "--recalibrate": recalibrate,
        "--without-learning": without_learning,
        "--tune": tune,
    }
    values = read_settings(settings)
    with option_errors():
        if target is not None:
            refuse_unused("--as", {"--explain": explain, "--html": html, "--pdf": pdf, **of_a_plan})
            with working("planning"):
                handover = trainworks.hand_over(run_file, target, on=on, settings=values)
            show_handover(handover, as_json=as_json)
            return
        if explain is not None:
            refuse_unused("--explain", of_a_plan)
            with working("planning both layouts"):
                compared = trainworks.compare_layout(run_file, explain, on=on, settings=values)
            show(compared, as_json=as_json, html=html, pdf=pdf)
            return
        with working("planning"):
            result = trainworks.plan(
                run_file,
                on=on,
                settings=values,
                sizes=sizes,
                nodes=nodes,
                nproc=nproc,
                runs=runs,
                recalibrate=recalibrate,
                without_learning=without_learning,
                tune=tune,
                announce=announce,
            )
    show(result, as_json=as_json, html=html, pdf=pdf)
    if review:
        from trainworks.api.inputs import load_run
        from trainworks.report.rendering.console import SafeConsole

        show_findings(*load_run(run_file, values), SafeConsole(stderr=True), refuse=False)
    from trainworks.api.plan import ResolvedRun
    from trainworks.api.planning.described import weights_note

    workload = result.run_file.workload if isinstance(result, ResolvedRun) else None
    if workload is not None and (note := weights_note(workload) or (_NO_WEIGHTS if workload.model.preset else None)):
        say(f"note: {note}", err=True)
