"""Plan a run: on this machine, which is measured, or on a described cluster, where every layout is priced."""

from __future__ import annotations

from pathlib import Path
from typing import overload

from trainworks.api.inputs import RunInput, argument, described_run, load_run, on_cluster
from trainworks.api.notices import Notify, silent
from trainworks.api.planning.described import (
    blaming_layout,
    check_ranks,
    plan_cluster,
    planned_shape,
    workload_of,
)
from trainworks.config.load import NO_SETTINGS, Settings
from trainworks.config.recovery import Goal
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, UsageError
from trainworks.host.probe import package_versions
from trainworks.jobs.described_nodes import check_worker, described_part
from trainworks.measure.model_config import check_support_early
from trainworks.measure.planning import Planning
from trainworks.plan.cluster.layout import parse_layout
from trainworks.plan.cluster.plan import ClusterPlan, LayoutComparison
from trainworks.plan.handover import deepspeed, megatron, torchtitan
from trainworks.plan.handover.job import HandedJob, Handover
from trainworks.record.resolved import ResolvedRun, RunPlan

__all__ = ["Handover", "ResolvedRun", "RunPlan", "compare_layout", "hand_over", "plan"]

_RENDERERS = {"torchtitan": torchtitan.render, "megatron": megatron.render, "deepspeed": deepspeed.render}


@overload
def plan(
    run: RunInput, *, on: str, settings: Settings = NO_SETTINGS, sizes: bool = False, without_learning: bool = False
) -> ClusterPlan: ...


@overload
def plan(
    run: RunInput,
    *,
    on: str | None = None,
    settings: Settings = NO_SETTINGS,
    sizes: bool = False,
    nodes: int | None = None,
    nproc: int | None = None,
    runs: Path | None = None,
    recalibrate: bool = False,
    without_learning: bool = False,
    tune: int = 0,
    announce: Notify = silent,
) -> RunPlan: ...


def plan(
    run: RunInput,
    *,
    on: str | None = None,
    settings: Settings = NO_SETTINGS,
    sizes: bool = False,
    nodes: int | None = None,
    nproc: int | None = None,
    runs: Path | None = None,
    recalibrate: bool = False,
    without_learning: bool = False,
    tune: int = 0,
    announce: Notify = silent,
) -> RunPlan:
    """Predict step time, memory and duration of a run.

    Args:
        run: a run file, or its path.
        on: description of a cluster, which replaces that of the run file.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.
        sizes: plan for fewer nodes, too; a described cluster only.
        nodes: nodes on this machine.
        nproc: ranks per node on this machine.
        runs: folder of all runs; the checkpoints have to fit there.
        recalibrate: measure this machine again.
        without_learning: leave out what finished runs and stored measurements taught.
        tune: layouts to train for a few steps each on this machine, of which the fastest is planned.
        announce: receives a line before each measurement of this machine.

    Returns:
        The figures of `RunPlan`; of a described cluster a `ClusterPlan`, of this machine a `ResolvedRun`.

    Raises:
        UsageError: the run file cannot be planned, with its line.
        EnvironmentProblem: no layout fits.

    >>> planned = plan("examples/plan-llama-2-7b.yaml", on="16x A100-SXM-80GB")
    >>> planned.layout.world_size, planned.num_steps
    (16, 6104)
    """
    run_file, source = load_run(run, settings)
    run_file = on_cluster(run_file.with_ranks(nodes, nproc), on)
    if run_file.cluster.of is not None:
        sizes_of_job = {"nodes": nodes, "nproc": nproc} if run_file.cluster.engine == "described" else {}
        _check_machine_arguments(**sizes_of_job, recalibrate=recalibrate or None, tune=tune or None)
        if run_file.cluster.engine != "described":
            _check_job(run_file, source)
        return plan_cluster(run_file.as_planned, source, all_sizes=sizes, learning=not without_learning)
    if sizes:
        raise UsageError("`sizes` is for a described cluster", hint="describe one with `--on` or in `cluster`")
    from trainworks.api.launching.resolve import resolve  # noqa: PLC0415 - imports the probes of this machine

    workload_of(run_file.as_planned)
    resolved = resolve(
        run_file,
        source,
        run_id=run_file.name,
        runs=runs or Path(run_file.checkpoint.to),
        planning=Planning(again=recalibrate, learning=not without_learning, tune=tune, announce=announce),
        shape=planned_shape(run_file, source),
    )
    if resolved.plan is None:
        engine = resolved.run_file.cluster.engine
        raise UsageError(
            f"the nodes of `engine: {engine}` are not known before the job starts there",
            place=source.place(("cluster",)) if source else None,
            hint=f"describe them: `cluster: {{engine: {engine}, of: 4 nodes of DGX H100}}`, or with `--on`",
        )
    return resolved


