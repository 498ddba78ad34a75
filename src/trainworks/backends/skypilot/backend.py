"""Backend for clouds, through SkyPilot's managed jobs."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, final

from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import find_patiently
from trainworks.backends.skypilot.client import SkyPilotClient
from trainworks.backends.skypilot.states import JOB_STATES, job_status
from trainworks.config.engines import SkyPilot
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.formats.manifest import dns_name
from trainworks.jobs.formats.skypilot import render_managed_job, secret_names
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

_NODE_LINE = re.compile(r"\((?P<name>[^,()]+)(?:, rank=(?P<node>\d+))?, pid=\d+(?:, ip=[^,()]+)?\) ?(?P<text>.*)")
"""Prefix of SkyPilot's output lines: `(worker1, rank=1, pid=1234, ip=10.0.0.2) text`."""


@final
class SkyPilotBackend(Backend):
    """Runs jobs with `sky jobs`.

    Args:
        options: the run file's `cluster.skypilot`.
        program: what the job runs; required to render and submit it.
        client: calls `sky`.
        clock: waits for a job whose submission was not answered.
    """

    name: ClassVar[str] = "skypilot"
    unsupported: ClassVar[frozenset[Capability]] = frozenset(
        (
            "edit",
            "hold",
            "exclude",
            "depends_on",
            "min_nodes",
            "drain",
            "time_limit",
            "health",
            "environment.lock",
            "environment.conda",
        )
    )
    shares_files: ClassVar[bool] = False
    needs_program: ClassVar[bool] = True
    patience_s: float = 15.0
    """The program alone takes seconds."""

    def __init__(
        self,
        options: SkyPilot,
        *,
        program: Program | None = None,
        client: SkyPilotClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._program = program
        self._client = client or SkyPilotClient(options.program)
        self._clock = clock or SystemClock()

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(cluster.skypilot, program=program)

    def hurried(self) -> Self:
        """This backend, with a client that waits for each answer only for the time of a list."""
        hurried = copy.copy(self)
        hurried._client = self._client.within(self.patience_s)
        return hurried

    def check(self, spec: JobSpec) -> None:
        """Refuse what SkyPilot cannot do, and a job whose secrets are not set."""
        super().check(spec)
        if spec.keep_code and "workdir" in self._options.task:
            hint = "remove `job.keep_code`, and name a commit in `workdir.ref`"
            raise UsageError("`job.keep_code` copies a folder, and SkyPilot clones `workdir`", hint=hint)
        render_managed_job(spec, self._required_program, self._options, "checked")
        if unset := self._client.unset(secret_names(self._required_program)):
            raise UsageError(f"`envs.{unset[0]}` has no value", hint=f"export {unset[0]}=...")

    @property
    def _required_program(self) -> Program:
        assert self._program is not None, "a backend without a program renders nothing"
        return self._program

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the task YAML of a managed job; its `workdir` is the kept code, if there is some."""
        program = self._required_program
        if spec.keep_code:
            program = replace(program, working_folder=spec.working_folder)
        return RenderedJob(spec, render_managed_job(spec, program, self._options, job_name(run_dir)))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Launch the managed job, unless one of this run is unfinished; returns its number.

        Raises:
            SkyPilotRefusedError: SkyPilot refuses the job, with its own message.
            UnansweredError: SkyPilot did not answer; if it has the job, another `submit` finds it.
            UnreachableError: SkyPilot does not answer, and does not have the job.
        """
        if (handle := self.find(run_dir)) is not None:
            return handle
        try:
            job = self._client.launch(rendered.text, secret_names(self._required_program))
        except UnreachableError as error:
            return find_patiently(lambda: self.find(run_dir), error, self._clock)
        missing = EnvironmentProblem("SkyPilot accepted the job, but does not list it")
        return job or find_patiently(lambda: self.find(run_dir), missing, self._clock)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the newest unfinished job of this run's name."""
        name = job_name(run_dir)
        jobs = [record for record in self._client.queue(unfinished=True) if record.get("job_name") == name]
        alive = [record["job_id"] for record in jobs if not _ended(record)]
        return str(max(alive)) if alive else None

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from SkyPilot's queue; empty if the jobs controller was deleted."""
        if not handles:
            return {}
        records = {str(record.get("job_id")): record for record in self._client.queue()}
        return {handle: job_status(records[handle]) for handle in handles if handle in records}

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Cancel the job: SkyPilot sends SIGTERM, and returns the nodes. It has no grace period."""
        self._client.cancel(handle)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of `sky jobs logs`; with `node`, those of that node, without their prefix."""
        for line in self._client.logs(handle, follow=follow):
            if node is None:
                yield line
            elif (match := _NODE_LINE.fullmatch(line)) and int(match["node"] or 0) == node:
                yield match["text"]

    def nodes(self) -> list[NodeStatus]:
        """Nodes of the backend: none, as SkyPilot rents them per job."""
        return []


def _ended(record: dict[str, Any]) -> bool:
    return JOB_STATES.get(str(record.get("status")), JobState.UNKNOWN).is_final


def job_name(run_dir: RunDir) -> str:
    """Name of the managed job, by which the run is found again; the folder makes it unique, as run ids repeat."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"
