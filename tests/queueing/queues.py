"""Nodes and jobs in few words, and a queue that is played forward decision by decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st

from trainworks.queueing.decide import decide
from trainworks.queueing.snapshot import Decision, GangShape, NodeInfo, QueuedJob, RunningJob, Snapshot


def node(name: str, accelerators: int = 8, **fields: Any) -> NodeInfo:
    """A node of eight A100, 64 cores and 512 GB, unless said otherwise."""
    usual = {"cores": 64.0, "accelerator": "A100" if accelerators else None, "memory_bytes": 512 * 10**9}
    return NodeInfo(name=name, accelerators=accelerators, **(usual | fields))


def nodes(count: int, accelerators: int = 8, **fields: Any) -> tuple[NodeInfo, ...]:
    """Equal nodes `n1`, `n2` ..."""
    return tuple(node(f"n{number}", accelerators, **fields) for number in range(1, count + 1))


def shape(accelerators: int = 8, count: int = 1, **fields: Any) -> GangShape:
    """A gang of so many nodes with so many accelerators each, and nothing else."""
    usual: dict[str, Any] = {
        "nodes_min": count,
        "nodes_max": count,
        "cores_per_node": 0.0,
        "accelerator": None,
        "memory_per_node_bytes": 0,
    }
    return GangShape(accelerators_per_node=accelerators, **(usual | fields))


def waiting(job_id: int, of: GangShape | None = None, **fields: Any) -> QueuedJob:
    """A job of priority 50, submitted in the order of the numbers, without a time limit."""
    usual: dict[str, Any] = {"priority": 50, "submitted_at": float(job_id), "time_limit_s": None}
    return QueuedJob(job_id=job_id, shape=of or shape(), **(usual | fields))


def running(job_id: int, of: GangShape, *names: str, **fields: Any) -> RunningJob:
    """A job of priority 50 that started at 0 and is not preempted, without a time limit."""
    usual: dict[str, Any] = {
        "priority": 50,
        "started_at": 0.0,
        "time_limit_s": None,
        "preemptible": False,
        "grace_s": 30.0,
    }
    return RunningJob(job_id=job_id, shape=of, nodes=names, **(usual | fields))


def snapshot(
    on: Iterable[NodeInfo], queue: Iterable[QueuedJob] = (), busy: Iterable[RunningJob] = (), now: float = 0.0
) -> Snapshot:
    """Everything at a moment."""
    return Snapshot(now=now, nodes=tuple(on), waiting=tuple(queue), running=tuple(busy))


NAMES = [f"n{number}" for number in range(1, 6)]
SHAPES = st.builds(
    lambda least, more, **fields: shape(nodes_min=least, nodes_max=least + more, **fields),
    least=st.integers(1, 3),
    more=st.integers(0, 2),
    accelerators=st.sampled_from([0, 1, 2, 3, 4, 8]),
    cores_per_node=st.sampled_from([0.0, 0.5, 8.0, 24.0]),
    memory_per_node_bytes=st.sampled_from([0, 10**9, 200 * 10**9, 300 * 10**9]),
    accelerator=st.sampled_from([None, None, "A100"]),
    exclude=st.frozensets(st.sampled_from(NAMES), max_size=1),
    same_rack=st.booleans(),
)


def with_roles(*roles: GangShape) -> GangShape:
    """A gang of roles; its own amounts are the most of each."""
    return shape(
        max(role.accelerators_per_node for role in roles),
        sum(role.nodes_min for role in roles),
        cores_per_node=max(role.cores_per_node for role in roles),
        memory_per_node_bytes=max(role.memory_per_node_bytes for role in roles),
        roles=roles,
    )


ROLES = st.lists(
    SHAPES.map(lambda of: replace(of, nodes_min=min(of.nodes_min, 2), nodes_max=min(of.nodes_min, 2), same_rack=False)),
    min_size=1,
    max_size=3,
).map(lambda roles: with_roles(*roles))

NODES = st.lists(
    st.builds(
        node,
        st.sampled_from(NAMES),
        st.sampled_from([0, 4, 8, 8]),
        rack=st.sampled_from(["a", "b", None]),
        drained=st.sampled_from([None, None, None, "disk"]),
        down=st.sampled_from([None, None, None, "no answer"]),
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda one: one.name,
)


@dataclass
class Played:
    """A queue played forward; a preempted job goes back into it and starts over."""

    nodes: tuple[NodeInfo, ...]
    lasts_s: Mapping[int, float]
    """How long each job runs; one beyond its time limit is ended at the limit."""
    waiting: dict[int, QueuedJob] = field(default_factory=dict)
    running: dict[int, RunningJob] = field(default_factory=dict)
    now: float = 0.0
    started_at: dict[int, float] = field(default_factory=dict)
    """The last start of each job."""
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    _jobs: dict[int, QueuedJob] = field(default_factory=dict)
    _gone_at: dict[int, float] = field(default_factory=dict)

    def play(self, events: int = 200) -> Played:
        """Decide at every end until nothing is left to happen."""
        for job in self.running.values():
            self._gone_at[job.job_id] = self._end_of(job)
        for _ in range(events):
            self._decide()
            if not self.running:
                return self
            self.now = min(self._gone_at.values())
            for job_id in [job_id for job_id, at in self._gone_at.items() if at <= self.now]:
                self._end(job_id)
        return self

    def snapshot(self) -> Snapshot:
        """What the policy sees."""
        return snapshot(self.nodes, self.waiting.values(), self.running.values(), self.now)

    def _decide(self) -> None:
        decision = decide(self.snapshot())
        self.decisions.append((self.now, decision))
        for start in decision.starts:
            job = self._jobs[start.job_id] = self.waiting.pop(start.job_id)
            self.started_at[job.job_id] = self.now
            started = RunningJob(
                job_id=job.job_id,
                shape=job.shape,
                nodes=start.nodes,
                priority=job.priority,
                started_at=self.now,
                time_limit_s=job.time_limit_s,
                preemptible=True,
                grace_s=5.0,
            )
            self.running[job.job_id] = started
            self._gone_at[job.job_id] = self._end_of(started)
        for preempt in decision.preempts:
            job = self.running[preempt.job_id]
            self.running[job.job_id] = replace(job, ending=True)
            self._gone_at[job.job_id] = min(self._gone_at[job.job_id], self.now + job.grace_s)
        for cancel in decision.cancels:
            del self.waiting[cancel.job_id]

    def _end_of(self, job: RunningJob) -> float:
        limit = float("inf") if job.time_limit_s is None else job.time_limit_s
        return job.started_at + min(limit, self.lasts_s.get(job.job_id, limit))

    def _end(self, job_id: int) -> None:
        job = self.running.pop(job_id)
        is_done = self._gone_at.pop(job_id) >= self._end_of(job)
        if not is_done and job_id in self._jobs:
            self.waiting[job_id] = self._jobs[job_id]
