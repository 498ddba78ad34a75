"""This machine's queue: a table of jobs, and a dispatcher that runs while a job waits or runs."""

from __future__ import annotations

import abc
import os
import shlex
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self, final

from trainworks.agent.launch import keep_environment
from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import entering_here
from trainworks.backends.local.machine import (
    LocalNode,
    drained_text,
    held_elsewhere,
    local_nodes,
    shape_of,
    snapshot_nodes,
)
from trainworks.backends.local.outcome import STOPPED_BEFORE_START
from trainworks.backends.local.quotas import machine_ledger, queue_policy
from trainworks.backends.local.wake import wake
from trainworks.backends.ownership import check_may_change, check_run_dir, check_undrain, is_private, obeyed_drains
from trainworks.backends.store_place import store_folder, store_url
from trainworks.backends.submission import check_dependencies, find_dependencies, status_restored, submit_lock
from trainworks.errors import InfeasibleError, TrainworksError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.ledger import Claim, claim_key
from trainworks.host.probe import probe_host
from trainworks.host.users import this_host, user_name
from trainworks.jobs.job_row import EndRequest, JobChanges, JobRow, Placement
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.state import JobState, parse_cause
from trainworks.jobs.store import JobStore, open_store
from trainworks.queueing.reasons import check_feasible
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.system import check_linux

if TYPE_CHECKING:
    from trainworks.config.run_file import Cluster


