"""Machines that ssh reaches, without a scheduler: a queue of theirs on this machine, a supervisor for each job."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self, final

from pydantic import ValidationError

from trainworks.backends.backend import AllocatedNodes, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import check_node, entering
from trainworks.backends.local.backend import DispatchedBackend, kept_store, node_status
from trainworks.backends.local.machine import LocalNode
from trainworks.backends.local.wake import wake
from trainworks.backends.ownership import obeyed_drains
from trainworks.backends.ssh import link
from trainworks.backends.ssh.hosts import OPTIONS, HostFact
from trainworks.backends.ssh.node import NODES, HostAnswer
from trainworks.backends.store_place import store_folder
from trainworks.config.engines import Ssh
from trainworks.errors import EnvironmentProblem, InfeasibleError, UnreachableError, UsageError
from trainworks.files import write_atomic
from trainworks.host import process
from trainworks.host.ledger import claim_key
from trainworks.host.users import this_host
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.job_row import JobChanges, JobRow
from trainworks.jobs.job_spec import JobSpec, parse_dependency
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.config.run_file import Cluster

QUEUE = "trainworks.backends.ssh.queue"
_ANSWERS_S = 30.0
_ANY = "gpu"
"""The name of any accelerator in the run file."""


@final
class SshBackend(DispatchedBackend):
    """Runs jobs of this user on hosts; all commands that name the same hosts share one queue on this machine."""

    name: ClassVar[str] = "ssh"
    unsupported: ClassVar[frozenset[Capability]] = frozenset({"environment.image"})

    def __init__(self, options: Ssh) -> None:
        self._options = options
        place = options.model_dump_json()
        self._key = hashlib.sha256(place.encode()).hexdigest()[:8]
        folder = store_folder() / "ssh" / self._key
        if not (folder / OPTIONS).exists():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(folder / OPTIONS, place, mode=0o600)
        self._url = f"sqlite:///{folder / 'jobs.db'}"
        super().__init__(kept_store(self, self._url))

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        options = cluster.ssh
        if not options.hosts and cluster.of is not None:
            from trainworks.jobs.described_nodes import hosts_of  # noqa: PLC0415  # the catalogue

            options = hosts_of(cluster)
        if not options.hosts:
            raise UsageError("`cluster.hosts` is missing", hint="write `cluster: {engine: ssh, hosts: [box1, box2]}`")
        return cls(options.model_copy(update={"hosts": tuple(sorted(options.hosts))}))

    @classmethod
    def allocated_nodes(cls) -> AllocatedNodes:
        """The hosts of the job, of which this one stands for all: it has no key for the others."""
        if NODES not in os.environ:
            raise EnvironmentProblem(f"{NODES} is not set", hint="this runs in a job of `ssh`: submit the run")
        num_nodes, cores, accelerators = json.loads(os.environ[NODES])
        return AllocatedNodes(num_nodes, cores, accelerators, None)

    def check(self, spec: JobSpec) -> None:
        """Refuse what these hosts can never hold."""
        super().check(spec)
        if unknown := sorted(set(spec.exclude) - set(self._options.hosts)):
            raise UsageError(f"`job.exclude` names `{unknown[0]}`, which is not one of `cluster.ssh.hosts`")
        left = len(set(self._options.hosts) - set(spec.exclude))
        if spec.min_nodes > left:
            raise InfeasibleError(f"`{spec.name}` needs {spec.min_nodes} hosts, and {left} may be used")

    def adapted(self, spec: JobSpec) -> JobSpec:
        """Leave out hosts with other accelerators than the job or a role names.

        Raises:
            UsageError: no host that answers has them.
        """
        names = {group.node.accelerator for group in spec.groups if group.node.accelerators}
        names -= {name for name in names if name is None or name.lower() == _ANY}
        kinds = {host.name: host.accelerator for host in self.nodes() if host.state != "down"} if names else {}
        others = {name: _hosts_without(name, kinds) for name in names if name is not None}
        if not spec.roles:
            left_out = others.get(spec.node.accelerator or "", ())
            exclude = (*spec.exclude, *(host for host in left_out if host not in spec.exclude))
            return replace(spec, node=replace(spec.node, accelerator=None), exclude=exclude)
        roles = tuple(
            replace(
                role, node=replace(role.node, accelerator=None), exclude=others.get(role.node.accelerator or "", ())
            )
            for role in spec.roles
        )
        return replace(spec, node=replace(spec.node, accelerator=None), roles=roles)

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """What the queue starts once the hosts have room."""
        nodes = f"{spec.min_nodes}" if spec.min_nodes == spec.max_nodes else f"{spec.min_nodes} to {spec.max_nodes}"
        lines = [
            f"# a supervisor on this machine, and on {nodes} of {', '.join(self._options.hosts)}, as soon as they have "
            "room, an agent for each node:",
            *(" ".join(link.on_host(self._options, host, "run")) for host in self._options.hosts),
        ]
        return RenderedJob(spec, "\n".join(lines) + "\n")

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Store the job in the queue of the hosts; see `DispatchedBackend.submit`."""
        return self._handle(super().submit(self._own(rendered, run_dir), run_dir))

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """The same job goes back into the queue."""
        return super().retry(self._own(rendered, run_dir), run_dir, handle)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the job by the path of its run directory."""
        found = super().find(run_dir)
        return None if found is None else self._handle(found)

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """What the store of the queue says; a queue whose process has gone is started again."""
        found = {
            self._handle(number): status for number, status in super().poll(list(map(self._number, handles))).items()
        }
        if any(not status.state.is_final for status in found.values()):
            self._wake()
        return found

    def edit(self, handle: str, before: JobSpec, after: JobSpec) -> None:
        """Change the waiting job in the store of the queue.

        Raises:
            UsageError: it does not wait, or would wait for other jobs.
        """
        row = self._changeable(handle)
        if after.depends_on != before.depends_on:
            hint = "stop the job and submit it again"
            raise UsageError("ssh cannot change `job.depends_on` of a submitted job", hint=hint)
        before = row.spec
        after = replace(after, depends_on=before.depends_on, min_nodes=before.min_nodes, node=before.node)
        after = replace(after, roles=before.roles)
        changed: JobChanges = {"name": after.name, "priority": after.priority, "spec": after}
        if not self._store.change(row.id, now=self._clock.now(), waits_since_attempt=row.attempt, **changed):
            raise UsageError(f"job {row.run_id} does not wait any more", hint="trainworks ps")
        self._wake()

    def _own(self, rendered: RenderedJob, run_dir: RunDir) -> RenderedJob:
        """The job as its queue has it: its own names of dependencies; the first turn of a workload takes all nodes."""
        spec = rendered.spec
        own = tuple(str(replace(one, job=self._number(one.job))) for one in map(parse_dependency, spec.depends_on))
        fewest = spec.max_nodes if run_dir.read_resolved().run_file.workload else spec.min_nodes
        spec = replace(spec, depends_on=own, min_nodes=fewest)
        self.check(spec)
        return replace(rendered, spec=spec)

    def _handle(self, number: str) -> str:
        return f"{this_host()}/{self._key}/{number}"

    def _number(self, handle: str) -> str:
        """Number of a job in its queue, from its handle.

        Raises:
            UnreachableError: the queue is on another machine.
            UsageError: the queue is that of other hosts.
        """
        machine, _, place = handle.partition("/")
        if machine != this_host():
            raise UnreachableError(f"the queue of `{handle}` is on {machine}", hint=f"run this command on {machine}")
        key, _, number = place.partition("/")
        if key != self._key:
            hint = "let both jobs name the same `cluster.ssh`"
            raise UsageError(f"job `{handle}` is in the queue of other hosts", hint=hint)
        return number

    def _changeable(self, handle: str) -> JobRow:
        return super()._changeable(self._number(handle))

    @property
    def node_names(self) -> Sequence[str]:
        """All hosts, also those that do not answer."""
        return self._options.hosts

    def node_named(self, name: str) -> LocalNode:
        """What a host says that it has."""
        host = self._ask(name)
        if host.facts is None:
            raise UnreachableError(f"cannot ask `{name}` for its accelerators: {host.reason}")
        return host.node

    def _wake(self) -> None:
        wake(self._url, QUEUE)

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """Ssh to the host of the node."""
        python = self._options.python or sys.executable
        words = entering(str(run_dir.path.resolve()), command, node=node, python=python)
        return link.ssh_command(self._options, self._host(handle, node), words, "-t" if terminal else "-T")

    def forward(self, run_dir: RunDir, handle: str, port: int, local_port: int, *, node: int = 0) -> list[str]:
        """Ssh to the host of the node, which runs nothing."""
        flags = ("-N", "-o", "ExitOnForwardFailure=yes", "-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}")
        return link.ssh_command(self._options, self._host(handle, node), (), *flags)

    def _host(self, handle: str, number: int) -> str:
        placement = self._changeable(handle).placement
        check_node(number, len(placement))
        return placement[number].node

    def nodes(self) -> list[NodeStatus]:
        """All hosts, with the jobs of this queue and of others; asks each of them now."""
        with ThreadPoolExecutor(max(1, len(self._options.hosts))) as threads:
            hosts = list(threads.map(self._ask, self._options.hosts))
        holding = [state for state in JobState if state.holds_resources]
        running = self._store.search(states=holding, engine=self.name, uid=os.getuid(), host=this_host())
        ours = {(os.getuid(), claim_key(row.run_dir)) for row in running}
        drained = obeyed_drains(self._store)
        found = []
        for host in hosts:
            if host.reason:
                found.append(NodeStatus(name=host.name, state="down", reason=host.reason))
                continue
            others = [claim for claim in host.claims if (claim.uid, claim.share.key) not in ours]
            found.append(node_status(host.node, running, others, host.held(others), drained))
        return sorted(found, key=lambda status: status.name)

    def _ask(self, host: str) -> HostFact:
        try:
            said = process.run(link.on_host(self._options, host, "facts"), timeout_s=_ANSWERS_S)
        except EnvironmentProblem as silent:
            return HostFact(host, None, silent.message)
        if said.exit_code != 0:
            return HostFact(host, None, (said.stderr.strip().splitlines() or ["it does not answer"])[-1].strip())
        try:
            return HostFact(host, HostAnswer.model_validate_json(said.stdout.strip().splitlines()[-1]))
        except (ValidationError, IndexError):
            return HostFact(host, None, "it has another version of Trainworks")


def _hosts_without(name: str, kinds: Mapping[str, str | None]) -> tuple[str, ...]:
    """Hosts whose kind of accelerator a name does not mean, of hosts with their `kinds`.

    Raises:
        UsageError: that is all of them.
    """
    fitting = matching_names(name, [kind for kind in kinds.values() if kind])
    others = tuple(host for host, kind in kinds.items() if kind not in fitting)
    if kinds and len(others) == len(kinds):
        has = ", ".join(sorted({kind or "none" for kind in kinds.values()}))
        raise UsageError(f"no host has an accelerator `{name}`; they have: {has}", hint=f"write `{_ANY}` for any")
    return others
