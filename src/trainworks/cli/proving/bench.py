"""`trainworks bench`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import trainworks
from trainworks.cli.options import AsJson, OnCluster, RunsOption, option_errors, runs_folder
from trainworks.cli.output import Html, Pdf, check_pages, show
from trainworks.errors import UsageError
from trainworks.report.rendering.printable import say

_WHAT = "compute, memory, network, collectives, storage, mpi or all; or `read FILE...`."


def bench_command(
    kinds: Annotated[list[str] | None, typer.Argument(metavar="WHAT...", help=_WHAT)] = None,
    cluster: OnCluster = None,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Sizes for acceptance, instead of about a minute.")] = False,
    built_in: Annotated[
        bool, typer.Option("--built-in", help="Not with fio, iperf3, nccl-tests ..., even where they are installed.")
    ] = False,
    paths: Annotated[
        list[Path] | None, typer.Option("--path", metavar="FOLDER", help="Measure the storage of this folder.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=V1,V2", help="Compare values of a variable between ranks."),
    ] = None,
    expect: Annotated[
        str | None, typer.Option(metavar="CLUSTER|FILE", help="Hardware that should be there: `4x DGX H100`.")
    ] = None,
    cables: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cable plan, to name the cables of slow links.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Continue a benchmark, or show a finished one.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Then train the workload of `--cluster` for 30 steps, against its plan.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job, and what its figures will be held against.")
    ] = False,
    learn: Annotated[bool, typer.Option("--learn", help="With read: plans of this cluster use the rates.")] = False,
    runs: RunsOption = None,
    as_json: AsJson = False,
    html: Html = None,
    pdf: Pdf = None,
) -> None:
    """Runs on this machine, or as a job on the nodes of a cluster. Transfers are measured between all pairs of nodes,
    and between all ranks. What fails, or differs from its peers, comes first; exit code 1 if there is any.

    `read FILE...` judges what nccl-tests, perftest, OSU, fio, iperf3, STREAM, HPL, HPCC, mdtest or nvbandwidth printed.
    Exit code 1 if a figure failed or is impossible. What it is held against is `--expect`, or `--cluster RUN_FILE`.
    """
    if kinds and kinds[0] == "read":
        measuring = {
            "--nodes": nodes,
            "--full": full,
            "--built-in": built_in,
            "--path": paths,
            "--set": settings,
            "--cables": cables,
            "--resume": resume,
            "--train": train,
            "--dry-run": dry_run,
        }
        if given := [name for name, value in measuring.items() if value]:
            hint = "trainworks bench read FILE --expect CLUSTER"
            raise UsageError(f"`{given[0]}` does nothing for files that are read", place=given[0], hint=hint)
        if expect and cluster:
            hint = "leave one of the two out"
            raise UsageError("`--expect` and `--cluster` both say what was measured", place="--cluster", hint=hint)
        return _read(kinds[1:], expect, cluster, learn=learn, as_json=as_json, html=html, pdf=pdf)
    if learn:
        raise UsageError("`--learn` belongs to `read`", hint="trainworks bench read FILE --learn --expect CLUSTER")
    if not kinds and resume is None:
        raise UsageError("nothing to measure", hint="`trainworks bench all`, or one of its parts")
    if resume is not None and (dry_run or train):
        option = "--dry-run" if dry_run else "--train"
        raise UsageError(f"`{option}` is for a new benchmark", place=option, hint="leave out `--resume`")
    job: dict[str, Any] = {
        "cluster": cluster,
        "nodes": nodes,
        "full": full,
        "built_in": built_in,
        "paths": paths or (),
        "settings": settings or (),
        "expect": expect,
        "folder": runs_folder(runs),
    }
    if dry_run:
        return _show_job(kinds or (), job, train=train)
    check_pages(html, pdf)
    with option_errors(positional={"kinds": "WHAT"}):
        report = trainworks.bench(
            *(kinds or ()), **job, cables=cables, resume=resume, train=train, progress=lambda line: say(line, err=True)
        )
    show(report, as_json=as_json, html=html, pdf=pdf)
    raise typer.Exit(0 if report.is_accepted else 1)


def _show_job(kinds: Sequence[str], options: Mapping[str, Any], *, train: bool) -> None:
    """Print the job; on stderr what it measures, and against which hardware."""
    from trainworks.api.bench import bench_job

    with option_errors(positional={"kinds": "WHAT"}):
        job = bench_job(*kinds, **options)
        text, count = job.text, job.prepared.spec.max_nodes
    typer.echo(text, nl=not text.endswith("\n"))
    nodes = "1 node" if count == 1 else f"{count} nodes"
    against = job.yardstick.name if job.yardstick else "what the nodes show of their processors"
    say(f"measures {', '.join(job.kinds)} on {nodes}, held against {against}", err=True)
    if train:
        say(f"then trains on them: `trainworks submit {options['cluster']} --dry-run` shows that job", err=True)


def _read(
    files: list[str],
    expect: str | None,
    cluster: str | None,
    *,
    learn: bool,
    as_json: bool,
    html: Path | None,
    pdf: Path | None,
) -> None:
    if not files:
        raise UsageError("no file to read", hint="trainworks bench read all_reduce_perf.log")
    check_pages(html, pdf)
    with option_errors(positional={} if expect else {"expect": "--cluster"}):
        verdicts = trainworks.read_bench(files, expect=expect or cluster, learn=learn)
    show(verdicts, as_json=as_json, html=html, pdf=pdf)
    raise typer.Exit(1 if verdicts.bad else 0)
