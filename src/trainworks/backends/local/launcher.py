"""Starts the supervisors of queued jobs as copies of the dispatcher, and finds those that an earlier one started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol, final

from trainworks.agent import supervisor
from trainworks.agent.launch import end_left_over, make_ready, take_environment, take_run
from trainworks.agent.node_agents import run_agent
from trainworks.backends.local.outcome import Outcome
from trainworks.backends.ownership import check_run_dir
from trainworks.errors import NotOwnerError
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.ledger import Claim, MachineLedger, Share, claim_key, machine_ledger
from trainworks.host.prefork import Order, Spare
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.record.events import Event, append_event, read_events
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import earlier_turns, record_waits


class Supervised(Protocol):
    """A job with a supervisor."""

    @property
    def pid(self) -> int:
        """Of the supervisor."""

    def is_alive(self) -> bool:
        """Whether the supervisor runs."""

    def end(self, *, at_once: bool) -> None:
        """Ask for a clean end; at once: kill what runs."""


class Launcher(Protocol):
    """The door between the dispatcher and this machine."""

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        """What jobs other than `ours`, of any user and any queue, hold of this machine now."""

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        """Take a job's share of this machine before its launch; False where others hold more than `known` by now."""

    def let_go(self, job: JobRow) -> None:
        """Give up our part of a job's claim; after a launch the job's own processes keep theirs."""

    def launch(self, job: JobRow) -> Supervised:
        """Start a supervisor, which gets the job's claim.

        Raises:
            TrainworksError: it cannot be started, and nothing is left of it.
        """

    def adopt(self, job: JobRow) -> Supervised | None:
        """The supervisor that another process started; None if there is none, or none yet."""

    def status(self, job: JobRow) -> RunStatus:
        """What the job says of itself."""

    def last_words(self, job: JobRow) -> RunStatus | None:
        """What a job said last that has nothing left running; None while it has."""

    def events(self, job: JobRow) -> list[Event]:
        """The record of the job, which counts its restarts."""

    def back_in_line(self, job: JobRow, outcome: Outcome | None = None, ended_at: float = 0.0) -> None:
        """Say in the run directory that the job waits again: how its turn ended, or nothing of it after a retry."""

    def stopped(self, job: JobRow) -> None:
        """Say in the run directory that the job was stopped before its start."""

    def forget(self, job: JobRow) -> None:
        """The job has ended: drop what was kept for its next start."""


class _Supervisor:
    """A supervisor by its process: a child of this one, or of another process."""

    def __init__(self, pid: int, started_at: float, child: process.Child | None = None) -> None:
        self._pid = pid
        self._started_at = started_at
        self._child = child

    @property
    def pid(self) -> int:
        return self._pid

    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.exit_code() is None
        return process.is_running(self._pid, self._started_at)

    def end(self, *, at_once: bool) -> None:
        if self.is_alive():
            for _ in range(2 if at_once else 1):
                os.kill(self._pid, signal.SIGTERM)


