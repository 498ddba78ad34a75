"""From a run file with a described cluster to its plan: every layout priced, the best explained."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.api.cluster_layout import check_against, roomier_batch, why_nothing
from trainworks.api.cluster_memory import does_not_fit, offloading_note
from trainworks.api.cluster_scales import Run, Scale, chance, faster_with_fewer, goal_in_words, scales, search_layouts
from trainworks.api.planned_model import PlannedModel, planned_model
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.config.layout import Layout
from trainworks.config.load import Source
from trainworks.config.run_file import RunFile, Workload
from trainworks.errors import LayoutError, TrainworksError, UsageError
from trainworks.host.folders import data_folder
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.learning import belief_from
from trainworks.plan.prediction import Prediction, outside_measured, predictions
from trainworks.plan.pricing import AnyJob
from trainworks.plan.search import Fixed, SearchResult
from trainworks.plan.trace import Traced, computed, fact
from trainworks.record.measurement import Measurement
from trainworks.record.measurement_store import read_measurements
from trainworks.units import format_step_time

__all__ = ["ClusterPlan", "plan_cluster"]

_TABLE_LENGTH = 10
_LAYOUTS_WITH_ADVICE = 2_000_000


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What `trainworks plan` says of a described cluster."""

    job: AnyJob
    global_batch: int
    steps: int
    result: SearchResult
    best: list[Prediction]
    """Fastest first."""
    front: list[Prediction]
    """Nothing beats one of these in both time and memory."""
    scales: list[Scale]
    """Fewer and more nodes, if there is a goal to meet; only those that nothing beats in time and accelerators."""
    goal: str | None
    """The goal, and on how many nodes it is likely met."""
    notes: list[str]

    @property
    def run_time_s(self) -> float:
        """All steps, one after the other, without failures or checkpoints."""
        return self.steps * self.best[0].step_time_s

    @property
    def work(self) -> Traced:
        """The same time, with where it comes from: inputs `steps` and `step_time` with its 80 % interval."""
        best, by = self.best[0], "trainworks plan, fastest layout"
        step = computed("step time", best.step_time_s, "s", by=by, low=best.low_s, high=best.high_s)
        steps = fact("steps", self.steps, "", source="the run file")
        return (steps * step).named("work", "s")


def plan_cluster(
    run_file: RunFile,
    source: Source | None,
    *,
    layout: Layout | None = None,
    fixed: Fixed | None = None,
    learned: Sequence[Measurement] = (),
    model: PlannedModel | None = None,
    all_sizes: bool = False,
    advise: bool = True,
) -> ClusterPlan:
    """Search the layouts of a workload on the cluster that the run file describes.

    Args:
        run_file: with `cluster.of`.
        source: where its fields stand.
        layout: instead of the run file's; an error of it has no place.
        fixed: decisions of the search beside those of the layout.
        learned: measurements beside those that are kept.
        model: of the workload, where the caller has it already.
        all_sizes: plan for smaller clusters, too, as a goal asks for anyway.
        advise: plan for fewer nodes, too, where the batch divides badly; wasted where nobody reads the notes.

    Raises:
        UsageError: something is unknown or does not multiply, with its place.
        EnvironmentProblem: no layout fits; the message counts why.
    """
    workload = run_file.workload
    if workload is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    model = model or planned_model(run_file, source)
    cluster = _located(source, ("cluster",), run_file.cluster.of or "")
    measurements = [*read_measurements(data_folder("clusters"), cluster), *learned]
    wanted, at = (run_file.layout, source) if layout is None else (layout, None)
    job = _job(workload, model, cluster, source)
    price_usd, priced = _price(run_file, cluster, source)
    run = Run(
        job=job,
        global_batch=workload.global_batch,
        steps=model.steps,
        fixed={**_decided(wanted, workload, cluster, at), **(fixed or {})},
        goal=run_file.goal,
        price_usd=price_usd,
        belief=belief_from(measurements, experts=not isinstance(job, ConvJob) and job.shape.experts > 0),
        all_sizes=all_sizes,
    )
    result = search_layouts(run.job, run.global_batch, run.fixed, keep=_TABLE_LENGTH, belief=run.belief)
    if not result.fitting:
        raise _refusal(run, result, at)
    return _planned(run, result, measurements, priced, advise=advise)


