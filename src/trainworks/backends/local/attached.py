"""Start a run at once on this machine, as child processes of the terminal; `trainworks run` does this."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, final

from trainworks.agent.accelerators import HELD, MachineShare
from trainworks.agent.current_state import current_status
from trainworks.agent.launch import make_ready, take_run
from trainworks.backends.backend import Backend, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import entering_here
from trainworks.backends.local.fair_share import hours_of, published_queues
from trainworks.backends.local.machine import (
    drained_accelerators,
    drained_text,
    held_text,
    local_nodes,
    shape_on_one_node,
)
from trainworks.backends.local.quotas import machine_ledger, queue_policy
from trainworks.backends.ownership import obeyed_drains
from trainworks.backends.store_place import store_folder, store_url
from trainworks.errors import EnvironmentProblem, NotOwnerError
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.ledger import Claim, Share, claim_key
from trainworks.host.probe import cuda_names, num_cores, probe_accelerators, probe_host
from trainworks.host.users import user_name
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import parse_cause, parse_state
from trainworks.jobs.store import open_store
from trainworks.record.events.job import StopRequestedEvent
from trainworks.record.processes import Processes, RoleNodes
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.record.run_environment import ResolvedEnvironment
from trainworks.record.status import RunStatus
from trainworks.system import check_linux

_START_TIMEOUT_S = 120.0
_STARTS: dict[str, list[str]] = {
    "per_rank": [],
    "per_node": ["# the command starts once per node and starts its own ranks"],
    "once": ["# the command starts once, and starts the ranks"],
}

_END_TIMEOUT_S = 30.0
"""Longest wait for a supervisor whose run has ended."""
_supervisors: list[tuple[RunDir, process.Child]] = []
"""Runs of this process, by their absolute paths, and their supervisors until these are reaped: a run that starts again
has two for a moment."""


@final
class AttachedBackend(Backend):
    """Runs one job of this user at once; the job ends with this process.

    The job claims its cores and accelerators in the ledger of the machine, as queued jobs do, but does not wait for
    cores: it shares them. The handle of a job is its run directory. `lock` is that of the run, if the caller has taken
    it; `submit` closes it.

    Raises:
        EnvironmentProblem: this machine does not run Linux.
    """

    name: ClassVar[str] = "local"
    gives_other_accelerators: ClassVar[bool] = True

    def __init__(self, resolved: ResolvedRun, *, lock: int | None = None, clock: Clock | None = None) -> None:
        check_linux("a run on this machine")
        self._resolved = resolved
        self._lock = lock
        self._clock = clock or SystemClock()

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """The supervisor's command line and what it starts."""
        processes = self._resolved.processes
        lines = [
            shlex.join(["python", "-m", "trainworks.agent.supervisor", str(run_dir.path)]),
            *[line for group in processes.groups() for line in _group_lines(group, self._resolved)],
            *_environment_lines(self._resolved.environment),
            f"# restarts after a failure: {spec.max_restarts}",
        ]
        return RenderedJob(spec, "\n".join(lines) + "\n")

    def probe(self, spec: JobSpec) -> None:
        """Refuse a job while other jobs hold the accelerators it needs.

        Raises:
            EnvironmentProblem: too few accelerators are free.
        """
        _free_devices(self._resolved.processes, _claims_of_others(machine_ledger().claims()))

    def sharing_note(self) -> str | None:
        """Jobs that will share their cores with this one; None if there are enough cores for all.

        Runs of this process that have ended are not among them: a supervisor gives its share back as it exits.
        """
        _reap_supervisors()
        claims = _claims_of_others(machine_ledger().claims())
        cores, claimed = _cores(self._resolved.processes), sum(claim.share.cores for claim in claims)
        if cores + claimed <= num_cores():
            return None
        return f"this run shares its {cores:g} cores: {held_text(claims, num_cores(), [])}"

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Start the supervisor and wait until it has written its first status.

        The supervisor inherits the lock of the run, so that no other one can start in between.

        Raises:
            UsageError: a supervisor has the run already.
            EnvironmentProblem: the supervisor did not start, processes of an earlier launch remain, or other jobs hold
                the accelerators it needs.
        """
        processes = self._resolved.processes
        with contextlib.ExitStack() as handles:
            lock = take_run(run_dir) if self._lock is None else self._lock
            handles.callback(os.close, lock)
            claim, env = _claim(processes, run_dir, self._resolved.run_file.job.team or "")
            handles.callback(os.close, claim)
            make_ready(run_dir, processes, self._clock.now())
            arguments = (str(run_dir.path), str(os.getpid()), str(lock), str(claim))
            child = process.spawn(
                process.python_module("trainworks.agent.supervisor", *arguments),
                log=run_dir.supervisor_log,
                env=os.environ | env,
                new_session=True,
                pass_fds=(lock, claim),
            )
        _reap_supervisors()
        _supervisors.append((RunDir(run_dir.path.resolve()), child))
        deadline = self._clock.now() + _START_TIMEOUT_S
        while True:
            code = child.exit_code()  # before the status: a short run may start and end between the two looks
            if run_dir.read_status().state != "CREATED":
                break
            if code is not None:
                raise self._start_failure(run_dir, f"the supervisor ended with code {code}")
            if self._clock.now() > deadline:
                child.signal_group(signal.SIGKILL)
                raise self._start_failure(run_dir, f"the supervisor did not start within {_START_TIMEOUT_S:.0f} s")
            self._clock.sleep(0.01)
        return str(run_dir.path)

    def _start_failure(self, run_dir: RunDir, message: str) -> EnvironmentProblem:
        run_dir.write_status(
            RunStatus(state="FAILED", cause="environment", message=message, exit_code=3, updated_at=self._clock.now())
        )
        return EnvironmentProblem(message, hint=f"see {run_dir.supervisor_log}")

    def find(self, run_dir: RunDir) -> str | None:
        """The run directory, while a supervisor runs the job."""
        return str(run_dir.path) if _supervisor(run_dir) is not None else None

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of jobs, from their run directories."""
        statuses = {handle: current_status(RunDir(Path(handle)).read_status()) for handle in handles}
        return {
            handle: JobStatus(
                state=parse_state(status.state),
                raw=status.state,
                reason=status.message,
                cause=parse_cause(status.cause),
                hint=status.hint,
                exit_code=status.exit_code,
            )
            for handle, status in statuses.items()
        }

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Signal the supervisor; a second signal, of another number, ends the job at once."""
        run_dir = RunDir(Path(handle))
        stop_supervisor(run_dir, reason="trainworks stop")
        if at_once:
            stop_supervisor(run_dir, reason="trainworks stop --now", number=signal.SIGINT)

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """Start it here, in the terminal of the caller."""
        return entering_here(run_dir, command, node)

    def nodes(self) -> list[NodeStatus]:
        """This machine, as its queue sees it."""
        from trainworks.backends.local.backend import LocalBackend  # noqa: PLC0415

        return LocalBackend().nodes()


@atexit.register
def _reap_supervisors() -> None:
    for entry in list(_supervisors):
        run_dir, child = entry
        if parse_state(run_dir.read_status().state).is_final:
            child.wait(_END_TIMEOUT_S)
        if child.exit_code() is not None:
            _supervisors.remove(entry)


def stop_supervisor(run_dir: RunDir, reason: str, number: signal.Signals = signal.SIGTERM) -> bool:
    """Signal the supervisor of a run on this machine: the first signal asks for a clean end, a second ends at once.

    The kernel makes one signal of two that have the same number while the supervisor does not run.

    Returns:
        False if no supervisor runs: a run that is only just being started has none yet.

    Raises:
        NotOwnerError: the run belongs to another user.
    """
    pid = _supervisor(run_dir)
    if pid is None:
        return False
    run_dir.note(StopRequestedEvent(kind="stop_requested", reason=reason))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
    return True


def _supervisor(run_dir: RunDir) -> int | None:
    """Process id of the supervisor, if the process of that id is still the supervisor."""
    status = run_dir.read_status()
    if status.supervisor_pid is None or status.supervisor_started_at is None:
        return None
    owner = run_dir.status_file.stat().st_uid
    if os.getuid() not in (owner, 0):
        raise NotOwnerError(f"cannot stop run {run_dir.run_id}: it belongs to {user_name(owner)}")
    if process.owner(status.supervisor_pid) != owner:  # a forged status file may name a process of another user
        return None
    return status.supervisor_pid if process.is_running(status.supervisor_pid, status.supervisor_started_at) else None


def _cores(processes: Processes) -> float:
    groups = (group.processes for group in processes.groups())
    return min(sum(one.world_size * one.threads_per_process for one in groups), num_cores())


def _group_lines(group: RoleNodes, resolved: ResolvedRun) -> list[str]:
    """What the nodes of a role start, or all of them, and when."""
    ranks, name = group.processes, group.role
    agents = f"{ranks.nodes} node agent(s), {ranks.processes_per_node} rank(s) each, "
    agents += f"{ranks.threads_per_process} thread(s) per rank, {ranks.device}"
    if name is None:
        return [f"# {agents}", *_STARTS[ranks.starts]]
    role = resolved.run_file.roles[name]
    waits = f", after {', '.join(role.depends_on)}" if role.depends_on else ""
    ends = "" if role.decides else ", until the others have succeeded"
    return [f"# role {name}{waits}{ends}: {agents}; restarts of its own: {role.restarts}"]


def _environment_lines(environment: ResolvedEnvironment | None) -> list[str]:
    if environment is None:
        return []
    python = f", Python {environment.python}" if environment.python else ""
    return [f"# packages of the ranks: {environment.name} (sha256 {environment.sha256[:12]}){python}"]


def _free_devices(processes: Processes, claims: Sequence[Claim]) -> tuple[int, ...]:
    """Accelerators for a job, of those that are in service and that other jobs do not hold."""
    count = processes.num_accelerators if processes.device == "cuda" else 0
    if count == 0:
        return ()
    visible = [facts.index for facts in probe_accelerators()]
    with contextlib.closing(open_store(store_url())) as store:
        drained = {name: why for name, why in obeyed_drains(store).items() if ":" in name}
    machine = local_nodes(probe_host(store_folder())) if drained else []
    claimed = {device for claim in claims for device in claim.share.devices}
    out = {device for one in drained_accelerators(machine, drained, ()) for device in one.devices}
    free = [device for device in visible if device not in claimed | out]
    if (out | claimed).intersection(visible) and len(free) < count:
        holding = [claim for claim in claims if claimed.intersection(claim.share.devices)]
        bare = [Claim(claim.uid, claim.share.model_copy(update={"cores": 0.0})) for claim in holding]
        texts = [held_text(bare, num_cores(), visible), drained_text(machine, drained)]
        raise EnvironmentProblem(
            f"cannot start the run: it needs {count} accelerators, and {', '.join(filter(None, texts))}",
            hint="wait in the queue: trainworks submit",
        )
    return tuple(free[:count])


def _held(devices: Sequence[int]) -> dict[str, str]:
    """Variable by which a supervisor knows the accelerators of its run, and takes single ones out of service."""
    machine = local_nodes(probe_host(store_folder())) if devices else []
    names = {device: f"{node.name}:{device}" for node in machine for device in node.devices}
    if not devices or not names.keys() >= set(devices):  # a part of the machine that no node has
        return {}
    ledger = None if queue_policy() else machine_ledger().folder  # a limit of a policy counts what a job holds
    share = MachineShare(
        store_url=store_url(),
        accelerators=tuple(names[device] for device in devices),
        is_queued=False,
        spares=tuple(name for device, name in names.items() if device not in devices) if ledger else (),
        ledger=str(ledger) if ledger else None,
    )
    return {HELD: share.model_dump_json()}


def _claims_of_others(claims: Sequence[Claim]) -> list[Claim]:
    """All claims but that of the run this process belongs to: a run inside a run uses the share of the outer one."""
    outer = os.environ.get("TRAINWORKS_RUN_DIR")
    outer_key = (os.getuid(), claim_key(outer)) if outer else None
    return [claim for claim in claims if (claim.uid, claim.share.key) != outer_key]


def _claim(processes: Processes, run_dir: RunDir, team: str) -> tuple[int, dict[str, str]]:
    """Claim the job's share in the ledger; returns the open file that keeps it, and variables of the supervisor."""
    policy = queue_policy()
    shares: list[Share] = []

    def choose(claims: Sequence[Claim]) -> Share:
        others = _claims_of_others(claims)
        is_inside = len(others) < len(claims)
        share = Share(
            run=run_dir.run_id,
            key=claim_key(run_dir.path.resolve()),
            cores=0.0 if is_inside else _cores(processes),
            devices=_free_devices(processes, others),
            team=team,
        )
        if policy and not is_inside:
            shape = shape_on_one_node(share.cores, len(share.devices))
            folder = machine_ledger().folder if policy.limits_hours else None
            hours = hours_of(published_queues(folder), SystemClock().now()) if folder else None
            if why := policy.refusal(shape, share.team, others, hours):
                raise EnvironmentProblem(f"cannot start `{share.run}` now: it {why}", hint="see `trainworks nodes`")
        shares.append(share)
        return share

    handle = machine_ledger().claim(choose)
    assert handle is not None
    devices = shares[0].devices
    names, visible = cuda_names(devices), [facts.index for facts in probe_accelerators()[: len(devices)]]
    is_default = names == ",".join(map(str, visible))  # by CUDA's own rule, which has no index of a part
    return handle, ({} if is_default else {"CUDA_VISIBLE_DEVICES": names}) | _held(devices)
