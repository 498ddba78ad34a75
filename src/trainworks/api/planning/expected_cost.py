"""What a job will cost before it is submitted, by its plan or its time limit, and the nodes that it asks for."""

from __future__ import annotations

from trainworks.backends.backend import Backend
from trainworks.catalog.catalog import accelerator, load_catalog
from trainworks.catalog.cluster import ClusterDescription, cluster_of_nodes, node_of_accelerators
from trainworks.catalog.exchange import exchange_for, usd_of
from trainworks.catalog.prices import known_accelerator
from trainworks.config.run_file import RunFile
from trainworks.errors import TrainworksError, UsageError
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.described_nodes import described_part
from trainworks.jobs.job_spec import JobSpec
from trainworks.plan.cost.expected import ExpectedCost
from trainworks.plan.cost.renting import accelerator_price
from trainworks.record.resolved import ResolvedRun


def expected_cost(resolved: ResolvedRun, spec: JobSpec, jobs: int = 1) -> ExpectedCost | None:
    """What these jobs will cost: by the plan of a workload, or at most by the time limit of any other job.

    Args:
        resolved: one of the jobs, with its forecast if it runs on another cluster.
        spec: what it requests.
        jobs: number of such jobs.

    Returns:
        None where the job has no accelerators, no price, or neither a plan nor a time limit.
    """
    accelerators, times_s = spec.num_accelerators, _times_s(resolved, spec)
    if not accelerators or times_s is None:
        return None
    run_file, forecast = resolved.run_file, resolved.forecast
    if forecast is not None:
        usd = forecast.usd_per_accelerator_hour
    else:
        usd = price_of(run_file, None if run_file.cluster.engine == "local" else nodes_of_job(run_file, None))
    low_s, high_s = times_s
    if usd is None:
        return None
    exchange = exchange_for(run_file.goal.budget, run_file.cluster.hour_price)
    return ExpectedCost(
        accelerators=accelerators,
        usd_per_accelerator_hour=usd,
        low_s=low_s,
        high_s=high_s,
        jobs=jobs,
        exchange=exchange,
    )


def _times_s(resolved: ResolvedRun, spec: JobSpec) -> tuple[float | None, float] | None:
    """How long a job holds its nodes: the interval of its plan, else (None, time limit).

    None if nothing tells, or if the job fails too often to finish.
    """
    forecast, plan = resolved.forecast, resolved.plan
    if forecast is not None and forecast.train_s is not None:
        return None if forecast.finish_s is None else (forecast.finish_s[0], forecast.finish_s[2])
    if resolved.run_file.cluster.engine == "local" and plan is not None and plan.expected is not None:
        outside_s = plan.run_time_s - plan.num_steps * plan.step_time.total_s
        low_s, high_s = plan.expected.low_s, plan.expected.high_s
        return outside_s + plan.num_steps * low_s, outside_s + plan.num_steps * high_s
    return None if spec.time_limit_s is None else (None, spec.time_limit_s)


def price_of(run_file: RunFile, cluster: ClusterDescription | None) -> float | None:
    """USD per accelerator hour: that of the run file, or the cheapest on demand of the catalogue for known nodes."""
    written = usd_of(run_file.cluster.hour_price)
    if written is not None or cluster is None:
        return written
    offered = accelerator_price(cluster, load_catalog().offers.values())
    return None if offered is None else offered.value


def nodes_of_job(run_file: RunFile, backend: Backend | None) -> ClusterDescription | None:
    """The nodes of the job; None where they have no accelerators, or some that the catalogue lacks."""
    if run_file.cluster.of is not None:
        return described_part(run_file)
    wanted = run_file.resources.accelerators[0] if run_file.resources and run_file.resources.accelerators else None
    per_node = run_file.cluster.processes_per_node
    count = per_node if per_node != "auto" else wanted.count if wanted else 1
    name = _accelerator(wanted.kind if wanted else None, backend)
    if wanted is None or name is None:
        return None
    try:
        return cluster_of_nodes(
            node_of_accelerators(accelerator(name), count), run_file.nodes, node_name=f"{count}x {name}"
        )
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