def _planned(
    run: Run, result: SearchResult, measurements: list[Measurement], priced: str | None, *, advise: bool
) -> ClusterPlan:
    cluster = run.job.cluster
    rows = predictions(
        run.job, result.layouts, result.times, result.memories, global_batch=run.global_batch, belief=run.belief
    )
    found = scales(run)
    own = chance(run, rows[0], cluster.num_accelerators)
    batch = _of_batch(run, rows[0], evaluated=result.evaluated) if advise else None
    notes = [offloading_note(run, rows[0]), *cluster.notes, priced, batch, _learned(measurements)]
    return ClusterPlan(
        job=run.job,
        global_batch=run.global_batch,
        steps=run.steps,
        result=result,
        best=rows[:_TABLE_LENGTH],
        front=[rows[index] for index in result.front],
        scales=found,
        goal=goal_in_words(run, own, found) if run.has_goal else None,
        notes=[*filter(None, notes), *outside_measured(run.job, cluster.num_accelerators)],
    )


def _learned(measurements: list[Measurement]) -> str | None:
    if not measurements:
        return None
    newest = time.strftime("%Y-%m-%d", time.localtime(measurements[-1].created_at))
    count = "1 measurement" if len(measurements) == 1 else f"{len(measurements)} measurements"
    return f"calibrated by {count} of this kind of cluster, the newest of {newest}"


def _of_batch(run: Run, best: Prediction, *, evaluated: int) -> str | None:
    """A batch that few degrees of data parallelism divide leaves slow layouts; some nodes idle can be better.

    Fewer nodes are tried only where one search was a small amount of work, because several more follow it.
    """
    count = run.job.cluster.num_accelerators
    batch = None if "dp" in run.fixed else roomier_batch(count, run.global_batch)
    if batch is None:
        return None
    told = f"few layouts of {count:,} accelerators share {run.global_batch:,} sequences evenly: "
    fewer = faster_with_fewer(run, best.step_time_s) if evaluated <= _LAYOUTS_WITH_ADVICE else None
    if fewer is not None:
        total = run.job.cluster.num_nodes
        told += f"{fewer.num_nodes:,} of the {total:,} nodes take {format_step_time(fewer.best.step_time_s)} a step; "
    return f"{told}`global_batch: {batch}` may be faster"


def _located(source: Source | None, field: tuple[str, ...], text: str) -> ClusterDescription:
    try:
        return parse_cluster(text)
    except UsageError as error:
        raise UsageError(error.message, place=source.place(field) if source else None, hint=error.hint) from None


def _job(workload: Workload, model: PlannedModel, cluster: ClusterDescription, source: Source | None) -> AnyJob:
    if workload.precision not in cluster.accelerator.peak_flops_per_s:
        raise UsageError(
            f"{cluster.accelerator.name} has no {workload.precision} matrix units",
            place=source.place(("workload", "precision")) if source else None,
            hint=f"it has {', '.join(sorted(cluster.accelerator.peak_flops_per_s))}",
        )
    return model.job(workload, cluster)


def _decided(
    layout: Layout | None, workload: Workload, cluster: ClusterDescription, source: Source | None
) -> dict[str, int]:
    if layout is None:
        return {}
    try:
        return check_against(layout, world_size=cluster.num_accelerators, global_batch=workload.global_batch)
    except LayoutError as error:
        raise source.locate(error) if source else error from None


def _refusal(run: Run, result: SearchResult, source: Source | None) -> TrainworksError:
    """Why there is no plan, at what is written of the layout."""
    written = source.place(("layout",)) if source and run.fixed else None
    if result.evaluated:
        return does_not_fit(run, result, place=written)
    error = why_nothing(run.job, run.fixed, result, global_batch=run.global_batch)
    if error.field:
        return source.locate(error) if source else error
    return UsageError(error.message, place=written, hint=error.hint)


def _price(run_file: RunFile, cluster: ClusterDescription, source: Source | None) -> tuple[float | None, str | None]:
    """Price of an accelerator hour, and where it comes from if a budget has to count with the catalogue's."""
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