def compare_layout(
    run: RunInput, layout: str, *, on: str | None = None, settings: Settings = NO_SETTINGS
) -> LayoutComparison:
    """Plan one layout on a described cluster, beside the proposed one.

    Args:
        run: a run file, or its path.
        layout: such as `tp=8,pp=4,micro_batch=1`; fields that are left out stay open.
        on: description of a cluster, which replaces that of the run file.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.

    Raises:
        UsageError: the layout cannot be read, or the run file cannot be planned.
        EnvironmentProblem: the layout does not fit.

    >>> comparison = compare_layout("examples/plan-llama-2-7b.yaml", "tp=8")
    >>> comparison.this.best[0].step_time_s > comparison.proposed.best[0].step_time_s
    True
    """
    run_file, source = described_run(run, on, task="a layout is explained", settings=settings)
    with argument("explain"):
        chosen = parse_layout(layout)
    proposed = plan_cluster(run_file, source)
    return LayoutComparison(plan_cluster(run_file.model_copy(update={"goal": Goal()}), source, layout=chosen), proposed)


def hand_over(run: RunInput, target: str, *, on: str | None = None, settings: Settings = NO_SETTINGS) -> Handover:
    """Plan a run on a described cluster, and write the proposed layout as the configuration of another program.

    Args:
        run: a run file, or its path.
        target: `torchtitan`, `megatron` or `deepspeed`.
        on: description of a cluster, which replaces that of the run file.
        settings: other values by key of the run file: `{"optimizer.lr": 1e-4}`; text is read as YAML.

    Raises:
        UsageError: the target is unknown, the run file cannot be planned, or the program cannot run the plan.
        EnvironmentProblem: no layout fits.

    >>> "tensor-model-parallel-size" in hand_over("examples/plan-llama-2-7b.yaml", "megatron").text
    True
    """
    if target not in _RENDERERS:
        raise ArgumentError(f"`{target}` is not a target", argument="target", hint=f"known are {', '.join(_RENDERERS)}")
    run_file, source = described_run(run, on, task="a plan is handed over", settings=settings)
    return _RENDERERS[target](HandedJob.of(run_file, plan_cluster(run_file, source)))


def _check_machine_arguments(**values: int | None) -> None:
    """Refuse arguments of this machine beside a described cluster."""
    if names := [f"--{name}" for name, value in values.items() if value is not None]:
        are = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
        raise UsageError(
            f"{are} for this machine, and the cluster is a described one",
            hint='describe the nodes: `--on "4 nodes of 8x H100"`; `trainworks calibrate` takes measurements',
        )


def _check_job(run_file: RunFile, source: Source | None) -> None:
    """Refuse what Trainworks' worker cannot train on the nodes of a scheduler."""
    check_worker(run_file, source)
    check_ranks(run_file, described_part(run_file, source), source)
    if run_file.workload is not None:
        with blaming_layout(source, is_fixed=True):
            check_support_early(run_file.workload, run_file.layout, package_versions())
