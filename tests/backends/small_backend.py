"""A backend as small as one can be: four nodes that are names, and a supervisor process for each job.

It has no daemon: every poll starts what has room. That is enough to keep the promises of `backends.backend`.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

from trainworks.agent.launch import end_left_over
from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import entering
from trainworks.errors import UnansweredError, UnreachableError, UsageError
from trainworks.host import process
from trainworks.jobs.job_spec import JobSpec, parse_dependency
from trainworks.jobs.state import Cause, JobState, parse_cause, parse_state
from trainworks.record.events.log import append_event, read_events
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import NEXT_TURN, RestartLimit, earlier_turns, may_restart

NODES = ("small1", "small2", "small3", "small4")


@dataclass
class Job:
    """What the backend keeps of one job."""

    spec: JobSpec
    run_dir: RunDir
    held: bool
    nodes: tuple[str, ...] = ()
    supervisor: process.Child | None = None
    restarts: int = 0
    stopped: bool = False
    lost_node: bool = False
    ended: bool = False
    """Whether its last supervisor has said how it ended; the run may be another job's since."""


@dataclass
class Site:
    """What outlives a backend object: its jobs, its nodes, and whether it answers."""

    jobs: dict[str, Job] = field(default_factory=dict)
    drained: dict[str, str] = field(default_factory=dict)
    answers: bool = True
    loses_answers: bool = False
    """Whether it takes jobs, and its answer does not arrive."""
    word: str | None = None
    """What it says of every job instead of the truth."""


