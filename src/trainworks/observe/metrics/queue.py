"""Metrics of the job store or of Slurm's queue. The ends of the names are those of Slurm's own where it has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from trainworks.jobs.cluster_job import ClusterJob
from trainworks.jobs.state import JobState
from trainworks.observe.metrics.family import MetricFamily, MetricSample

_STORE = "the job store, or `squeue` with `--cluster slurm`"


def _family(name: str, text: str, slurm: str = "") -> MetricFamily:
    return MetricFamily(f"trainworks_{name}", text, source=f"{_STORE}; Slurm: `{slurm}`" if slurm else _STORE)


_STATES = {
    JobState.QUEUED: _family("jobs_pending", "Jobs that wait for their first nodes.", "slurm_jobs_pending"),
    JobState.STARTING: _family("jobs_configuring", "Jobs whose processes start.", "slurm_jobs_configuring"),
    JobState.RUNNING: _family("jobs_running", "Jobs that run.", "slurm_jobs_running"),
    JobState.RECOVERING: _family("jobs_recovering", "Jobs that restart after a failure."),
    JobState.PREEMPTED: _family("jobs_preempted", "Jobs that lost their nodes and wait.", "slurm_jobs_preempted"),
    JobState.SUCCEEDED: _family("jobs_completed", "Jobs of the queue that succeeded.", "slurm_jobs_completed"),
    JobState.FAILED: _family("jobs_failed", "Jobs of the queue that failed.", "slurm_jobs_failed"),
    JobState.STOPPED: _family("jobs_cancelled", "Jobs of the queue that were stopped.", "slurm_jobs_cancelled"),
    JobState.UNKNOWN: _family("jobs_unknown", "Jobs in a state that only their backend knows."),
}
_JOBS = _family("jobs", "Jobs of the queue.", "slurm_jobs")
_HELD = _family("jobs_hold", "Waiting jobs that are held.", "slurm_jobs_hold")
_CORES = _family("jobs_cpus_alloc", "Processor cores that jobs hold.", "slurm_jobs_cpus_alloc")
_ACCELERATORS = _family("jobs_gpus_alloc", "Accelerators that jobs hold.", "slurm_jobs_gpus_alloc")
_NODES = _family("jobs_nodes_alloc", "Nodes on which jobs hold a share.", "slurm_jobs_nodes_alloc")
_UNREACHABLE = _family("jobs_unreachable", "Unfinished jobs whose backend does not answer.")
_OLDEST = _family("queue_oldest_submission_timestamp_seconds", "Submission of the job that waits longest.")
_DRAINED = _family("nodes_drain", "Nodes of the queue that get no more jobs.", "slurm_nodes_drain")
_ASLEEP = MetricFamily(
    "trainworks_node_powered_down",
    "A node that Slurm has stopped to save power, stops or starts; the value is 1.",
    labels=("node",),
    source="`sinfo` with `--cluster slurm`",
)
_JOB_NODE = MetricFamily(
    "trainworks_job_node_info",
    "A node on which a job holds a share; the value is 1.",
    labels=("node", "job_id", "run", "owner", "team"),
    source=_STORE,
)
QUEUE_FAMILIES = (
    _JOBS,
    *_STATES.values(),
    _HELD,
    _CORES,
    _ACCELERATORS,
    _NODES,
    _UNREACHABLE,
    _OLDEST,
    _DRAINED,
    _ASLEEP,
    _JOB_NODE,
)


def queue_samples(
    counts: Mapping[JobState, int], live: Sequence[ClusterJob], *, drained_nodes: int, asleep: Iterable[str] = ()
) -> Iterator[MetricSample]:
    """Metrics of the queue: `counts` of all its jobs by state, the jobs that have not ended, nodes that get no more
    jobs, and names of those that save power.
    """
    waiting = [job for job in live if job.state.waits]
    holders = [job for job in live if job.state.holds_resources]
    yield _JOBS.sample(sum(counts.values()))
    for state, family in _STATES.items():
        yield family.sample(counts.get(state, 0))
    yield _HELD.sample(sum(job.held for job in waiting))
    yield _CORES.sample(sum(job.cores for job in holders))
    yield _ACCELERATORS.sample(sum(job.accelerators for job in holders))
    yield _NODES.sample(len({node for job in holders for node in job.nodes}))
    yield _UNREACHABLE.sample(sum(not job.reachable for job in live))
    yield _DRAINED.sample(drained_nodes)
    yield from (_ASLEEP.sample(1, node) for node in asleep)
    if waiting:
        yield _OLDEST.sample(min(job.submitted_at for job in waiting))
    for job in holders:
        labels = (job.id, job.name, job.owner, job.team)
        yield from (_JOB_NODE.sample(1, node, *labels) for node in job.nodes)
