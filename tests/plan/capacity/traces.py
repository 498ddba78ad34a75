"""Traces that several tests share."""

from __future__ import annotations

from hypothesis import strategies as st

from trainworks.plan.capacity.jobs import JobTrace, TraceJob, trace_of
from trainworks.plan.capacity.policy import Elastic, Policy, Spot

HOUR = 3600.0

jobs = st.builds(
    TraceJob,
    submit_s=st.integers(0, 5000).map(float),
    accelerators=st.integers(1, 20),
    duration_s=st.integers(1, 3000).map(float),
    team=st.sampled_from(["a", "b"]),
    priority=st.integers(0, 2),
    deadline_s=st.none() | st.integers(1, 9000).map(float),
    preemptible=st.booleans(),
    checkpoint_s=st.none() | st.integers(60, 900).map(float),
)
traces = st.lists(jobs, min_size=1, max_size=20).map(trace_of)


def _policies(
    fixed_nodes: st.SearchStrategy[int], on_demand_nodes: st.SearchStrategy[int]
) -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        node_accelerators=st.just(4),
        fixed_nodes=fixed_nodes,
        on_demand=st.builds(Elastic, max_nodes=on_demand_nodes, start_latency_s=st.sampled_from([0.0, 100.0])),
        spot=st.builds(Spot, max_nodes=st.integers(0, 6), mean_life_s=st.just(2000.0), restart_s=st.just(50.0)),
        backlog_s=st.sampled_from([0.0, 500.0]),
        patience_s=st.sampled_from([300.0, float("inf")]),
        backfill=st.booleans(),
    )


policies = _policies(st.integers(5, 8), st.integers(0, 6)) | _policies(st.integers(0, 4), st.integers(5, 8))
"""Each can run every job of `traces`, on its fixed nodes or on its on-demand nodes."""


def job(submit_s: float, accelerators: int, duration_s: float, **others: object) -> TraceJob:
    """A job of which only some fields matter."""
    return TraceJob(submit_s, accelerators, duration_s, **others)  # type: ignore[arg-type]


def trace(*several: TraceJob) -> JobTrace:
    """The trace of these jobs."""
    return trace_of(several)
