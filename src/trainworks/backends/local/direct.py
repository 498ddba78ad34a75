"""This machine: one supervisor process per job, one agent process per node, nothing to install."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import Sequence
from typing import final

from trainworks.agent.launch import make_ready, take_run
from trainworks.backends.local.machine import held_text
from trainworks.backends.scheduler_base import Rendered, Scheduler
from trainworks.errors import EnvironmentProblem, NotOwnerError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.ledger import Claim, Share, claim_key, machine_ledger
from trainworks.host.probe import num_cores, probe_accelerators
from trainworks.host.users import user_name
from trainworks.jobs.environment import accelerators_per_node
from trainworks.jobs.request import JobRequest
from trainworks.record.events import append_event
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

__all__ = ["LocalScheduler"]

_START_TIMEOUT_S = 20.0
_STARTS: dict[str, list[str]] = {
    "per_rank": [],
    "per_node": ["# the command starts once per node; more ranks are its own"],
    "once": ["# the command starts once, and starts the ranks"],
}


@final
class LocalScheduler(Scheduler):
    """Runs jobs as processes of this user."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def render(self, request: JobRequest, run_dir: RunDir) -> Rendered:
        """The supervisor's command line and what it starts."""
        processes = request.processes
        lines = [
            shlex.join(["python", "-m", "trainworks.agent.supervisor", str(run_dir.path)]),
            f"# {processes.nodes} node agent(s), {processes.processes_per_node} rank(s) each, "
            f"{processes.threads_per_process} thread(s) per rank, {processes.device}",
            *_STARTS[processes.starts],
            f"# restarts after a failure: {request.max_restarts}",
        ]
        return Rendered(request, "\n".join(lines) + "\n")

    def check(self, request: JobRequest) -> str | None:
        """What a person should know before the start: whose cores the job will share; None if that is nothing.

        Raises:
            EnvironmentProblem: jobs of others hold the accelerators that it needs.
        """
        claims = _claims_of_others(machine_ledger().claims())
        _devices(request, claims)
        cores, held = _cores(request), sum(claim.share.cores for claim in claims)
        if cores + held <= num_cores():
            return None
        return f"this run shares its {cores:g} cores: {held_text(claims, num_cores(), [])}"

    def submit(self, rendered: Rendered, run_dir: RunDir, *, attached: bool, lock: int | None = None) -> None:
        """Start the supervisor and wait until it has written its first status.

        The supervisor inherits the run's lock, so that no other one can start in between.

        Args:
            rendered: the job.
            run_dir: of the run.
            attached: whether the supervisor ends with this process.
            lock: the run's, where the caller has taken it; it is closed here.

        Raises:
            UsageError: a supervisor has the run already.
            EnvironmentProblem: the supervisor did not start, processes of an earlier launch are left, or jobs of others
                hold the accelerators that it needs.
        """
        with contextlib.ExitStack() as handles:
            lock = take_run(run_dir) if lock is None else lock
            handles.callback(os.close, lock)
            claim, env = _claim(rendered.request, run_dir)
            handles.callback(os.close, claim)
            make_ready(run_dir, rendered.request, self._clock.now())
            arguments = (str(run_dir.path), str(os.getpid()) if attached else "0", str(lock), str(claim))
            child = process.spawn(
                process.python_module("trainworks.agent.supervisor", *arguments),
                log=run_dir.supervisor_log,
                env=os.environ | env,
                new_session=True,
                pass_fds=(lock, claim),
            )
        self._await_start(child, run_dir)

    def _await_start(self, child: process.Child, run_dir: RunDir) -> None:
        deadline = self._clock.now() + _START_TIMEOUT_S
        while run_dir.read_status().state == "CREATED":
            if (code := child.exit_code()) is not None:
                raise self._not_started(run_dir, f"the supervisor ended with code {code}")
            if self._clock.now() > deadline:
                child.signal_group(signal.SIGKILL)
                raise self._not_started(run_dir, f"the supervisor did not start within {_START_TIMEOUT_S:.0f} s")
            self._clock.sleep(0.01)

    def _not_started(self, run_dir: RunDir, message: str) -> EnvironmentProblem:
        run_dir.write_status(
            RunStatus(state="FAILED", cause="environment", message=message, exit_code=3, updated_at=self._clock.now())
        )
        return EnvironmentProblem(message, hint=f"see {run_dir.supervisor_log}")

    def stop(self, run_dir: RunDir, reason: str) -> bool:
        """Signal the supervisor, if it is still that process."""
        status = run_dir.read_status()
        if status.supervisor_pid is None or status.supervisor_started_at is None:
            return False
        owner = run_dir.status_file.stat().st_uid
        if os.getuid() not in (owner, 0):
            raise NotOwnerError(f"cannot stop run {run_dir.run_id}: it belongs to {user_name(owner)}")
        if process.owner(status.supervisor_pid) != owner:  # another user's file names a process that is not theirs
            return False
        if not process.is_running(status.supervisor_pid, status.supervisor_started_at):
            return False
        append_event(run_dir.events_file, "stop_requested", reason=reason)
        with contextlib.suppress(ProcessLookupError):
            os.kill(status.supervisor_pid, signal.SIGTERM)
        return True