class DispatchedBackend(Backend):
    """Jobs of this user in a store with a dispatcher of this machine: `local` and `ssh`.

    Raises:
        EnvironmentProblem: this machine does not run Linux.
    """

    unsupported: ClassVar[frozenset[Capability]] = frozenset()
    gives_other_accelerators: ClassVar[bool] = True

    def __init__(self, store: JobStore, clock: Clock | None = None) -> None:
        check_linux("the queue of this machine")
        self._store = store
        self._clock = clock or SystemClock()

    @property
    @abc.abstractmethod
    def node_names(self) -> Sequence[str]:
        """Names of the nodes to which the dispatcher gives jobs."""

    @abc.abstractmethod
    def _wake(self) -> None:
        """Make the dispatcher look at the store now; start one if none runs."""

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Store the job, then wake the dispatcher, which also ends a job that waits for one that has failed.

        Raises:
            TrainworksError: the job is not in the queue; the run directory is as it was.
        """
        folder = str(run_dir.path.resolve())
        known = self._store.find(folder, uid=os.getuid())
        is_ours = known and (known.run_dir, known.uid, known.host) == (folder, os.getuid(), this_host())
        if known is not None and is_ours and not known.state.is_final:
            return str(known.id)
        find_dependencies(self._store, rendered.spec, self.name)
        with submit_lock(run_dir), self._prepared(run_dir):
            row = self._store.add(
                rendered.spec,
                run_dir=folder,
                owner=user_name(),
                host=this_host(),
                engine=self.name,
                now=self._clock.now(),
            )
        self._wake()
        return str(row.id)

    def retry(self, rendered: RenderedJob, run_dir: RunDir, handle: str) -> str:
        """The same job goes back into the queue; an administrator leaves the owner's run directory alone.

        Raises:
            UsageError: it has not ended.
        """
        row = self._changeable(handle)
        again = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
        if row.state not in again:
            raise UsageError(f"job {row.id} ({row.run_id}) is {row.state}", hint="retry one that failed or was stopped")
        check_dependencies(self._store, rendered.spec, self.name, uid=row.uid)
        asked_by = None if _is_ours(row) else os.getuid()
        changes: JobChanges = {"asked_to_end": None, "asked_by": asked_by, "restarts": 0, "spec": rendered.spec}
        with self._prepared(run_dir) if _is_ours(row) else nullcontext():
            moved = self._store.move(row.id, JobState.QUEUED, since=again, now=self._clock.now(), **changes)
        if not moved:
            raise UsageError(f"job {row.id} ({row.run_id}) is in the queue again already", hint="trainworks ps")
        self._wake_for(row)
        return handle

    @contextmanager
    def _prepared(self, run_dir: RunDir) -> Iterator[None]:
        """Prepare the run directory of a job before the dispatcher can see the job."""
        check_run_dir(run_dir.path, shared=not is_private(self._store.url))  # as the dispatcher will
        with status_restored(run_dir):
            try:
                keep_environment(run_dir, os.environ)
                run_dir.write_status(RunStatus(state=JobState.QUEUED, updated_at=self._clock.now()))
                yield
            except (TrainworksError, OSError):
                run_dir.environment_file.unlink(missing_ok=True)
                raise

    def find(self, run_dir: RunDir) -> str | None:
        """Find the job by the path of its run directory."""
        row = self._store.find(str(run_dir.path.resolve()))
        return str(row.id) if row is not None and not row.state.is_final else None

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """What the store says; the dispatcher keeps it true."""
        found = {handle: self._store.get(int(handle)) for handle in handles if handle.isdecimal()}
        return {handle: _job_status(row) for handle, row in found.items() if row is not None}

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """A job that waits is stopped here; one that runs, or belongs to another user, by its dispatcher."""
        row = self._changeable(handle)
        asked: EndRequest = "kill" if at_once or row.asked_to_end == "stop" else "stop"
        now = self._clock.now()
        waits = (JobState.QUEUED, JobState.PREEMPTED)
        stopped = STOPPED_BEFORE_START.because(f"stopped by {user_name()}")
        if _is_ours(row) and self._store.move(row.id, stopped, since=waits, now=now):
            run_dir = RunDir(Path(row.run_dir))
            run_dir.enter(RunStatus.of(stopped, updated_at=now))
            run_dir.environment_file.unlink(missing_ok=True)
        else:
            self._store.change(row.id, now=now, asked_to_end=asked, asked_by=os.getuid())
        self._wake_for(row)

    def hold(self, handle: str) -> None:
        """Keep a waiting job in the queue."""
        row = self._changeable(handle)
        self._store.change(row.id, now=self._clock.now(), held=True)
        self._wake_for(row)

    def release(self, handle: str) -> None:
        """Let a held job start."""
        row = self._changeable(handle)
        self._store.change(row.id, now=self._clock.now(), held=False)
        self._wake_for(row)

    def edit(self, handle: str, before: JobSpec, after: JobSpec) -> None:
        """Nothing to tell: the job store is the queue."""

    def drain(self, node: str, reason: str) -> None:
        """Keep jobs from starting there."""
        for name in self._named(node):
            check_undrain(self._store, name)
            self._store.drain(name, reason, now=self._clock.now(), uid=os.getuid())
        self._wake()

    def undrain(self, node: str) -> None:
        """Let jobs start there; also with an accelerator that its driver does not find any more."""
        for name in [node] if node in self._store.drains() else self._named(node):
            check_undrain(self._store, name)
            self._store.undrain(name)
        self._wake()

    def _wake_for(self, row: JobRow) -> None:
        """Wake this user's dispatcher; that of another user reads the store by itself."""
        if _is_ours(row):
            self._wake()

    def _changeable(self, handle: str) -> JobRow:
        row = self._store.get(int(handle)) if handle.isdecimal() else None
        if row is None:
            raise UsageError(f"no job `{handle}`", hint="trainworks ps --all")
        check_may_change(row)
        return row

    def _named(self, node: str) -> list[str]:
        """The name of a node, or of an accelerator of it; those of all parts of a GPU in MIG mode.

        Raises:
            UsageError: there is none.
        """
        names = self.node_names
        if node in names:  # a host of ssh may have a port
            return [node]
        name, _, accelerator = node.rpartition(":")
        if name not in names:
            raise UsageError(f"no node `{name or node}`", hint=f"known nodes: {', '.join(names)}")
        found = self.node_named(name)
        if not (devices := found.devices_named(accelerator)):
            has = f"its accelerators: {', '.join(map(str, found.devices))}" if found.devices else "it has none"
            raise UsageError(f"`{name}` has no accelerator `{accelerator}`", hint=has)
        return [f"{name}:{device}" for device in devices]

    @abc.abstractmethod
    def node_named(self, name: str) -> LocalNode:
        """A node and what it has.

        Raises:
            UnreachableError: it does not answer.
        """


