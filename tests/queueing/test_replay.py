"""The replay of traces starts jobs by the rules of the live queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainworks.plan.capacity.jobs import TraceJob, trace_of
from trainworks.plan.capacity.policy import Policy
from trainworks.plan.capacity.simulation import replay
from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import GangShape, NodeInfo, QueuedJob, RunningJob, Snapshot

NUM_NODES = 4
NODES = tuple(
    NodeInfo(name=f"n{number}", cores=1, accelerators=1, accelerator="A", memory_bytes=0) for number in range(NUM_NODES)
)
JOBS = st.builds(
    TraceJob,
    submit_s=st.integers(0, 30).map(float),
    accelerators=st.integers(1, NUM_NODES),
    duration_s=st.integers(1, 20).map(float),
    priority=st.integers(0, 2),
)


@given(st.lists(JOBS, min_size=1, max_size=12))
def test_a_replay_on_equal_nodes_starts_every_job_when_the_live_queue_does(jobs: list[TraceJob]) -> None:
    trace = trace_of(jobs)
    result = replay(trace, Policy(node_accelerators=1, fixed_nodes=NUM_NODES))
    rows = zip(trace.submit_s.tolist(), trace.accelerators.tolist(), trace.duration_s.tolist(), strict=True)
    queued = [
        QueuedJob(job_id=number, shape=shape_of(size), priority=priority, submitted_at=at, time_limit_s=length)
        for number, ((at, size, length), priority) in enumerate(zip(rows, trace.priority.tolist(), strict=True))
    ]
    waits = [start - job.submitted_at for start, job in zip(live_starts(queued), queued, strict=True)]
    assert result.wait_s == waits


def live_starts(jobs: list[QueuedJob]) -> list[float]:
    """Start of each job in the live queue, if every job uses up its time limit."""
    starts: dict[int, float] = {}
    running: list[RunningJob] = []
    times = {job.submitted_at for job in jobs}
    while times:
        now = min(times)
        times.remove(now)
        running = [job for job in running if job.started_at + (job.time_limit_s or 0) > now]
        waiting = tuple(job for job in jobs if job.submitted_at <= now and job.job_id not in starts)
        for start in decide(Snapshot(now=now, nodes=NODES, waiting=waiting, running=tuple(running))).starts:
            job = jobs[start.job_id]
            starts[job.job_id] = now
            running.append(running_job(job, start.nodes, now))
            times.add(now + (job.time_limit_s or 0))
    return [starts[job.job_id] for job in jobs]


def running_job(job: QueuedJob, nodes: tuple[str, ...], now: float) -> RunningJob:
    return RunningJob(
        job_id=job.job_id,
        shape=job.shape,
        nodes=nodes,
        priority=job.priority,
        started_at=now,
        time_limit_s=job.time_limit_s,
        preemptible=False,
        grace_s=0.0,
    )


def shape_of(num_nodes: int) -> GangShape:
    return GangShape(
        nodes_min=num_nodes,
        nodes_max=num_nodes,
        cores_per_node=0,
        accelerators_per_node=1,
        accelerator="A",
        memory_per_node_bytes=0,
    )