def _cores(request: JobRequest) -> float:
    processes = request.processes
    return min(processes.world_size * processes.threads_per_process, num_cores())


def _devices(request: JobRequest, claims: Sequence[Claim]) -> tuple[int, ...]:
    """Accelerators for a job, of those that jobs of others do not hold.

    Raises:
        EnvironmentProblem: too few are free, with who holds the others.
    """
    wanted = request.processes.nodes * accelerators_per_node(request.processes)
    if wanted == 0:
        return ()
    visible = [facts.index for facts in probe_accelerators()]
    held = {device for claim in claims for device in claim.share.devices}
    free = [device for device in visible if device not in held]
    if held.intersection(visible) and len(free) < wanted:
        holding = [claim for claim in claims if held.intersection(claim.share.devices)]
        raise EnvironmentProblem(
            f"cannot start the run: it needs {wanted} accelerators, and {_without_cores(holding, visible)}",
            hint="wait in the queue: trainworks submit",
        )
    return tuple(free[:wanted])


def _without_cores(claims: Sequence[Claim], devices: Sequence[int]) -> str:
    bare = [Claim(claim.uid, claim.share.model_copy(update={"cores": 0.0})) for claim in claims]
    return held_text(bare, num_cores(), devices)


def _claims_of_others(claims: Sequence[Claim]) -> list[Claim]:
    """All but that of the run this process belongs to: a run inside a run uses what that one holds."""
    inside = os.environ.get("TRAINWORKS_RUN_DIR")
    mine = (os.getuid(), claim_key(inside)) if inside else None
    return [claim for claim in claims if (claim.uid, claim.share.key) != mine]


def _claim(request: JobRequest, run_dir: RunDir) -> tuple[int, dict[str, str]]:
    """An open file that holds the job's share of this machine, and variables.

    They name the accelerators of the job, where those are not the ones that it takes by itself.
    """
    chosen: list[Share] = []

    def choose(claims: Sequence[Claim]) -> Share:
        others = _claims_of_others(claims)
        is_inside = len(others) < len(claims)
        share = Share(
            run=run_dir.run_id,
            key=claim_key(run_dir.path.resolve()),
            cores=0.0 if is_inside else _cores(request),
            devices=_devices(request, others),
        )
        chosen.append(share)
        return share

    handle = machine_ledger().claim(choose)
    assert handle is not None
    devices = chosen[0].devices
    is_moved = devices != _devices(request, [])
    return handle, {"CUDA_VISIBLE_DEVICES": ",".join(map(str, devices))} if is_moved else {}