@final
class LocalBackend(DispatchedBackend):
    """Runs jobs of this user on this machine, as many at a time as it has room for."""

    name: ClassVar[str] = "local"

    def __init__(self, store: JobStore | None = None, clock: Clock | None = None) -> None:
        super().__init__(store or kept_store(self, store_url()), clock)

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(store)

    def check(self, spec: JobSpec) -> None:
        """Refuse what this machine can never hold."""
        super().check(spec)
        machine = self._machine()
        check_feasible(shape_of(spec, machine), snapshot_nodes(machine, {}))
        if policy := queue_policy():
            policy.check_team(spec.team)
            if why := policy.refusal(shape_of(spec, machine), spec.team):
                raise InfeasibleError(f"`{spec.name}` can never start here: it {why}")

    def _machine(self) -> list[LocalNode]:
        return local_nodes(probe_host(store_folder()))

    @property
    def node_names(self) -> Sequence[str]:
        """This machine, or its parts."""
        return [node.name for node in self._machine()]

    def node_named(self, name: str) -> LocalNode:
        """This machine, or one of its parts."""
        return next(one for one in self._machine() if one.name == name)

    def _wake(self) -> None:
        wake()

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """What the dispatcher starts once the machine has room."""
        lines = [
            shlex.join(["python", "-m", "trainworks.agent.supervisor", str(run_dir.path)]),
            f"# as soon as this machine has room; priority {spec.priority}, restarts after a failure: "
            f"{spec.max_restarts}",
        ]
        return RenderedJob(spec, "\n".join(lines) + "\n")

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """Start it here, in the terminal of the caller."""
        return entering_here(run_dir, command, node)

    def nodes(self) -> list[NodeStatus]:
        """This machine, or its parts, including resources held by jobs outside this queue."""
        holding = [state for state in JobState if state.holds_resources]
        running = self._store.search(states=holding, engine=self.name, uid=os.getuid(), host=this_host())
        ours = {(os.getuid(), claim_key(row.run_dir)) for row in running}
        others = [claim for claim in machine_ledger().claims() if (claim.uid, claim.share.key) not in ours]
        machine, drained = self._machine(), obeyed_drains(self._store)
        held = held_elsewhere(others, machine, [one for row in running for one in row.placement])
        return [node_status(node, running, others, held, drained) for node in machine]


def kept_store(backend: Backend, url: str) -> JobStore:
    """A store with a connection that is closed with a backend."""
    store = open_store(url, keep_connection=True)
    weakref.finalize(backend, store.close)
    return store


def _is_ours(row: JobRow) -> bool:
    return row.uid == os.getuid()


def _job_status(row: JobRow) -> JobStatus:
    return JobStatus(
        state=row.state,
        raw=str(row.state),
        reason=": ".join(filter(None, (row.reason, row.detail))) or row.end.message,
        cause=parse_cause(row.end.cause),
        hint=row.end.hint,
        nodes=tuple(one.node for one in row.placement),
        restarts=row.restarts,
        exit_code=row.end.exit_code,
        starts_at=row.starts_at,
    )


def node_status(
    node: LocalNode,
    running: Sequence[JobRow],
    others: Sequence[Claim],
    held: Sequence[Placement],
    drains: Mapping[str, str],
) -> NodeStatus:
    """Status of a node, of which jobs of this queue hold a part, and `others`, who take `held`."""
    drained = drains.get(node.name)
    here = [(row.run_id, one) for row in running for one in row.placement if one.node == node.name]
    if elsewhere := [one for one in held if one.node == node.name]:
        names = [str(claim) for claim in others if claim.share.cores or set(claim.share.devices) & set(node.devices)]
        here += [(", ".join(names), one) for one in elsewhere]
    cores = sum(one.cores for _, one in here)
    usable = [device for device in node.devices if f"{node.name}:{device}" not in drains]
    devices = sum(device in usable for _, one in here for device in one.devices)
    full = cores >= node.cores or (devices >= len(usable) and len(node.devices) > 0)
    return NodeStatus(
        name=node.name,
        state=("draining" if here else "drained") if drained else "taken" if full else "mixed" if here else "free",
        reason=drained or drained_text([node], drains) or None,
        cores=node.cores,
        cores_taken=cores,
        accelerators=len(usable),
        accelerators_taken=devices,
        accelerator=node.accelerator,
        memory_bytes=node.memory_bytes,
        jobs=tuple(name for name, _ in here),
    )
