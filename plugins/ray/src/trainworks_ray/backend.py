"""A Ray cluster that runs already."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self, final

from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import find_patiently
from trainworks.backends.registry import plugin_options
from trainworks.config.run_file import Cluster
from trainworks.errors import UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir
from trainworks_ray.client import RayClient, Refused
from trainworks_ray.options import RayOptions
from trainworks_ray.render import (
    attempt_of,
    gang_of,
    mark_of,
    package_of_folder,
    package_of_gang,
    request_of,
)
from trainworks_ray.states import JOB_STATES, job_status, node_facts

__all__ = ["RayBackend"]

_LOOK_S = 1.0
_LONGEST_PAUSE_S = 30.0
_OF_A_NODE = re.compile(r"\[node (\d+)\] (.*)")
_TAKEN = re.compile(r"already exists")


@final
class RayBackend(Backend):
    """Submits jobs to Ray's dashboard, and reads them back from there.

    What runs is the driver in `scheduler.ray.gang`, which is sent along: Ray's nodes need no Trainworks.

    Args:
        options: what the run file says about Ray.
        program: what the job runs; needed to render one, and to submit it.
        client: calls the dashboard.
        clock: waits between two looks.
    """

    name: ClassVar[str] = "ray"
    unsupported: ClassVar[frozenset[Capability]] = frozenset(
        ("priority", "hold", "exclude", "depends_on", "min_nodes", "drain")
    )
    shares_files: ClassVar[bool] = False
    needs_program: ClassVar[bool] = True

    def __init__(
        self,
        options: RayOptions,
        *,
        program: Program | None = None,
        client: RayClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._program = program
        self._client = client or RayClient(options)
        self._clock = clock or SystemClock()

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(plugin_options(cluster, RayOptions), program=program)

    @property
    def _what_runs(self) -> Program:
        assert self._program is not None, "a backend without a program renders nothing"
        return self._program

    def check(self, spec: JobSpec) -> None:
        """Refuse what Ray does not do, and a cluster without an address."""
        super().check(spec)
        gang_of(spec, self._what_runs, self._options)
        if self._options.address is None:
            hint = "set it to the dashboard, like `http://ray-head:8265`"
            raise UsageError("`cluster.ray.address` is missing: where Ray answers", hint=hint)

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """What the driver on Ray's head node is told, in JSON; its `text` is what bash runs on every node."""
        gang = {"id": mark_of(run_dir), **gang_of(spec, self._what_runs, self._options)}
        return RenderedJob(spec, json.dumps(gang, indent=2) + "\n")

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the job, unless one of this run has not ended yet; returns its id at Ray.

        Raises:
            Refused: by Ray, in its words.
            UnansweredError: the submission was not answered; if Ray has the job, another `submit` finds it.
            UnreachableError: Ray does not answer, and has not got the job.
        """
        mark = mark_of(run_dir)
        known = self._submissions(mark)
        newest = max(known, default=0)
        if newest and not known[newest].is_final:
            return f"{mark}-{newest}"
        return self._submit_as(f"{mark}-{newest + 1}", rendered)

    def find(self, run_dir: RunDir) -> str | None:
        """By the job's id; the newest submission of the run."""
        mark = mark_of(run_dir)
        known = self._submissions(mark)
        newest = max(known, default=0)
        return f"{mark}-{newest}" if newest and not known[newest].is_final else None

    def _submissions(self, mark: str) -> dict[int, JobState]:
        """Jobs of a run that Ray knows, by their number."""
        jobs = ((attempt_of(str(job.get("submission_id")), mark), job) for job in self._client.jobs())
        return {
            number: JOB_STATES.get(str(job.get("status")), JobState.UNKNOWN)
            for number, job in jobs
            if number is not None
        }

    def _submit_as(self, name: str, rendered: RenderedJob) -> str:
        modules = self._client.upload(*package_of_gang(json.loads(rendered.text) | {"id": name}))
        folder = self._what_runs.working_folder
        working_dir = self._client.upload(*package_of_folder(Path(folder).expanduser())) if folder is not None else None
        request = request_of(name, rendered.spec, self._options, modules=modules, working_dir=working_dir)
        try:
            self._client.submit(request)
        except Refused as refused:
            if not _TAKEN.search(refused.message):
                raise
        except UnreachableError as silent:
            find_patiently(lambda: name if self._client.job(name) else None, silent, self._clock)
        return name

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """What the dashboard says of these jobs, and of their placement groups while one of them runs."""
        if not handles:
            return {}
        jobs = {str(job.get("submission_id")): job for job in self._client.jobs()}
        found = {handle: jobs[handle] for handle in handles if handle in jobs}
        running = any(job.get("status") == "RUNNING" for job in found.values())
        groups = self._client.state("placement_groups") if running else []
        return {
            handle: job_status(job, [group for group in groups if group.get("name") == handle])
            for handle, job in found.items()
        }

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Ask the driver for a clean end; with `at_once` another driver kills the processes on all nodes."""
        job = self._client.job(handle)
        if job is None or JOB_STATES.get(str(job.get("status")), JobState.UNKNOWN).is_final:
            return
        self._client.stop(handle)
        modules = (job.get("runtime_env") or {}).get("py_modules")
        if not at_once or not modules:
            return
        spec = JobSpec(run_id=handle, name=handle, min_nodes=1, max_nodes=1, node=NodeResources(), grace_s=0.0)
        request = request_of(
            f"{handle}-end", spec, self._options, modules=modules[0], working_dir=None, arguments="end"
        )
        try:
            self._client.submit(request)
        except Refused as refused:
            if not _TAKEN.search(refused.message):
                raise

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """What the nodes have printed, each line behind `[node N] `; with `node` that one's, without it."""
        lines = self._follow(handle) if follow else iter(self._client.logs(handle).splitlines())
        for line in lines:
            found = _OF_A_NODE.fullmatch(line)
            if node is None:
                yield line
            elif found and int(found[1]) == node:
                yield found[2]

    def _follow(self, handle: str) -> Iterator[str]:
        """All lines so far and those to come, until the job has ended.

        Ray's dashboard has no part of a log to give over plain HTTP: it is asked for all, and the less often the longer
        the log is.
        """
        printed = 0
        while not self._has_ended(handle):
            log = self._client.logs(handle)
            whole = log.splitlines() if log.endswith("\n") else log.splitlines()[:-1]
            yield from whole[printed:]
            printed = max(printed, len(whole))
            self._clock.sleep(_LOOK_S + min(len(log) / 2**20, _LONGEST_PAUSE_S))
        yield from self._client.logs(handle).splitlines()[printed:]

    def _has_ended(self, handle: str) -> bool:
        job = self._client.job(handle)
        return job is None or JOB_STATES.get(str(job.get("status")), JobState.UNKNOWN).is_final

    def nodes(self) -> list[NodeStatus]:
        """All nodes of Ray that live, and what placement groups hold of them; other work of Ray is not seen."""
        groups = self._client.state("placement_groups")
        facts = (node_facts(node, groups) for node in self._client.state("nodes"))
        return sorted(facts, key=lambda node: node.name)
