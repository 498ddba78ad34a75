"""Backend for clouds, through SkyPilot's managed jobs; a job with roles is a job group of SkyPilot.

Source: the command `sky` of SkyPilot 0.14.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, Self, final

from trainworks.agent.remote_agent import RemoteHosts
from trainworks.backends.backend import AllocatedNodes, Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.job_tag import find_patiently
from trainworks.backends.skypilot.client import SkyPilotClient
from trainworks.backends.skypilot.rented import (
    TOKEN,
    check_rented,
    mounts,
    program_of_workload,
    rented_node,
    variables,
)
from trainworks.backends.skypilot.states import job_status, role_of_node, tasks_of
from trainworks.config.engines import SkyPilot
from trainworks.config.run_file import Cluster, RunFile
from trainworks.errors import EnvironmentProblem, TrainworksError, UnansweredError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.copies.record_copy import record_of
from trainworks.host.probe import num_cores
from trainworks.jobs.formats.manifest import dns_name
from trainworks.jobs.formats.skypilot import render_managed_job, secret_names
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.state import parse_state
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

_LOG = logging.getLogger(__name__)

_NODE = "trainworks.backends.skypilot.node"
"""Module that a node of a workload runs."""
_NODE_LINE = re.compile(r"\((?P<name>[^,()]+)(?:, rank=(?P<node>\d+))?, pid=\d+(?:, ip=[^,()]+)?\) ?(?P<text>.*)")
"""Prefix of SkyPilot's output lines: `(worker1, rank=1, pid=1234, ip=10.0.0.2) text`."""


