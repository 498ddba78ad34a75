"""The plan of a workload on nodes that are described, or that a job asks a scheduler for.

On its nodes a job is planned again, from measured rates; the report holds both plans against the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from trainworks.api.planning.expected_cost import nodes_of_job, price_of
from trainworks.api.planning.planned_model import PlannedModel, planned_model, weights_note
from trainworks.backends.backend import Backend
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import ClusterDescription
from trainworks.config.layout import Layout, check_layout
from trainworks.config.quantities import TrainFor
from trainworks.config.run_file import Goal, RunFile, Workload
from trainworks.config.source import Source
from trainworks.errors import EnvironmentProblem, LayoutError, TrainworksError, UsageError
from trainworks.host.folders import data_folder
from trainworks.jobs.described_nodes import described_part
from trainworks.plan.cluster.layout import check_against
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.cluster.plan import ClusterPlan, plan_request
from trainworks.plan.cluster.scaling import PlanRequest
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.degrees import resolved_of
from trainworks.plan.network.traffic import as_designed
from trainworks.plan.space import Fixed
from trainworks.record.measured.measurement import ClusterMeasurement
from trainworks.record.measured.measurement_store import read_measurements
from trainworks.record.resolved import Forecast
from trainworks.units import HOUR_S


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
    price_usd, price_note = _goal_price(run_file, cluster, source)
    written, layout_source = (run_file.layout, source) if layout is None else (layout, None)
    with blaming_layout(layout_source, is_fixed=bool(written or fixed)):
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


def forecast(
    run_file: RunFile, source: Source | None, backend: Backend | None, *, learning: bool = True
) -> Forecast | None:
    """Plan a language model for the nodes of a scheduler.

    Args:
        run_file: of the job.
        source: text of the run file, for the place of an error.
        backend: says what accelerators its nodes have; None to take the word of the run file.
        learning: whether stored measurements of this kind of cluster correct the plan.

    Returns:
        None where no formula has the model, or where the accelerators of the nodes are not known.

    Raises:
        LayoutError: the layout of the run file does not multiply to the accelerators.
        UsageError: it does not fit the model.
        EnvironmentProblem: no layout fits into the memory of these accelerators.
    """
    workload = run_file.workload
    if workload is None or workload.task != "causal-lm":
        return None
    cluster = nodes_of_job(run_file, backend)
    if cluster is None or workload.precision not in cluster.accelerator.peak_flops_per_s:
        return None
    check_ranks(run_file, cluster, source)
    is_counted = workload.train_for.unit != "epochs"
    counted = workload if is_counted else workload.model_copy(update={"train_for": TrainFor(amount=1, unit="steps")})
    planned = run_file.model_copy(update={"workload": counted, "goal": Goal()})
    try:
        model = planned_model(planned, source)
    except TrainworksError:  # its config is where the job runs, and is read there
        return None
    plan = plan_cluster(planned, source, cluster=cluster, model=model, advise=False, learning=learning)
    best = plan.best[0]
    train_s = model.steps * best.step_time_s if is_counted else None
    price = price_of(run_file, cluster)
    return Forecast(
        cluster=cluster.name,
        layout=resolved_of(best.layout, run_file.layout),
        step_s=best.step_time_s,
        low_s=best.low_s,
        high_s=best.high_s,
        memory_bytes=round(best.memory.device_bytes),
        train_s=train_s,
        usd=None if price is None or train_s is None else price * train_s / HOUR_S * cluster.num_accelerators,
    )


def check_ranks(run_file: RunFile, cluster: ClusterDescription, source: Source | None) -> None:
    """Refuse a written layout that does not multiply to the accelerators of a job, whose ranks take no degree for 1.

    Raises:
        LayoutError: with its line.
    """
    if run_file.workload is None or run_file.layout is None:
        return
    with blaming_layout(source, is_fixed=True):
        check_layout(run_file.layout, world_size=cluster.num_accelerators, global_batch=run_file.workload.global_batch)


@contextmanager
def blaming_layout(source: Source | None, *, is_fixed: bool) -> Iterator[None]:
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


def _goal_price(
    run_file: RunFile, cluster: ClusterDescription, source: Source | None
) -> tuple[float | None, str | None]:
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
