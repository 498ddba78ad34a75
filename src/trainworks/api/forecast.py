"""The plan and the cost of a job before it is submitted: what the catalogue says of the nodes that it asks for.

On its nodes the job is planned again, from measured rates; the report holds both against the run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainworks.api.planned_model import model_shape
from trainworks.backends.backend import Backend
from trainworks.catalog.catalog import load_catalog
from trainworks.catalog.cluster import ClusterDescription, parse_cluster
from trainworks.catalog.prices import known_accelerator
from trainworks.config.run_file import RunFile
from trainworks.config.source import Source
from trainworks.errors import LayoutError, TrainworksError, UsageError
from trainworks.host.folders import data_folder
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.described_nodes import described_part
from trainworks.jobs.job_spec import JobSpec
from trainworks.plan.cluster.learning import belief_from
from trainworks.plan.cluster.scaling import TABLE_LENGTH
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.plan.cost.renting import accelerator_price
from trainworks.plan.degrees import layouts_of
from trainworks.plan.prediction import predictions
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.pricing import described_job
from trainworks.plan.run.steps import num_steps
from trainworks.record.measured.measurement_store import read_measurements
from trainworks.record.resolved import Forecast, ResolvedRun
from trainworks.units import HOUR_S


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
        LayoutError: the layout of the run file does not fit the accelerators or the model.
        EnvironmentProblem: no layout fits into the memory of these accelerators.
    """
    workload = run_file.workload
    if workload is None or workload.task != "causal-lm":
        return None
    cluster = _cluster_of(run_file, backend)
    if cluster is None or workload.precision not in cluster.accelerator.peak_flops_per_s:
        return None
    try:
        job = described_job(workload, model_shape(workload), cluster)
    except TrainworksError:  # its config is where the job runs, and is read there
        return None
    belief = belief_from(read_measurements(data_folder("clusters"), cluster) if learning else [], job)
    job = replace(job, slowdowns=belief.slowdowns)
    try:
        compared = choose_layouts(job, run_file.layout, keep=TABLE_LENGTH)
    except LayoutError as error:
        raise source.locate(error) if source else error from None
    best, layouts = compared[0], layouts_of([one.layout for one in compared])
    prediction, *_ = predictions(
        job,
        layouts,
        job.step_times(layouts),
        job.memories(layouts),
        global_batch=workload.global_batch,
        belief=belief,
        families=np.arange(len(layouts)),
        selection=run_file.layout.selection if run_file.layout else 0.0,
    )
    is_counted = workload.train_for.unit != "epochs"
    train_s = num_steps(workload, tokens_in_data=None) * prediction.step_time_s if is_counted else None
    price = _price(run_file, cluster)
    return Forecast(
        cluster=cluster.name,
        layout=best.layout,
        step_s=prediction.step_time_s,
        low_s=prediction.low_s,
        high_s=prediction.high_s,
        memory_bytes=best.memory_bytes,
        train_s=train_s,
        usd=None if price is None or train_s is None else price * train_s / HOUR_S * cluster.num_accelerators,
    )


def expected_cost(resolved: ResolvedRun, spec: JobSpec, jobs: int = 1) -> ExpectedCost | None:
    """What these jobs will cost: by the plan of a workload, or at most by the time limit of any other job.

    Args:
        resolved: one of the jobs, with its forecast if it runs on another cluster.
        spec: what it requests.
        jobs: number of such jobs.

    Returns:
        None where the job has no accelerators, no price, or neither a plan nor a time limit.
    """
    accelerators, times_s = spec.max_nodes * spec.node.accelerators, _times_s(resolved, spec)
    if not accelerators or times_s is None:
        return None
    run_file, forecast = resolved.run_file, resolved.forecast
    cluster = parse_cluster(forecast.cluster) if forecast else None
    if cluster is None and run_file.cluster.engine != "local":
        cluster = _cluster_of(run_file, None)
    usd, (low_s, high_s) = _price(run_file, cluster), times_s
    if usd is None:
        return None
    return ExpectedCost(accelerators=accelerators, usd_per_accelerator_hour=usd, low_s=low_s, high_s=high_s, jobs=jobs)


def _times_s(resolved: ResolvedRun, spec: JobSpec) -> tuple[float | None, float] | None:
    """How long a job holds its nodes: the interval of its plan, else (None, time limit); None if nothing tells."""
    forecast, plan = resolved.forecast, resolved.plan
    if forecast is not None and forecast.train_s is not None:
        steps = forecast.train_s / forecast.step_s
        return steps * forecast.low_s, steps * forecast.high_s
    if resolved.run_file.cluster.engine == "local" and plan is not None and plan.expected is not None:
        outside_s = plan.run_time_s - plan.num_steps * plan.step_time.total_s
        low_s, high_s = plan.expected.low_s, plan.expected.high_s
        return outside_s + plan.num_steps * low_s, outside_s + plan.num_steps * high_s
    return None if spec.time_limit_s is None else (None, spec.time_limit_s)


def _price(run_file: RunFile, cluster: ClusterDescription | None) -> float | None:
    """USD per accelerator hour: that of the run file, or the cheapest on demand of the catalogue for known nodes."""
    written = run_file.cluster.usd_per_accelerator_hour
    if written is not None or cluster is None:
        return written
    offered = accelerator_price(cluster, load_catalog().offers.values())
    return None if offered is None else offered.value


def _cluster_of(run_file: RunFile, backend: Backend | None) -> ClusterDescription | None:
    """The nodes of the job; None where they have no accelerators, or some that the catalogue lacks."""
    if run_file.cluster.of is not None:
        return described_part(run_file)
    wanted = run_file.resources.accelerators[0] if run_file.resources and run_file.resources.accelerators else None
    per_node = run_file.cluster.processes_per_node
    count = per_node if per_node != "auto" else wanted.count if wanted else 1
    name = _accelerator(wanted.kind if wanted else None, backend)
    if wanted is None or name is None:
        return None
    nodes = f"{run_file.nodes} nodes of " if run_file.nodes > 1 else ""
    try:
        return parse_cluster(f"{nodes}{count}x {name}")
    except UsageError:  # no network is known for such nodes
        return None


def _accelerator(kind: str | None, backend: Backend | None) -> str | None:
    """Name in the catalogue of the accelerators that the run file asks for, in the words of the nodes."""
    try:
        nodes = backend.nodes() if backend is not None else []
        there = list(dict.fromkeys(node.accelerator for node in nodes if node.accelerator))
    except TrainworksError:  # a scheduler that does not answer: submission will say so
        there = []
    if kind is None:
        return known_accelerator(there[0]) if len(there) == 1 else None
    matching = matching_names(kind, there)
    return next((known for name in (*matching, kind) if (known := known_accelerator(name)) is not None), None)