@final
class SkyPilotBackend(Backend):
    """Runs jobs with `sky jobs`; `program` is required to render and submit one."""

    name: ClassVar[str] = "skypilot"
    unsupported: ClassVar[frozenset[Capability]] = frozenset(
        (
            *("edit", "hold", "exclude", "depends_on", "min_nodes", "drain", "drain.accelerator"),
            *("time_limit", "health", "environment.lock", "environment.conda"),
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

    @classmethod
    def workload_program(cls, run_file: RunFile) -> Program:
        """Trainworks on every node, from its image, or from a wheel that the setup of the task installs."""
        return program_of_workload(run_file, _NODE)

    @classmethod
    def allocated_nodes(cls) -> AllocatedNodes:
        """Nodes of the job whose first node runs this process."""
        node = rented_node(os.environ)
        hosts = RemoteHosts(node.wait_for_all(SystemClock()), node.secrets) if len(node.addresses) > 1 else None
        return AllocatedNodes(len(node.addresses), num_cores(), node.accelerators, hosts)

    @classmethod
    def check_trains(cls, cluster: Cluster) -> None:
        """Refuse nodes without Trainworks, without a store, and several without a folder that all of them see."""
        check_rented(cluster.skypilot, cluster.nodes)

    def check(self, spec: JobSpec) -> None:
        """Refuse what SkyPilot cannot do, and a job whose secrets are not set."""
        super().check(replace(spec, environment=None) if self._trains else spec)  # the agents of a workload build it
        if self._trains:
            check_rented(self._options, spec.max_nodes)
            if spec.node.alternatives:
                hint = f"name one in `resources.accelerators`: `{spec.node.accelerator}:{spec.node.accelerators}`"
                raise UsageError("a workload is planned for one kind of accelerator", hint=hint)
        own = (program.skypilot for program in self._required_program.roles.values())
        if spec.keep_code and any("workdir" in one.task for one in (self._options, *own) if one is not None):
            hint = "remove `job.keep_code`, and name a commit in `workdir.ref`"
            raise UsageError("`job.keep_code` copies a folder, and SkyPilot clones `workdir`", hint=hint)
        render_managed_job(spec, self._required_program, self._options, "checked")
        names = (name for name in secret_names(self._required_program) if name != TOKEN)
        if unset := self._client.unset(names):
            raise UsageError(f"`envs.{unset[0]}` has no value", hint=f"export {unset[0]}=...")

    @property
    def _trains(self) -> bool:
        return self._program is not None and self._program.is_workload

    @property
    def _required_program(self) -> Program:
        assert self._program is not None, "a backend without a program renders nothing"
        return self._program

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """Render the YAML of a managed job or of a job group; its `workdir` is the kept code, if there is some."""
        program, options, name = self._required_program, self._options, job_name(run_dir)
        if program.is_workload:
            program = replace(program, envs=dict(program.envs) | variables(options, run_dir.run_id, name))
            options = options.model_copy(update={"file_mounts": options.file_mounts | mounts(options)})
        elif spec.keep_code:
            folder = spec.working_folder
            roles = {role: replace(own, working_folder=folder) for role, own in program.roles.items()}
            program = replace(program, working_folder=folder, roles=roles)
        return RenderedJob(spec, render_managed_job(spec, program, options, name))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Launch the managed job, unless one of this run is unfinished; returns its number.

        The run of a workload is in its store before its nodes look for it there.

        Raises:
            SkyPilotRefusedError: SkyPilot refuses the job, with its own message.
            UsageError: the store has another run of this name.
            EnvironmentProblem: the store refuses, or does not answer.
            UnansweredError: SkyPilot did not answer; if it has the job, another `submit` finds it.
            UnreachableError: SkyPilot does not answer, and does not have the job.
        """
        if (handle := self.find(run_dir)) is not None:
            return handle
        with self._sent(run_dir):
            try:
                token = {TOKEN: secrets.token_hex(32)} if self._trains else {}
                job = self._client.launch(rendered.text, secret_names(self._required_program), token)
            except UnreachableError as error:
                return find_patiently(lambda: self.find(run_dir), error, self._clock)
            missing = EnvironmentProblem("SkyPilot accepted the job, but does not list it")
            return job or find_patiently(lambda: self.find(run_dir), missing, self._clock)

    @contextmanager
    def _sent(self, run_dir: RunDir) -> Iterator[None]:
        """Send the run of a workload to its store; delete it there if its submission inside the block is refused."""
        record = record_of(run_dir.read_resolved().run_file, run_dir.run_id) if self._trains else None
        if record is None:
            yield
            return
        if record.check(run_dir):
            record.fetch(run_dir, without=("status.json", "resolved.json"))
        record.send(run_dir, only=("resolved.json", "events.jsonl"))
        try:
            yield
        except UnansweredError:
            raise
        except TrainworksError:
            record.discard()
            raise

    def fetch(self, run_dirs: Sequence[RunDir]) -> bool:
        """Bring the records of workloads from their stores: how they ended, too, once SkyPilot says that they have."""
        for run_dir in run_dirs:
            record = record_of(run_dir.read_resolved().run_file, run_dir.run_id)
            if record is None or not record.fetch(run_dir, without=("status.json",)):
                continue
            here, there = run_dir.read_status(), record.status()
            if there is not None and parse_state(here.state).is_final and there.state == here.state:
                run_dir.write_status(there)
        return True

    def last_status(self, run_dir: RunDir) -> RunStatus:
        """The status of a workload in its store, which has the cause: to SkyPilot every failure is the user's."""
        try:
            record = record_of(run_dir.read_resolved().run_file, run_dir.run_id)
            status = record.status() if record is not None else None
        except TrainworksError as error:
            _LOG.info("the end of %s is as SkyPilot says: %s", run_dir.run_id, error.message)
            status = None
        return status or super().last_status(run_dir)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the newest unfinished job of this run's name."""
        name = job_name(run_dir)
        records = [record for record in self._client.queue(unfinished=True) if record.get("job_name") == name]
        alive = [int(handle) for handle, tasks in tasks_of(records).items() if not job_status(tasks).state.is_final]
        return str(max(alive)) if alive else None

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of several jobs, from SkyPilot's queue; empty if the jobs controller was deleted."""
        if not handles:
            return {}
        jobs = tasks_of(self._client.queue())
        return {handle: job_status(jobs[handle]) for handle in handles if handle in jobs}

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Cancel the job: SkyPilot sends SIGTERM, and returns the nodes. It has no grace period."""
        self._client.cancel(handle)

    def output(self, handle: str, *, node: int | None = None, follow: bool = False) -> Iterator[str]:
        """Lines of `sky jobs logs`; with `node`, those of that node, without their prefix.

        Those of a job with roles begin with the role and the number of the node in it: `[reward-1]`.
        """
        roles = list(self._program.roles) if self._program is not None else []
        if roles and node is None:
            for task, line in self._client.logs_of_tasks(handle, roles, follow=follow):
                match = _NODE_LINE.fullmatch(line)
                yield f"[{task}-{match['node'] or 0}] {match['text']}" if match else line
            return
        role, rank = None, node
        if roles and node is not None:
            role, rank = role_of_node(tasks_of(self._client.queue()).get(handle, []), node) or (roles[0], -1)
        for line in self._client.logs(handle, follow=follow, task=role):
            if node is None:
                yield line
            elif (match := _NODE_LINE.fullmatch(line)) and int(match["node"] or 0) == rank:
                yield match["text"]

    def nodes(self) -> list[NodeStatus]:
        """Nodes of the backend: none, as SkyPilot rents them per job."""
        return []


def job_name(run_dir: RunDir) -> str:
    """Name of the managed job, by which the run is found again; the folder makes it unique, as run ids repeat."""
    folder = hashlib.sha256(str(run_dir.path.absolute()).encode()).hexdigest()[:12]
    return f"{dns_name(run_dir.run_id)}-{folder}"