@final
class ForkingLauncher:
    """The launcher of this machine.

    Args:
        clock: the time.
        own_fds: file descriptors of the dispatcher that no job may keep.
        ledger: of this machine.
        shared: whether other users can write the job store.
    """

    def __init__(
        self, clock: Clock, own_fds: Iterable[int], ledger: MachineLedger | None = None, *, shared: bool = False
    ) -> None:
        self._clock = clock
        self._own_fds = list(own_fds)
        self._ledger = machine_ledger() if ledger is None else ledger
        self._shared = shared
        self._spare: Spare | None = None
        self._ours: set[str] = set()
        self._claims: dict[int, int] = {}

    def prepare(self) -> Spare:
        """Have a copy of this process ready for the next job."""
        if self._spare is None or not self._spare.waits():
            if self._spare is not None:
                self._spare.dismiss()
            self._spare = Spare(_begin, new_session=True, close_fds=self._own_fds)
        return self._spare

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        """By the machine's ledger."""
        self._ours = {_key(job.run_dir) for job in ours}
        return self._of_others(self._ledger.claims())

    def _of_others(self, claims: Iterable[Claim]) -> frozenset[Claim]:
        own = os.getuid()
        return frozenset(claim for claim in claims if not (claim.uid == own and claim.share.key in self._ours))

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        """A file of the ledger, open until `let_go`: no copy of this process may be made meanwhile for another job."""
        devices = tuple(device for one in placement for device in one.devices)
        cores = sum(one.cores for one in placement)
        share = Share(run=job.run_id, key=_key(job.run_dir), cores=cores, devices=devices)
        handle = self._ledger.claim(lambda claims: share if self._of_others(claims) <= known else None)
        if handle is None:
            return False
        self._claims[job.id] = handle
        self._ours.add(share.key)
        return True

    def let_go(self, job: JobRow) -> None:
        """Close the file."""
        if (handle := self._claims.pop(job.id, None)) is not None:
            os.close(handle)

    def _run_dir(self, job: JobRow) -> RunDir:
        """The run directory of a job.

        Raises:
            NotOwnerError: it is not this user's alone.
            OSError: it cannot be read.
        """
        folder = Path(job.run_dir)
        check_run_dir(folder, shared=self._shared)
        return RunDir(folder)

    def launch(self, job: JobRow) -> Supervised:
        """A copy of this process becomes the supervisor. It gets the run's lock with its order, so there is no moment
        at which the job has begun and the lock is free.
        """
        run_dir = self._run_dir(job)
        lock = take_run(run_dir)
        try:
            resolved = _resolved_for(job, run_dir)
            make_ready(run_dir, resolved.processes, self._clock.now(), restarts=earlier_turns(self.events(job)))
            devices = [device for one in job.placement for device in one.devices]
            order = json.dumps([str(run_dir.path), devices])
            claims = [self._claims[job.id]] if job.id in self._claims else []
            child = self.prepare().order(order, [lock, *claims], log=run_dir.supervisor_log)
        finally:
            os.close(lock)
        return _Supervisor(*process.identity(child.pid), child)

    def adopt(self, job: JobRow) -> Supervised | None:
        """By the process id in the status, if that is still the process that wrote it."""
        status = self.status(job)
        if status.supervisor_pid is None or status.supervisor_started_at is None:
            return None
        found = _Supervisor(status.supervisor_pid, status.supervisor_started_at)
        return found if found.is_alive() else None

    def status(self, job: JobRow) -> RunStatus:
        """Of the run directory; UNKNOWN where it cannot be read, or is not this user's."""
        try:
            return self._run_dir(job).read_status()
        except (OSError, NotOwnerError) as error:
            return RunStatus(state="UNKNOWN", message=str(error))

    def last_words(self, job: JobRow) -> RunStatus | None:
        """The status, once the run's lock is free and no process of the run is left."""
        try:
            run_dir = self._run_dir(job)
            lock = take_lock(run_dir.lock_file)
        except (OSError, NotOwnerError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            message = f"`{job.run_dir}` cannot be read: {why}"
            return RunStatus(state="FAILED", cause="environment", message=message, exit_code=3)
        if lock is None:
            return None
        try:
            end_left_over(run_dir)
            return run_dir.read_status()
        finally:
            os.close(lock)

    def events(self, job: JobRow) -> list[Event]:
        """Of the run directory; none where it cannot be read."""
        try:
            return read_events(self._run_dir(job).events_file)
        except (OSError, NotOwnerError):
            return []

    def back_in_line(self, job: JobRow, outcome: Outcome | None = None, ended_at: float = 0.0) -> None:
        """Write the end of the turn, unless a dispatcher that was killed after that has written it."""
        run_dir = self._run_dir(job)
        if outcome is not None and not record_waits(self.events(job)):
            words = {"state": outcome.state, "cause": outcome.cause, "message": outcome.message}
            append_event(run_dir.events_file, "state", **words, ended_at=ended_at)
        run_dir.write_status(RunStatus(state="QUEUED", updated_at=self._clock.now()))

    def stopped(self, job: JobRow) -> None:
        """The last status; one that cannot be written is not missed."""
        with suppress(OSError, NotOwnerError):
            status = RunStatus(state="STOPPED", exit_code=0, updated_at=self._clock.now())
            self._run_dir(job).write_status(status)
            append_event(self._run_dir(job).events_file, "state", state="STOPPED", cause=None, message=None)
        self.forget(job)

    def forget(self, job: JobRow) -> None:
        """The variables that the job was submitted with: there may be secrets among them."""
        with suppress(OSError, NotOwnerError):
            self._run_dir(job).environment_file.unlink(missing_ok=True)


@lru_cache(maxsize=4096)
def _key(run_dir: str) -> str:
    return claim_key(run_dir)


def _resolved_for(job: JobRow, run_dir: RunDir) -> ResolvedRun:
    """The run on the nodes that it got, of which there may be fewer than at most."""
    resolved = run_dir.read_resolved()
    if job.spec.min_nodes == job.spec.max_nodes or len(job.placement) == resolved.processes.nodes:
        return resolved
    processes = resolved.processes.model_copy(update={"nodes": len(job.placement)})
    resolved = resolved.model_copy(update={"processes": processes})
    run_dir.write_resolved(resolved)
    return resolved


def _begin() -> Order:
    """In the copy that is going to supervise a job: have another one ready for its first agent."""
    return partial(_supervise, agent=Spare(lambda: run_agent))


def _supervise(text: str, handles: Sequence[int], *, agent: Spare) -> int:
    """Take on the environment that the job was submitted with, and its accelerators."""
    folder, devices = json.loads(text)
    take_environment(RunDir(Path(folder)), {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if devices else {})
    lock, *claims = handles
    return supervisor.main(folder, "0", lock, agent, claims)