@final
class SmallBackend(Backend):
    """Runs jobs as processes of this test."""

    name: ClassVar[str] = "small"
    unsupported: ClassVar[frozenset[Capability]] = frozenset({"edit", "min_nodes", "roles", "time_limit", "priority"})

    def __init__(self, site: Site) -> None:
        self._site = site

    @classmethod
    def connect(cls, cluster: Any, *, store: Any = None, program: Any = None) -> SmallBackend:
        return cls(Site())

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        return RenderedJob(spec, f"supervise {run_dir.path}\n")

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        if (there := self.find(run_dir)) is not None:
            return there
        handle = str(len(self._site.jobs) + 1)
        self._site.jobs[handle] = job = Job(rendered.spec, run_dir, rendered.spec.hold)
        self._start_if_there_is_room(job)
        if self._site.loses_answers:
            raise UnansweredError("the small backend did not answer")
        return handle

    def find(self, run_dir: RunDir) -> str | None:
        self._answer()
        jobs = self._site.jobs.items()
        of_run = (handle for handle, job in jobs if job.run_dir.path == run_dir.path and not self._is_over(job))
        return next(of_run, None)

    def _is_over(self, job: Job) -> bool:
        return self._job_status(job).state.is_final

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        self._answer()
        for job in self._site.jobs.values():
            self._requeue_if_lost(job)
            self._start_if_there_is_room(job)
        seen = {handle: self._job_status(self._site.jobs[handle]) for handle in handles if handle in self._site.jobs}
        if self._site.word is not None:
            return {handle: JobStatus(state=JobState.UNKNOWN, raw=self._site.word) for handle in seen}
        return seen

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        job = self._known(handle)
        if job.supervisor is None:
            job.stopped = True
        else:
            for _ in range(2 if at_once else 1):
                job.supervisor.signal_group(signal.SIGTERM)

    def hold(self, handle: str) -> None:
        self._known(handle).held = True

    def release(self, handle: str) -> None:
        self._known(handle).held = False

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        return entering(str(run_dir.path.resolve()), command, node=node)

    def nodes(self) -> list[NodeStatus]:
        self._answer()
        taken = self._taken()
        return [
            NodeStatus(
                name=name,
                state="drained" if name in self._site.drained else "taken" if name in taken else "free",
                reason=self._site.drained.get(name),
            )
            for name in NODES
        ]

    def drain(self, node: str, reason: str) -> None:
        self._site.drained[node] = reason

    def undrain(self, node: str) -> None:
        self._site.drained.pop(node, None)

    def lose(self, node: str) -> None:
        """Take a node away, with everything that runs there."""
        self._site.drained[node] = "lost"
        for job in self._site.jobs.values():
            if node in job.nodes and job.supervisor is not None and job.supervisor.exit_code() is None:
                job.lost_node = True
                job.supervisor.signal_group(signal.SIGKILL)
                end_left_over(job.run_dir)

    def _answer(self) -> None:
        if not self._site.answers:
            raise UnreachableError("the small backend does not answer")

    def _known(self, handle: str) -> Job:
        self._answer()
        if handle not in self._site.jobs:
            raise UsageError(f"no job `{handle}`")
        return self._site.jobs[handle]

    def _taken(self) -> set[str]:
        return {
            node for job in self._site.jobs.values() if not self._job_status(job).state.is_final for node in job.nodes
        }

    def _start_if_there_is_room(self, job: Job) -> None:
        if job.supervisor is not None or job.held or job.stopped or not self._are_met(job.spec.depends_on):
            return
        free = [node for node in NODES if node not in self._taken() | set(self._site.drained) | set(job.spec.exclude)]
        if len(free) >= job.spec.max_nodes:
            job.nodes = tuple(free[: job.spec.max_nodes])
            events = job.run_dir.events_file
            turns = earlier_turns(read_events(events))
            append_event(
                events, {"kind": "submitted", "nodes": len(job.nodes), "hosts": list(job.nodes), "restarts": turns}
            )
            command = process.python_module("trainworks.agent.supervisor", str(job.run_dir.path), "0")
            job.supervisor = process.spawn(command, log=job.run_dir.supervisor_log, new_session=True)

    def _are_met(self, depends_on: Sequence[str]) -> bool:
        """Whether the jobs of all dependencies, which come with their handles, ended as they should."""
        found = [(one, self._job_status(self._site.jobs[one.job]).state) for one in map(parse_dependency, depends_on)]
        return all(state is JobState.SUCCEEDED or (state.is_final and not one.needs_success) for one, state in found)

    def _requeue_if_lost(self, job: Job) -> None:
        """Give a job another turn that lost a node or its supervisor, while it has a restart left."""
        if job.supervisor is not None and not job.ended and job.supervisor.exit_code() is not None:
            end_left_over(job.run_dir)
        if job.supervisor is None or job.ended or job.supervisor.exit_code() is None:
            return
        if parse_state(self._last_word(job).state).is_final:
            job.ended = True
            return
        events = job.run_dir.events_file
        cause = Cause.NODE_LOST if job.lost_node else Cause.AGENT_LOST
        if may_restart(read_events(events), RestartLimit(job.spec.max_restarts), NEXT_TURN):
            end_left_over(job.run_dir)
            append_event(events, {"kind": "state", "state": JobState.QUEUED, "cause": cause, "message": None})
            job.supervisor, job.nodes, job.lost_node = None, (), False
            job.restarts += 1
            job.run_dir.write_status(RunStatus(state=JobState.QUEUED, cause=cause))

    def _last_word(self, job: Job) -> RunStatus:
        return job.run_dir.read_status()

    def _job_status(self, job: Job) -> JobStatus:
        if job.stopped:
            return JobStatus(state=JobState.STOPPED, raw="stopped")
        if job.supervisor is None:
            return JobStatus(state=JobState.QUEUED, raw="waits", reason="Held" if job.held else "Resources")
        seen = {"nodes": job.nodes, "restarts": job.restarts, "raw": "runs"}
        code = job.supervisor.exit_code()
        if code is None:
            return JobStatus(state=JobState.RUNNING, **seen)
        status = self._last_word(job)
        state = parse_state(status.state)
        if not state.is_final:
            cause = Cause.NODE_LOST if job.lost_node else Cause.AGENT_LOST
            return JobStatus(state=JobState.FAILED, cause=cause, exit_code=code, **seen)
        return JobStatus(state=state, cause=parse_cause(status.cause), exit_code=status.exit_code, **seen)


def end_all(site: Site) -> None:
    """Kill whatever runs."""
    for job in site.jobs.values():
        if job.supervisor is not None and job.supervisor.exit_code() is None:
            job.supervisor.signal_group(signal.SIGKILL)
        end_left_over(job.run_dir)
        if job.supervisor is not None:
            job.supervisor.wait(60.0)
