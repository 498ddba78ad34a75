"""From a run file with a described cluster to its plan: every layout priced, the best explained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.catalog.models import preset
from trainworks.cli.planning import model_shape
from trainworks.errors import EnvironmentProblem, LayoutError, UsageError
from trainworks.host.folders import data_folder
from trainworks.plan.compute import Stack
from trainworks.plan.conv_net import conv_net_of_hf_config
from trainworks.plan.conv_step import ConvJob
from trainworks.plan.learning import belief_from, fixed_of
from trainworks.plan.local.plan import num_steps
from trainworks.plan.model_shape import shape_of_hf_config
from trainworks.plan.prediction import Prediction, outside_measured, predictions
from trainworks.plan.pricing import AnyJob
from trainworks.plan.search import Fixed, SearchResult, search
from trainworks.plan.step_time import Job
from trainworks.plan.uncertainty import Belief
from trainworks.record.measurement import Measurement
from trainworks.record.measurement_store import read_measurements
from trainworks.spec.layout import resolve_layout
from trainworks.spec.load import Source
from trainworks.spec.run_file import Goal, RunFile, Workload
from trainworks.units import format_bytes

__all__ = ["ClusterPlan", "Scale", "plan_cluster"]

_SECONDS_PER_HOUR = 3600.0
_LARGEST_SCALE = 8
"""Times the described cluster, where that one misses the goal."""
_TABLE_LENGTH = 10


@dataclass(frozen=True, slots=True)
class Scale:
    """The best layout on so many nodes, and what the whole run takes there."""

    num_nodes: int
    best: Prediction
    run_time_s: float
    cost_usd: float | None
    meets_goal: bool


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
    """Fewer and fewer nodes, if there is a goal to meet; only those that nothing beats in time and accelerators."""
    notes: list[str]

    @property
    def run_time_s(self) -> float:
        """All steps, one after the other, without failures or checkpoints."""
        return self.steps * self.best[0].step_time_s


def plan_cluster(
    run_file: RunFile,
    source: Source | None,
    *,
    fixed: Fixed | None = None,
    price_usd: float | None = None,
) -> ClusterPlan:
    """Search the layouts of a workload on the cluster that the run file describes.

    Args:
        run_file: with `cluster.of`.
        source: where its fields stand.
        fixed: degrees that are decided beside those of the run file's layout.
        price_usd: of one accelerator hour; the run file's when left out.

    Raises:
        UsageError: something is unknown or does not multiply, with its place.
        EnvironmentProblem: no layout fits; the message counts why.
    """
    workload = run_file.workload
    if workload is None:
        raise UsageError("a command of your own cannot be planned; only a `workload` can")
    cluster = _located(source, ("cluster",), run_file.cluster.of or "")
    job = _job(workload, cluster, source)
    measurements = read_measurements(data_folder("clusters"), cluster)
    belief = belief_from(measurements, experts=isinstance(job, Job) and job.shape.experts > 0)
    price = price_usd or run_file.cluster.usd_per_accelerator_hour
    _check_price(run_file.goal, price, source)
    steps = _steps(workload, source)
    decided = {**_fixed_of_run_file(run_file, cluster, source), **(fixed or {})}
    result = _search(job, workload.global_batch, decided, keep=_TABLE_LENGTH, belief=belief)
    written = source.place(("layout",)) if source and run_file.layout else None
    _check_something_fits(result, decided, cluster, place=written)
    all_of_them = predictions(
        job, result.layouts, result.times, result.memories, global_batch=workload.global_batch, belief=belief
    )
    return ClusterPlan(
        job=job,
        global_batch=workload.global_batch,
        steps=steps,
        result=result,
        best=all_of_them[:_TABLE_LENGTH],
        front=[all_of_them[index] for index in result.front],
        scales=_scales(job, workload.global_batch, steps, run_file.goal, price, belief),
        notes=[*cluster.notes, *_learned(measurements), *outside_measured(job, cluster.num_accelerators)],
    )


def _learned(measurements: list[Measurement]) -> list[str]:
    if not measurements:
        return []
    newest = time.strftime("%Y-%m-%d", time.localtime(measurements[-1].created_at))
    return [f"calibrated by {len(measurements)} measurement(s) of this kind of cluster, the newest of {newest}"]


def _search(job: AnyJob, global_batch: int, fixed: Fixed, *, keep: int, belief: Belief) -> SearchResult:
    """Offloading is a last resort: it is searched where it was asked for, or where nothing fits without."""
    without = dict.fromkeys(("offload", "offload_optimizer"), 0) | dict(fixed)
    world_size = job.cluster.num_accelerators
    result = search(job, world_size=world_size, global_batch=global_batch, fixed=without, keep=keep, belief=belief)
    if result.fitting or without == fixed:
        return result
    return search(job, world_size=world_size, global_batch=global_batch, fixed=fixed, keep=keep, belief=belief)


def _located(source: Source | None, field: tuple[str, ...], text: str) -> ClusterDescription:
    try:
        return parse_cluster(text)
    except UsageError as error:
        raise UsageError(error.message, place=source.place(field) if source else None, hint=error.hint) from None


def _job(workload: Workload, cluster: ClusterDescription, source: Source | None) -> AnyJob:
    if workload.precision not in cluster.accelerator.peak_flops_per_s:
        raise UsageError(
            f"{cluster.accelerator.name} has no {workload.precision} matrix units",
            place=source.place(("workload", "precision")) if source else None,
            hint=f"it has {', '.join(sorted(cluster.accelerator.peak_flops_per_s))}",
        )
    if workload.model.preset is not None:
        return _preset_job(workload, workload.model.preset, cluster, source)
    return Job(
        model_shape(workload),
        workload.data.sequence_length,
        workload.precision,
        cluster,
        Stack(fused_kernels=workload.compile),
    )


def _preset_job(workload: Workload, name: str, cluster: ClusterDescription, source: Source | None) -> AnyJob:
    try:
        config = preset(name)
    except UsageError as error:
        place = source.place(("workload", "model", "preset")) if source else None
        raise UsageError(error.message, place=place, hint=error.hint) from None
    image_size = {} if workload.data.image_size is None else {"image_size": workload.data.image_size}
    if config.get("model_type") == "resnet":
        return ConvJob(
            conv_net_of_hf_config(config | image_size),
            workload.precision,
            cluster,
            Stack(fused_kernels=workload.compile),
        )
    shape = shape_of_hf_config(config | image_size)
    length = shape.max_sequence_length if shape.patch_values else workload.data.sequence_length
    if shape.learned_positions and length > shape.max_sequence_length:
        raise UsageError(
            f"data.sequence_length ({length}) is longer than the {shape.max_sequence_length} positions of `{name}`",
            place=source.place(("workload", "data", "sequence_length")) if source else None,
        )
    return Job(shape, length, workload.precision, cluster, Stack(fused_kernels=workload.compile))


def _fixed_of_run_file(run_file: RunFile, cluster: ClusterDescription, source: Source | None) -> dict[str, int]:
    if run_file.layout is None or run_file.workload is None:
        return {}
    try:
        resolve_layout(
            run_file.layout,
            world_size=cluster.num_accelerators,
            global_batch=run_file.workload.global_batch,
            micro_batch=1 if run_file.layout.micro_batch == "auto" else run_file.layout.micro_batch,
        )
    except LayoutError as error:
        raise source.locate(error) if source else error from None
    return fixed_of(run_file.layout)


def _check_something_fits(
    result: SearchResult, decided: Fixed, cluster: ClusterDescription, *, place: str | None
) -> None:
    if result.fitting:
        return
    if not result.evaluated and not result.rejections:
        written = ", ".join(f"{name} {value}" for name, value in decided.items())
        raise UsageError(
            f"no layout of {cluster.num_accelerators} accelerators has {written}",
            place=place,
            hint="degrees multiply to the accelerators, `micro_batch` divides a rank's share of the batch, "
            "`interleave` the layers of a stage",
        )
    reasons = "; ".join(f"{rejection.count:,} {rejection.unit}: {rejection.reason}" for rejection in result.rejections)
    nearest = next((rejection.nearest for rejection in result.rejections if rejection.unit == "layouts"), "")
    raise EnvironmentProblem(
        f"no layout fits {cluster.num_accelerators} x {format_bytes(cluster.accelerator.memory_bytes)}: {reasons}",
        hint=f"nearest: {nearest}" if nearest else "change the layout, the batch, or the number of accelerators",
    )


def _steps(workload: Workload, source: Source | None) -> int:
    try:
        return num_steps(workload, tokens_in_data=None)
    except UsageError as error:
        place = source.place(("workload", "train_for")) if source else None
        raise UsageError(error.message, place=place, hint="say how long to train in steps or tokens") from None


def _check_price(goal: Goal, price_usd: float | None, source: Source | None) -> None:
    if goal.budget is not None and price_usd is None:
        raise UsageError(
            "a budget needs the price of an accelerator hour",
            place=source.place(("goal", "budget")) if source else None,
            hint="set `cluster.usd_per_accelerator_hour`",
        )


def _scales(
    job: AnyJob, global_batch: int, steps: int, goal: Goal, price_usd: float | None, belief: Belief
) -> list[Scale]:
    """The cluster and its parts, as far as there is a goal; the ones that nothing beats in time and size."""
    if goal.deadline is None and goal.budget is None:
        return []
    scales: list[Scale] = []
    for num_nodes in _node_counts(job.cluster.num_nodes):
        scale = _scale(job, num_nodes, global_batch, steps, goal, price_usd, belief)
        if scale and (not scales or scale.run_time_s < scales[-1].run_time_s):
            scales.append(scale)
        if num_nodes >= job.cluster.num_nodes and (scales and scales[-1].meets_goal):
            break
    return scales


def _scale(
    job: AnyJob, num_nodes: int, global_batch: int, steps: int, goal: Goal, price_usd: float | None, belief: Belief
) -> Scale | None:
    cluster = job.cluster.model_copy(update={"num_nodes": num_nodes})
    smaller = replace(job, cluster=cluster)
    result = _search(smaller, global_batch, {}, keep=1, belief=belief)
    if not result.fitting:
        return None
    best = predictions(
        smaller, result.layouts, result.times, result.memories, global_batch=global_batch, belief=belief
    )[0]
    run_time_s = steps * best.step_time_s
    hours = run_time_s / _SECONDS_PER_HOUR * cluster.num_accelerators
    cost = None if price_usd is None else hours * price_usd
    in_time = goal.deadline is None or run_time_s <= goal.deadline
    in_budget = goal.budget is None or (cost is not None and cost <= goal.budget)
    return Scale(num_nodes, best, run_time_s, cost, in_time and in_budget)


def _node_counts(num_nodes: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12 ... and the whole cluster, ascending; up to several times the cluster."""
    counts = {num_nodes, 1} | {base << shift for base in (2, 3) for shift in range(20)}
    return iter(sorted(count for count in counts if count <= _LARGEST_SCALE * num_nodes))
