"""Starts the supervisors of queued jobs as copies of the dispatcher, and finds those that an earlier one started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import final

from trainworks.agent import supervisor
from trainworks.agent.accelerators import MachineShare, index_of
from trainworks.agent.command_nodes import run_agent
from trainworks.agent.launch import end_left_over, make_ready, take_environment, take_run
from trainworks.backends.editing import finish_edit
from trainworks.backends.local.machine import LocalNode, held_elsewhere
from trainworks.backends.local.outcome import STOPPED_BEFORE_START
from trainworks.backends.local.quotas import machine_ledger
from trainworks.backends.ownership import check_run_dir, stopped_by
from trainworks.backends.store_place import store_url
from trainworks.errors import NotOwnerError
from trainworks.files import closing_handle, take_lock
from trainworks.host import process
from trainworks.host.clock import Clock
from trainworks.host.forking import Order, Spare
from trainworks.host.ledger import Claim, MachineLedger, Share, claim_key
from trainworks.host.probe import cuda_names
from trainworks.jobs.job_row import JobRow, Placement
from trainworks.jobs.state import JobState, parse_state
from trainworks.record.dev_environment import DevUse
from trainworks.record.events.log import Event, read_events
from trainworks.record.exit_code import End
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.recover.restarts import earlier_turns, record_waits


@final
class Supervised:
    """A job with a supervisor: a child of this process, or of another one."""

    def __init__(self, pid: int, started_at: float, child: process.Child | None = None) -> None:
        self._pid = pid
        self._started_at = started_at
        self._child = child

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._pid

    def is_alive(self) -> bool:
        """Whether the supervisor runs."""
        if self._child is not None:
            return self._child.exit_code() is None
        return process.is_running(self._pid, self._started_at)

    def end(self, *, at_once: bool) -> None:
        """Ask for a clean end; at once: kill what runs."""
        if self.is_alive():
            for number in (signal.SIGTERM, signal.SIGINT) if at_once else (signal.SIGTERM,):
                os.kill(self._pid, number)  # two signals of one number may arrive as one


class Launcher:
    """Starts supervisors on this machine, and reads and writes what their jobs leave.

    No job may keep the file descriptors `own_fds` of the dispatcher. `shared`: other users can write the job store.
    `begin` prepares a copy of the dispatcher for the order to supervise a job; it is this machine's when None.
    """

    def __init__(
        self,
        clock: Clock,
        own_fds: Iterable[int],
        ledger: MachineLedger | None = None,
        *,
        shared: bool = False,
        begin: Callable[[], Order] | None = None,
    ) -> None:
        self._clock = clock
        self._own_fds = list(own_fds)
        self._ledger = machine_ledger() if ledger is None else ledger
        self._shared = shared
        # with another copy for the job's first agent
        self._begin = begin or (lambda: partial(_supervise, agent=Spare(lambda: run_agent)))
        self._spare: Spare | None = None
        self._ours: set[str] = set()
        self._claims: dict[int, int] = {}
        DevUse.model_rebuild()  # here once, and not by the supervisor of every job in its copy of this process

    def prepare(self) -> Spare:
        """Return a copy of this process for the next job, forking one if none waits."""
        if self._spare is None or not self._spare.waits():
            if self._spare is not None:
                self._spare.dismiss()
            self._spare = Spare(self._begin, new_session=True, close_fds=self._own_fds)
        return self._spare

    def elsewhere(self, ours: Iterable[JobRow]) -> frozenset[Claim]:
        """Claims in the machine's ledger of jobs other than `ours`, of any user and any queue."""
        self._ours = {_key(job.run_dir) for job in ours}
        return self._foreign_claims(self._ledger.claims())

    def _foreign_claims(self, claims: Iterable[Claim]) -> frozenset[Claim]:
        own = os.getuid()
        return frozenset(claim for claim in claims if not (claim.uid == own and claim.share.key in self._ours))

    def held(
        self, elsewhere: Iterable[Claim], machine: Sequence[LocalNode], taken: Sequence[Placement]
    ) -> list[Placement]:
        """What these claims of others take of each node, of which this queue has taken a part."""
        return held_elsewhere(elsewhere, machine, taken)

    def claim(self, job: JobRow, placement: Sequence[Placement], known: frozenset[Claim]) -> bool:
        """Claim a job's share of this machine before its launch; False if others hold more than `known` by now.

        The claim is a file of the ledger, open until `let_go`: until then no copy of this process may be made for
        another job.
        """
        devices = tuple(device for one in placement for device in one.devices)
        cores = sum(one.cores for one in placement)
        share = Share(run=job.run_id, key=_key(job.run_dir), cores=cores, devices=devices, team=job.team)
        handle = self._ledger.claim(lambda claims: share if self._foreign_claims(claims) <= known else None)
        if handle is None:
            return False
        self._claims[job.id] = handle
        self._ours.add(share.key)
        return True

    def let_go(self, job: JobRow) -> None:
        """Release this process's part of a job's claim; after a launch the job's own processes keep theirs."""
        if (handle := self._claims.pop(job.id, None)) is not None:
            os.close(handle)

    def _run_dir(self, job: JobRow) -> RunDir:
        folder = Path(job.run_dir)
        check_run_dir(folder, shared=self._shared)
        return RunDir(folder)

    def launch(self, job: JobRow) -> Supervised:
        """Start a supervisor in a copy of this process, which gets the job's claim.

        It gets the run's lock with its order, so the lock is never free once the job has begun.

        Raises:
            TrainworksError: it cannot be started, and has left nothing behind.
        """
        run_dir = self._run_dir(job)
        with closing_handle(take_run(run_dir)) as lock:
            resolved = self._resolved(job, run_dir)
            order = self.order(job, run_dir, resolved)
            claims = [self._claims[job.id]] if job.id in self._claims else []
            child = self.prepare().order(order, [lock, *claims], log=run_dir.supervisor_log)
        return Supervised(*process.identity(child.pid), child)

    def _resolved(self, job: JobRow, run_dir: RunDir) -> ResolvedRun:
        """The run on the nodes that it got, of which there may be fewer than at most."""
        finish_edit(run_dir, job.spec)
        resolved = run_dir.read_resolved()
        if job.spec.min_nodes == job.spec.max_nodes or len(job.placement) == resolved.processes.nodes:
            return resolved
        processes = resolved.processes.model_copy(update={"nodes": len(job.placement)})
        resolved = resolved.model_copy(update={"processes": processes})
        run_dir.write_resolved(resolved)
        return resolved

    def order(self, job: JobRow, run_dir: RunDir, resolved: ResolvedRun) -> str:
        """Make the run directory ready; returns the order for `prepare`'s copy."""
        make_ready(run_dir, resolved.processes, self._clock.now(), restarts=earlier_turns(self.events(job)))
        names = [f"{one.node}:{device}" for one in job.placement for device in one.devices]
        share = MachineShare(store_url=store_url(), accelerators=tuple(names), is_queued=True)
        return json.dumps([str(run_dir.path), share.model_dump()])

    def adopt(self, job: JobRow) -> Supervised | None:
        """The supervisor that another process started, if the process in the job's status still runs."""
        status = self.status(job)
        if status.supervisor_pid is None or status.supervisor_started_at is None:
            return None
        found = Supervised(status.supervisor_pid, status.supervisor_started_at)
        return found if found.is_alive() else None

    def status(self, job: JobRow) -> RunStatus:
        """Status in the run directory; UNKNOWN if it cannot be read, or is not this user's."""
        try:
            return self._run_dir(job).read_status()
        except (OSError, NotOwnerError) as error:
            return RunStatus(state="UNKNOWN", message=str(error))

    def last_words(self, job: JobRow) -> RunStatus | None:
        """Final status of a job, once its lock is free and its remaining processes are killed; None while it runs."""
        try:
            run_dir = self._run_dir(job)
            lock = take_lock(run_dir.lock_file)
        except (OSError, NotOwnerError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            message = f"`{job.run_dir}` cannot be read: {why}"
            return RunStatus(state="FAILED", cause="environment", message=message, exit_code=3)
        if lock is None:
            return None
        with closing_handle(lock):
            end_left_over(run_dir)
            return run_dir.read_status()

    def events(self, job: JobRow) -> list[Event]:
        """Events of the job, which count its restarts; none if its run directory cannot be read."""
        try:
            return read_events(self._run_dir(job).events_file)
        except (OSError, NotOwnerError):
            return []

    def back_in_line(self, job: JobRow, end: End | None = None) -> None:
        """Record that the job waits again, and how its turn ended unless a killed dispatcher has recorded that.

        A retry has no `end`.
        """
        run_dir = self._run_dir(job)
        if end is not None and not record_waits(self.events(job)):
            run_dir.enter(RunStatus.of(end, updated_at=self._clock.now()), ended_at=end.at)
        run_dir.write_status(RunStatus(state="QUEUED", updated_at=self._clock.now()))

    def stopped(self, job: JobRow) -> None:
        """Record that the job was stopped before its start, if its run directory can be written."""
        with suppress(OSError, NotOwnerError):
            self._run_dir(job).enter(
                RunStatus.of(STOPPED_BEFORE_START.because(stopped_by(job)), updated_at=self._clock.now())
            )
        self.forget(job)

    def concluded(self, job: JobRow, end: End) -> None:
        """Record the end of a job, unless the supervisor did, if the run directory can be written.

        A supervisor that was killed leaves a status that is not final, and readers of the run would wait for its end.
        """
        with suppress(OSError, NotOwnerError):
            run_dir = self._run_dir(job)
            state = parse_state(run_dir.read_status().state)
            if not state.is_final or state is JobState.LOST:
                now = self._clock.now()
                run_dir.enter(RunStatus.of(end, updated_at=now), ended_at=now if end.at is None else end.at)
        self.forget(job)

    def forget(self, job: JobRow) -> None:
        """Delete the environment variables of an ended job: they may hold secrets."""
        with suppress(OSError, NotOwnerError):
            self._run_dir(job).environment_file.unlink(missing_ok=True)


@lru_cache(maxsize=4096)
def _key(run_dir: str) -> str:
    return claim_key(run_dir)


def _supervise(text: str, handles: Sequence[int], *, agent: Spare) -> int:
    """Supervise a job with the environment that it was submitted with and its accelerators."""
    folder, held = json.loads(text)
    share = MachineShare.model_validate(held)
    devices = [index_of(name) for name in share.accelerators]
    take_environment(RunDir(Path(folder)), {"CUDA_VISIBLE_DEVICES": cuda_names(devices)} if devices else {})
    lock, *claims = handles
    return supervisor.main(folder, "0", lock, agent, claims, share)
