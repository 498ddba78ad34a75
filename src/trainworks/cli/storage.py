"""`trainworks storage`."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from trainworks.api.arguments import node_mttf_of, on_cluster, option_value
from trainworks.api.cluster_plan import ClusterPlan, plan_cluster
from trainworks.api.run_failures import failures_of, written_interval
from trainworks.cli.launch import wanted
from trainworks.cli.options import AsJson, RunFilePath, wide_console
from trainworks.cli.storage_view import StoragePlan, print_storage, storage_as_json
from trainworks.config.run_file import RunFile
from trainworks.errors import QuantityError, UsageError
from trainworks.plan.assumptions import GIVEN
from trainworks.plan.reliability.defaults import usual_node_mttf
from trainworks.plan.reliability.goodput import job_interval, job_mttf
from trainworks.plan.storage.run import StoredRun, storage_of
from trainworks.plan.storage.systems import judge
from trainworks.plan.trace import Traced, fact
from trainworks.report.explain import explain as explain_figure
from trainworks.units import parse_bytes, parse_count, parse_duration, parse_share

__all__ = ["command"]


_LEAST_STALL = 1e-6
"""Below it no storage is fast enough."""

On = Annotated[str | None, typer.Option("--on", metavar="CLUSTER", help="On this cluster: `16 nodes of DGX H100`.")]
DatasetSize = Annotated[
    str | None, typer.Option("--dataset-size", metavar="SIZE", help="Of the data as they are stored: `10 TB`.")
]
Files = Annotated[str | None, typer.Option("--files", metavar="COUNT", help="Files that hold the data: `14M`.")]
Stall = Annotated[
    str | None,
    typer.Option(
        "--stall", metavar="SHARE", help="For saves that stop the training: share of the time that they may take."
    ),
]
Restart = Annotated[str, typer.Option("--restart", metavar="TIME", help="Accepted to read the newest checkpoint.")]
Explain = Annotated[
    str | None, typer.Option("--explain", metavar="FIGURE", help="How a figure comes about: `checkpoint write`.")
]


def command(
    run_file: RunFilePath,
    on: On = None,
    dataset_size: DatasetSize = None,
    files: Files = None,
    stall: Stall = None,
    restart: Restart = "5m",
    explain: Explain = None,
    as_json: AsJson = False,
) -> None:
    """Required read and checkpoint rates, what each node needs, and every kind of storage with the reason."""
    asked = wanted([str(run_file)], nodes=None, nproc=None, name=None)
    options = {
        "dataset_bytes": option_value("--dataset-size", parse_bytes, dataset_size),
        "files": option_value("--files", parse_count, files),
        "stall_share": option_value("--stall", _stall_share, stall),
        "restart_s": option_value("--restart", parse_duration, restart),
    }
    described = _described(asked.run_file, on)
    plan = plan_cluster(described, asked.source)
    workload = described.workload
    data = workload.data if workload is not None else None
    demand, needs = storage_of(
        StoredRun(
            job=plan.job,
            best=plan.best[0],
            global_batch=plan.global_batch,
            steps=plan.steps,
            image_size=data.image_size if data is not None else None,
            sample_bytes=data.sample_size if data is not None else None,
            keep=described.checkpoint.keep,
            interval=_interval(plan, described, options["stall_share"]),
            node_mttf=usual_node_mttf(plan.job.cluster.accelerator, node_mttf_of(described)),
            **options,  # type: ignore[arg-type]
        )
    )
    shown = StoragePlan(plan, demand, needs, judge(demand, needs))
    if explain is not None:
        typer.echo(explain_figure(shown.roots(), explain))
    elif as_json:
        typer.echo(json.dumps(storage_as_json(shown), indent=2))
    else:
        print_storage(shown, wide_console())


def _interval(plan: ClusterPlan, run_file: RunFile, stall_share: float | None) -> Traced:
    """The interval of the run; a synchronous save may stall as long as makes that share of it, C = 2 s^2 M."""
    written = written_interval(plan, run_file)
    if written is not None:
        return written
    failures, step = failures_of(plan, run_file), plan.work.inputs["step_time"]
    if stall_share is not None:
        share = fact("stall share", stall_share, "", source=GIVEN)
        mttf = job_mttf(failures)
        stall = (2 * share * share * mttf).named("save stall", "s", share=share, mttf=mttf)
        failures = replace(failures, save=stall, write=fact("checkpoint write", 0.0, "s", source="synchronous"))
    return job_interval(failures, step)


def _described(run_file: RunFile, on: str | None) -> RunFile:
    """The run file with the cluster to plan for."""
    described = on_cluster(run_file, on)
    if described.cluster.engine != "described":
        raise UsageError(
            "storage is planned for a described cluster, and the run file's is this machine",
            hint='name one with `--on "16 nodes of DGX H100"` or in `cluster`',
        )
    return described


def _stall_share(text: str) -> float:
    share = parse_share(text)
    if 0 < share < _LEAST_STALL:
        raise QuantityError(f"`{text}` leaves a save no time", hint=f"it is at least {_LEAST_STALL:.4%}")
    if not 0 < share < 1:
        raise QuantityError(f"`{text}` is not between 0 and 100 %", hint="write it like `5%`")
    return share
