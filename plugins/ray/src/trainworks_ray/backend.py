"""Backend for a running Ray cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Self, final

from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import find_patiently
from trainworks.backends.registry import plugin_options
from trainworks.config.run_file import Cluster
from trainworks.errors import UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir
from trainworks_ray.client import RayClient, RayRefusedError
from trainworks_ray.options import RayOptions
from trainworks_ray.render import (
    attempt_of,
    gang_of,
    id_prefix,
    package_of_folder,
    package_of_gang,
    request_of,
)
from trainworks_ray.states import JOB_STATES, accelerator_types, job_status, node_facts

__all__ = ["RayBackend"]

_POLL_S = 1.0
_LONGEST_PAUSE_S = 30.0
_NODE_LINE = re.compile(r"\[node (\d+)\] (.*)")
_ID_EXISTS = re.compile(r"already exists")


@final
class RayBackend(Backend):
    """Runs jobs through Ray's dashboard.

    A job is the driver in `trainworks_ray.gang`, which is uploaded: Ray's nodes do not need Trainworks.

    Args:
        options: the run file's `cluster.ray`.
        program: what the job runs; required to render and submit it.
        client: calls the dashboard.
        clock: waits between two polls.
    """

    name: ClassVar[str] = "ray"
    unsupported: ClassVar[frozenset[Capability]] = frozenset(
        (
            "priority",
            "edit",
            "hold",
            "exclude",
            "depends_on",
            "roles",
            "min_nodes",
            "drain",
            "drain.accelerator",
            "health",
            "environment.lock",
            "environment.conda",
            "environment.image",
        )
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
    def _required_program(self) -> Program:
        assert self._program is not None, "a backend without a program renders nothing"
        return self._program

    def check(self, spec: JobSpec) -> None:
        """Refuse what Ray cannot do, and a cluster without an address."""
        super().check(spec)
        gang_of(spec, self._required_program, self._options)
        if self._options.address is None:
            hint = "set it to the address of the dashboard, like `http://ray-head:8265`"
            raise UsageError("`cluster.ray.address` is missing", hint=hint)

    def adapted(self, spec: JobSpec) -> JobSpec:
        """Replace the accelerator's name by that of Ray's nodes; one that no node has stays, as an autoscaler may."""
        wanted = spec.node.accelerator
        if wanted is None or not spec.node.accelerators:
            return spec
        known = [name for node in self._client.state("nodes") for name in accelerator_types(node)]
        found = matching_names(wanted, known)
        return replace(spec, node=replace(spec.node, accelerator=found[0])) if found else spec

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the JSON for the driver on Ray's head node; its `text` is the bash script of every node."""
        gang = {"id": id_prefix(run_dir), **gang_of(spec, self._required_program, self._options)}
        return RenderedJob(spec, json.dumps(gang, indent=2) + "\n")

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the job, unless one of this run is unfinished; returns its submission id.

        Raises:
            RayRefusedError: Ray refuses the job, with its own message.
            UnansweredError: Ray did not answer; if it has the job, another `submit` finds it.
            UnreachableError: Ray does not answer, and does not have the job.
        """
        prefix = id_prefix(run_dir)
        known = self._submissions(prefix)
        newest = max(known, default=0)
        if newest and not known[newest].is_final:
            return f"{prefix}-{newest}"
        return self._submit_as(f"{prefix}-{newest + 1}", rendered)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the newest unfinished submission of the run by its id."""
        prefix = id_prefix(run_dir)
        known = self._submissions(prefix)
        newest = max(known, default=0)
        return f"{prefix}-{newest}" if newest and not known[newest].is_final else None

    def _submissions(self, prefix: str) -> dict[int, JobState]:
        """States of the run's jobs at Ray, by submission number."""
        jobs = ((attempt_of(str(job.get("submission_id")), prefix), job) for job in self._client.jobs())
        return {
            number: JOB_STATES.get(str(job.get("status")), JobState.UNKNOWN)
            for number, job in jobs
            if number is not None
        }

    def _submit_as(self, name: str, rendered: RenderedJob) -> str:
        modules = self._client.upload(*package_of_gang(json.loads(rendered.text) | {"id": name}))
        spec = rendered.spec
        folder = spec.working_folder if spec.keep_code else self._required_program.working_folder
        working_dir = self._client.upload(*package_of_folder(Path(folder).expanduser())) if folder is not None else None
        request = request_of(name, rendered.spec, self._options, modules=modules, working_dir=working_dir)
        try:
            self._client.submit(request)
        except RayRefusedError as refused:
            if not _ID_EXISTS.search(refused.message):
                raise
        except UnreachableError as error:
            find_patiently(lambda: name if self._client.job(name) else None, error, self._clock)
        return name

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from the jobs and, while one runs, the placement groups of the dashboard."""
        if not handles:
            return {}
        jobs = {str(job.get("submission_id")): job for job in self._client.jobs()}
        jobs = {handle: jobs[handle] for handle in handles if handle in jobs}
        running = any(job.get("status") == "RUNNING" for job in jobs.values())
        groups = self._client.state("placement_groups") if running else []
        return {
            handle: job_status(job, [group for group in groups if group.get("name") == handle])
            for handle, job in jobs.items()
        }

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Request a clean end from the driver; with `at_once` another driver kills the processes on all nodes."""
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
        except RayRefusedError as refused:
            if not _ID_EXISTS.search(refused.message):
                raise

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Output of the nodes, with the prefix `[node N] `; with `node`, the lines of that node without it."""
        lines = self._follow(handle) if follow else iter(self._client.logs(handle).splitlines())
        for line in lines:
            match = _NODE_LINE.fullmatch(line)
            if node is None:
                yield line
            elif match and int(match[1]) == node:
                yield match[2]

    def _follow(self, handle: str) -> Iterator[str]:
        """Lines until the job has ended.

        Over plain HTTP the dashboard returns only complete logs: longer logs are polled less often.
        """
        printed = 0
        while not self._has_ended(handle):
            log = self._client.logs(handle)
            lines = log.splitlines() if log.endswith("\n") else log.splitlines()[:-1]
            yield from lines[printed:]
            printed = max(printed, len(lines))
            self._clock.sleep(_POLL_S + min(len(log) / 2**20, _LONGEST_PAUSE_S))
        yield from self._client.logs(handle).splitlines()[printed:]

    def _has_ended(self, handle: str) -> bool:
        job = self._client.job(handle)
        return job is None or JOB_STATES.get(str(job.get("status")), JobState.UNKNOWN).is_final

    def nodes(self) -> list[NodeStatus]:
        """Nodes of Ray, with the load of placement groups; other Ray workloads are not counted."""
        groups = self._client.state("placement_groups")
        facts = (node_facts(node, groups) for node in self._client.state("nodes"))
        return sorted(facts, key=lambda node: node.name)
