"""Plan a run: on this machine, which is measured, or on a described cluster, where every layout is priced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import overload

from trainworks.api.inputs import RunInput, argument, described_run, load_run, on_cluster
from trainworks.api.launching.model_support import check_support_early
from trainworks.api.launching.planning import Planning
from trainworks.api.launching.resolve import resolve
from trainworks.api.notices import Notify, silent
from trainworks.api.planned_model import PlannedModel, planned_model, planned_shape, weights_note
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.layout import Layout
from trainworks.config.run_file import Goal, RunFile, Workload
from trainworks.config.source import Source
from trainworks.errors import ArgumentError, EnvironmentProblem, LayoutError, UsageError
from trainworks.host.folders import data_folder
from trainworks.host.probe import package_versions
from trainworks.jobs.described_nodes import check_worker, described_part
from trainworks.plan.cluster.layout import check_against, parse_layout
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.cluster.plan import ClusterPlan, LayoutComparison, plan_request
from trainworks.plan.cluster.scaling import PlanRequest
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.network.traffic import as_designed
from trainworks.plan.space import Fixed
from trainworks.record.measured.measurement import ClusterMeasurement
from trainworks.record.measured.measurement_store import read_measurements
from trainworks.record.resolved import ResolvedRun
from trainworks.report.handover import deepspeed, megatron, torchtitan
from trainworks.report.handover.job import HandedJob, Handover

__all__ = ["Handover", "ResolvedRun", "compare_layout", "decisions", "hand_over", "plan", "plan_cluster"]

_RENDERERS = {"torchtitan": torchtitan.render, "megatron": megatron.render, "deepspeed": deepspeed.render}


@overload
def plan(run: RunInput, *, on: str, sizes: bool = False, without_learning: bool = False) -> ClusterPlan: ...


@overload
def plan(
    run: RunInput,
    *,
    on: str | None = None,
    sizes: bool = False,
    nodes: int | None = None,
    nproc: int | None = None,
    runs: Path | None = None,
    recalibrate: bool = False,
    without_learning: bool = False,
    tune: int = 0,
    announce: Notify = silent,
) -> ClusterPlan | ResolvedRun: ...


def plan(
    run: RunInput,
    *,
    on: str | None = None,
    sizes: bool = False,
    nodes: int | None = None,
    nproc: int | None = None,
    runs: Path | None = None,
    recalibrate: bool = False,
    without_learning: bool = False,
    tune: int = 0,
    announce: Notify = silent,
) -> ClusterPlan | ResolvedRun:
    """Predict step time, memory and duration of a run.

    Args:
        run: a run file, or its path.
        on: description of a cluster, which replaces that of the run file.
        sizes: plan for fewer nodes, too; a described cluster only.
        nodes: nodes on this machine.
        nproc: ranks per node on this machine.
        runs: folder of all runs; the checkpoints have to fit there.
        recalibrate: measure this machine again.
        without_learning: leave out what finished runs and stored measurements taught.
        tune: layouts to train for a few steps each on this machine, of which the fastest is planned.
        announce: receives a line before each measurement of this machine.

    Raises:
        UsageError: the run file cannot be planned, with its line.
        EnvironmentProblem: no layout fits.

    >>> planned = plan("examples/plan-llama-2-7b.yaml", on="16x A100-SXM-80GB")
    >>> planned.job.cluster.num_accelerators, planned.steps
    (16, 6104)
    """
    run_file, source = load_run(run)
    run_file = on_cluster(run_file.with_ranks(nodes, nproc), on)
    if run_file.cluster.of is not None:
        sizes_of_job = {"nodes": nodes, "nproc": nproc} if run_file.cluster.engine == "described" else {}
        _check_machine_arguments(**sizes_of_job, recalibrate=recalibrate or None, tune=tune or None)
        if run_file.cluster.engine != "described":
            _check_job(run_file, source)
        return plan_cluster(run_file, source, all_sizes=sizes, learning=not without_learning)
    if sizes:
        raise UsageError("`sizes` is for a described cluster", hint="describe one with `--on` or in `cluster`")
    resolved = resolve(
        run_file,
        source,
        run_id=run_file.name,
        runs=runs or Path(run_file.checkpoint.to),
        planning=Planning(again=recalibrate, learning=not without_learning, tune=tune, announce=announce),
        shape=planned_shape(run_file, source),
    )
    if resolved.run_file.workload is None:
        raise UsageError("a command cannot be planned; only a `workload` can")
    if resolved.plan is None:
        engine = resolved.run_file.cluster.engine
        raise UsageError(
            f"the nodes of `engine: {engine}` are not known before the job starts there",
            place=source.place(("cluster",)) if source else None,
            hint=f"describe them: `cluster: {{engine: {engine}, of: 4 nodes of DGX H100}}`, or with `--on`",
        )
    return resolved


def compare_layout(run: RunInput, layout: str, *, on: str | None = None) -> LayoutComparison:
    """Plan one layout on a described cluster, beside the proposed one.

    Args:
        run: a run file, or its path.
        layout: such as `tp=8,pp=4,micro_batch=1`; fields that are left out stay open.
        on: description of a cluster, which replaces that of the run file.

    Raises:
        UsageError: the layout cannot be read, or the run file cannot be planned.
        EnvironmentProblem: the layout does not fit.

    >>> comparison = compare_layout("examples/plan-llama-2-7b.yaml", "tp=8")
    >>> comparison.this.best[0].step_time_s > comparison.proposed.best[0].step_time_s
    True
    """
    run_file, source = described_run(run, on, task="a layout is explained")
    with argument("explain"):
        chosen = parse_layout(layout)
    proposed = plan_cluster(run_file, source)
    return LayoutComparison(plan_cluster(run_file.model_copy(update={"goal": Goal()}), source, layout=chosen), proposed)


def hand_over(run: RunInput, target: str, *, on: str | None = None) -> Handover:
    """Plan a run on a described cluster, and write the proposed layout as the configuration of another program.

    Args:
        run: a run file, or its path.
        target: `torchtitan`, `megatron` or `deepspeed`.
        on: description of a cluster, which replaces that of the run file.

    Raises:
        UsageError: the target is unknown, the run file cannot be planned, or the program cannot run the plan.
        EnvironmentProblem: no layout fits.

    >>> "tensor-model-parallel-size" in hand_over("examples/plan-llama-2-7b.yaml", "megatron").text
    True
    """
    if target not in _RENDERERS:
        raise ArgumentError(f"`{target}` is not a target", argument="target", hint=f"known are {', '.join(_RENDERERS)}")
    run_file, source = described_run(run, on, task="a plan is handed over")
    return _RENDERERS[target](HandedJob.of(run_file, plan_cluster(run_file, source)))


def _check_machine_arguments(**values: int | None) -> None:
    """Refuse arguments of this machine beside a described cluster."""
    if names := [f"--{name}" for name, value in values.items() if value is not None]:
        are = f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"
        raise UsageError(
            f"{are} for this machine, and the cluster is a described one",
            hint='describe the nodes: `--on "4 nodes of 8x H100"`; `trainworks calibrate` takes measurements',
        )


def plan_cluster(
    run_file: RunFile,
    source: Source | None,
    *,
    cluster: ClusterDescription | None = None,
    layout: Layout | None = None,
    fixed: Fixed | None = None,
    learned: Sequence[ClusterMeasurement] = (),
    model: PlannedModel | None = None,
    all_sizes: bool = False,
    advise: bool = True,
    learning: bool = True,
) -> ClusterPlan:
    """Search the layouts of a workload on a described cluster.

    Args:
        run_file: with `cluster.of`, unless `cluster` is given.
        source: text of the run file, for the place of an error.
        cluster: replaces the cluster of the run file.
        layout: replaces the layout of the run file; its errors have no place.
        fixed: decisions of the search beside those of the layout.
        learned: measurements beside the stored ones.
        model: of the workload, where the caller has built it.
        all_sizes: plan for smaller clusters without a goal, too.
        advise: look further, see `PlanRequest.advise`.
        learning: whether stored measurements correct the plan.

    Raises:
        UsageError: something is unknown or does not multiply, with its place.
        EnvironmentProblem: no layout fits; the message counts why.
    """
    workload = run_file.workload
    if workload is None:
        raise UsageError("a command cannot be planned; only a `workload` can")
    model = model or planned_model(run_file, source)
    cluster = cluster or described_part(run_file, source)
    stored = read_measurements(data_folder("clusters"), cluster) if learning else []
    measurements = [*stored, *learned]
    _check_precision(workload, cluster, source)
    job = model.job(workload, as_designed(cluster))
    belief = belief_from(measurements, job)
    price_usd, price_note = _price(run_file, cluster, source)
    written, layout_source = (run_file.layout, source) if layout is None else (layout, None)
    with _blaming_layout(layout_source, is_fixed=bool(written or fixed)):
        request = PlanRequest(
            job=replace(job, slowdowns=belief.slowdowns),
            global_batch=workload.global_batch,
            steps=model.steps,
            fixed={**decisions(written, workload, cluster), **(fixed or {})},
            goal=run_file.goal,
            price_usd=price_usd,
            belief=belief,
            all_sizes=all_sizes,
            advise=advise,
            evaluation=workload.eval,
            selection=written.selection if written else 0.0,
        )
        return plan_request(request, measurements, [price_note, weights_note(workload), model.vocabulary_note])


def _check_job(run_file: RunFile, source: Source | None) -> None:
    """Refuse what Trainworks' worker cannot train on the nodes of a scheduler.

    Raises:
        UsageError: naming the accelerators or the layout, with the line.
    """
    check_worker(run_file, source)
    if run_file.workload is not None:
        with _blaming_layout(source, is_fixed=True):
            check_support_early(run_file.workload, run_file.layout, package_versions())


@contextmanager
def _blaming_layout(source: Source | None, *, is_fixed: bool) -> Iterator[None]:
    """Place errors of the search at the layout in the run file, if it has one."""
    place = source.place(("layout",)) if source and is_fixed else None
    try:
        yield
    except LayoutError as error:
        if not error.field:
            raise UsageError(error.message, place=place, hint=error.hint) from None
        raise source.locate(error) if source else error from None
    except EnvironmentProblem as error:
        error.place = place
        raise


def _check_precision(workload: Workload, cluster: ClusterDescription, source: Source | None) -> None:
    if workload.precision not in cluster.accelerator.peak_flops_per_s:
        raise UsageError(
            f"{cluster.accelerator.name} has no {workload.precision} matrix units",
            place=source.place(("workload", "precision")) if source else None,
            hint=f"it has {', '.join(sorted(cluster.accelerator.peak_flops_per_s))}",
        )


def decisions(layout: Layout | None, workload: Workload, cluster: ClusterDescription) -> dict[str, int]:
    """What a written layout decides of the search on a cluster.

    Raises:
        LayoutError: it does not multiply to the accelerators, or does not divide the batch.
    """
    if layout is None:
        return {}
    return check_against(layout, world_size=cluster.num_accelerators, global_batch=workload.global_batch)


def _price(run_file: RunFile, cluster: ClusterDescription, source: Source | None) -> tuple[float | None, str | None]:
    """Price of an accelerator hour, and a note on its source if a budget needs the price of the catalogue."""
    written = run_file.cluster.usd_per_accelerator_hour
    if run_file.goal.budget is None or written is not None:
        return written, None
    price = accelerator_price(cluster, load_catalog().offers.values())
    if price is None:
        raise UsageError(
            f"a budget needs the price of an accelerator hour, and no offer of the catalogue has `{cluster.name}`",
            place=source.place(("goal", "budget")) if source else None,
            hint="set `cluster.usd_per_accelerator_hour`",
        )
    note = (
        f"priced at {price.value:.2f} USD per accelerator hour: {price.name} ({price.inputs['price'].source}); "
        "`cluster.usd_per_accelerator_hour` replaces it"
    )
    return price.value, note
