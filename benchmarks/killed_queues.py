"""The queues that `queue_kills` attacks: how their users are set up, and which of their processes are killed."""

from __future__ import annotations

import abc
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from tests.backends.slurm_cluster import Cluster, started
from tests.locks import has_locked
from tests.users import FIRST_UID, User, users
from trainworks.deploy.sandbox.slurm import daemon_pid
from trainworks.deploy.sandbox.slurm_files import CLUSTER, SandboxSize
from trainworks.host import process
from trainworks.host.process_end import variable_of
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState
from trainworks.jobs.store import JobStore, open_store
from trainworks.record.run_dir import RunDir

__all__ = ["QUEUES", "LocalQueue", "Queue", "SlurmQueue"]

USERS = 3


class Queue(abc.ABC):
    """A queue of three users, whose parts can be killed.

    Args:
        folder: that all users can write; it has their homes and the job store.
        chance: draws what is killed.
        env: variables of every command of a user.
    """

    patience_s: ClassVar[float]
    """Longest time for all kills, and then for the end of all jobs."""
    pause_s: ClassVar[tuple[float, float]]
    """Shortest and longest time between two kills."""
    most_kills_of_a_job: ClassVar[int]
    throttle: ClassVar[str] = ""
    """What follows the indices of an array."""
    first_uid: ClassVar[int] = FIRST_UID

    def __init__(self, folder: Path, chance: random.Random, env: dict[str, str]) -> None:
        store_folder = folder / "store"
        store_folder.mkdir()
        store_folder.chmod(0o777)
        url = f"sqlite:///{store_folder / 'jobs.db'}"
        self.store: JobStore = open_store(url)
        (store_folder / "jobs.db").chmod(0o666)
        self.people: list[User] = users(folder, USERS, {"TRAINWORKS_STORE": url, **env}, self.first_uid)[1:]
        self.kills: Counter[str] = Counter()
        """By role."""
        self.kills_of_run: Counter[str] = Counter()
        """By run directory; kills of submitters and of daemons that run no job belong to none."""
        self._hits: list[tuple[float, str, set[str]]] = []
        """Time and role of each kill that may have hit jobs, and their run directories; empty for all jobs."""
        self._chance = chance
        self._looks: list[subprocess.Popen[bytes]] = []
        """Commands of users who look at the queue."""

    @abc.abstractmethod
    def keys(self, number: int) -> dict[str, Any]:
        """Keys of the run file of the job with that number."""

    @abc.abstractmethod
    def kill_one(self) -> None:
        """Kill one process of a role drawn at random, if there is one."""

    @abc.abstractmethod
    def mend(self, *, all_of_it: bool = False) -> None:
        """Start again what an operator would, once its time has come."""

    def kill_submitter(self, running: Sequence[subprocess.Popen[str]]) -> None:
        """Kill one of the commands that submit."""
        self.kills["submitter"] += killed(self._chance.choice(running).pid)

    def may_refuse(self, exit_code: int, complaints: str) -> bool:
        """Whether a submission may fail like this, without a job."""
        return False

    def charged(self, job: JobRow) -> int:
        """Kills that may have cost a job a restart."""
        return self.kills_of_run[job.run_dir]

    def kills_during(self, job: JobRow) -> list[tuple[float, str]]:
        """Time and role of each kill of a job, and of every crash of slurmctld during it."""
        end = job.ended_at or time.time()
        return [
            (at, role)
            for at, role, runs in self._hits
            if job.run_dir in runs or (not runs and job.submitted_at <= at <= end)
        ]

    def end_looks(self) -> None:
        """End the commands that look."""
        for look in self._looks:
            look.kill()
            look.wait()

    def _charge(self, role: str, run_dirs: set[str]) -> None:
        self.kills[role] += 1
        self.kills_of_run.update(run_dirs)
        self._hits.append((time.time(), role, run_dirs))


class LocalQueue(Queue):
    """The queue of this machine; without a dispatcher nothing starts, so a user looks after each of its kills."""

    patience_s, pause_s, most_kills_of_a_job = 600.0, (0.02, 0.3), 6  # the wait before a restart doubles with each
    throttle = "%4"
    _ROLES = ("rank", "agent", "supervisor", "dispatcher")

    def keys(self, number: int) -> dict[str, Any]:
        """A quarter of a core."""
        return {"resources": {"cpus": 0.25}}

    def kill_one(self) -> None:
        """Kill a dispatcher or a process of a job."""
        role = self._chance.choice(self._ROLES)
        if role == "dispatcher":
            user = self._chance.choice(self.people)
            for pid in _dispatchers(user):
                self.kills[role] += killed(pid)
                self._looks.append(user.start("ps"))  # as anybody would who looks
            return
        holding = [
            job
            for job in self.store.search(states=[state for state in JobState if state.holds_resources])
            if self.kills_of_run[job.run_dir] < self.most_kills_of_a_job
        ]
        for job in self._chance.sample(holding, min(1, len(holding))):
            for pid in _pids(role, RunDir(Path(job.run_dir))):
                if killed(pid):
                    self._charge(role, {job.run_dir})

    def mend(self, *, all_of_it: bool = False) -> None:
        """Nothing: it mends itself."""


@contextmanager
def local_queue(folder: Path, chance: random.Random) -> Iterator[LocalQueue]:
    """The queue of this machine, with a ledger of its own."""
    ledger = str(folder / "ledger")
    queue = LocalQueue(folder, chance, {"TRAINWORKS_LEDGER": ledger})
    try:
        yield queue
    finally:
        queue.end_looks()
        while left := process.processes_with({"TRAINWORKS_LEDGER": ledger}):  # one may have started another
            for one in left:
                killed(one.pid)


class SlurmQueue(Queue):
    """A Slurm of 16 nodes on this machine, those of `trainworks sandbox slurm`, with low time-outs.

    A node dies with its slurmd, its steps and their tasks, as in a power failure; it comes back after its time-out, and
    a slurmd that is killed alone before that. slurmctld comes back after some seconds; then drained nodes are resumed,
    as an operator would.
    """

    patience_s, pause_s = 1200.0, (0.1, 1.0)
    most_kills_of_a_job = 3  # Slurm holds a job whose launch failed, and it is released three times
    first_uid = 1  # slurmd runs jobs of users with an account: daemon, bin, sys
    NODES, NODE_TIMEOUT_S = 16, 8
    SETTLES_S = 60.0
    """Shortest time between two crashes of slurmctld, which asks nodes for their jobs about 40 s after its start."""
    _SHARES: ClassVar = {
        "rank": 4,
        "agent": 4,
        "supervisor": 4,
        "slurmd": 2,
        "node": 2,
        "slurmctld": 1,
        "slurmstepd": 1,
    }
    """How often each role is drawn, relatively."""

    def __init__(self, folder: Path, chance: random.Random, cluster: Cluster) -> None:
        super().__init__(folder, chance, cluster.sandbox.env())
        self._sandbox = cluster.sandbox
        self._back_at: dict[str, float] = {}
        """Time at which a killed daemon starts again: a node, or slurmctld."""
        self._crashed_at: list[float] = []

    def keys(self, number: int) -> dict[str, Any]:
        """A core of one node, or of two for every fifth submission."""
        return {"resources": {"cpus": 1}, "num_nodes": 2 if number % 5 == 4 else 1, "cluster": "slurm"}

    def may_refuse(self, exit_code: int, complaints: str) -> bool:
        """Slurm does not answer, also where it is only asked whether it would take the job, or lacks nodes."""
        reasons = ("the job was not submitted", "nodes are away", "error: Slurm does not answer")
        return exit_code == 3 and any(reason in complaints for reason in reasons)

    def charged(self, job: JobRow) -> int:
        """Each crash of slurmctld during a job, too: a job of which it has forgotten the start starts once more."""
        crashes = [at for at in self._crashed_at if job.submitted_at <= at <= (job.ended_at or at)]
        return super().charged(job) + len(crashes)

    def kill_one(self) -> None:
        """Kill a daemon, a node or a process of a job."""
        role = self._chance.choices(list(self._SHARES), list(self._SHARES.values()))[0]
        if role == "slurmctld":
            has_settled = time.time() - max(self._crashed_at, default=0.0) > self.SETTLES_S
            if has_settled and self._kill_daemon("slurmctld", "slurmctld"):
                self._charge(role, set())
                self._crashed_at.append(time.time())
                self._back_at["slurmctld"] = time.monotonic() + self._chance.uniform(0.0, 5.0)
        elif role in ("slurmd", "node"):
            self._kill_on_a_node(role)
        else:
            found = [target for one in self._of_jobs() if (target := _target(role, one)) is not None]
            for one, handle in self._chance.sample(found, min(1, len(found))):
                if (run_dirs := self._spared({handle})) and killed(one.pid):
                    self._charge(role, run_dirs)

    def mend(self, *, all_of_it: bool = False) -> None:
        """Start daemons again whose time has come, and let a user look at the queue."""
        for name in [name for name, at in self._back_at.items() if all_of_it or at <= time.monotonic()]:
            del self._back_at[name]
            if name == "slurmctld":
                self._sandbox.start_controller()
                self._resume_nodes()
            else:
                self._sandbox.start_node(name)
        if all(look.poll() is not None for look in self._looks):
            self._looks = [self._chance.choice(self.people).start("ps")]

    def _resume_nodes(self) -> None:
        """Undo a drain, e.g. for a job that slurmctld has started twice; Slurm refuses that for other nodes."""
        nodes = f"NodeName=node[1-{self.NODES}]"
        process.run(["scontrol", "update", nodes, "State=RESUME"], timeout_s=30, env=os.environ | self._sandbox.env())

    def _kill_daemon(self, name: str, program: str) -> bool:
        pid = daemon_pid(self._sandbox.paths.pid_file(name), program)
        return pid is not None and killed(pid)

    def _kill_on_a_node(self, role: str) -> None:
        """Kill a node that runs a job, or its slurmd; every job there may lose its nodes."""
        busy = sorted(variable_of(self._of_jobs(), "SLURMD_NODENAME") - self._back_at.keys())
        if not busy:
            return
        name = self._chance.choice(busy)
        there = [one for one in self._of_jobs() if variable_of([one], "SLURMD_NODENAME") == {name}]
        if not (run_dirs := self._spared(variable_of(there, "SLURM_JOB_ID"))):
            return
        if role == "node":
            self._sandbox.kill_node(name)
        elif not self._kill_daemon(f"slurmd-{name}", "slurmd"):
            return
        self._charge(role, run_dirs)
        shortest, longest = (0.0, 0.25) if role == "slurmd" else (1.5, 2.5)
        self._back_at[name] = time.monotonic() + self.NODE_TIMEOUT_S * self._chance.uniform(shortest, longest)

    def _of_jobs(self) -> list[psutil.Process]:
        """Processes of the jobs of this Slurm."""
        marked = process.processes_with({"SLURM_CLUSTER_NAME": CLUSTER, **self._sandbox.env()})
        return [one for one in marked if variable_of([one], "SLURM_JOB_ID")]

    def _spared(self, handles: set[str]) -> set[str]:
        """Run directories of these jobs; none if one of them is unknown, or has been hit often enough."""
        live = [state for state in JobState if not state.is_final]
        runs = {job.handle: job.run_dir for job in self.store.search(states=live)}
        found = {runs.get(handle, "") for handle in handles}
        hit = any(not run or self.kills_of_run[run] >= self.most_kills_of_a_job for run in found)
        return set() if hit else found


@contextmanager
def slurm_queue(folder: Path, chance: random.Random) -> Iterator[SlurmQueue]:
    """A new Slurm for three users."""
    size = SandboxSize(nodes=SlurmQueue.NODES, cores=1, accelerators=0, node_timeout_s=SlurmQueue.NODE_TIMEOUT_S)
    with started(size) as cluster:
        queue = SlurmQueue(folder, chance, cluster)
        try:
            yield queue
        finally:
            queue.mend(all_of_it=True)
            queue.end_looks()


QUEUES = {"local": local_queue, "slurm": slurm_queue}


def killed(pid: int) -> bool:
    """Kill a process; False if it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _pids(role: str, run_dir: RunDir) -> list[int]:
    """One process of that role of a job, if there is one."""
    mark = {"TRAINWORKS_RUN_DIR": str(run_dir.path)}
    if role == "rank":
        return [one.pid for one in process.processes_with(mark | {"RANK": "0"})][:1]
    supervisor = run_dir.read_status().supervisor_pid
    try:
        agents = [one.pid for one in psutil.Process(supervisor).children()] if supervisor else []
    except psutil.NoSuchProcess:
        return []
    return [supervisor] if supervisor and role == "supervisor" else agents[-1:]


def _dispatchers(user: User) -> list[int]:
    """Processes of a user that have taken the lock of the dispatcher; its copies may be supervisors when one is hit."""
    found = []
    for one in psutil.process_iter():
        try:
            is_own = one.environ().get("TRAINWORKS_STORE") == user.env["TRAINWORKS_STORE"]  # users of trials share uids
            if is_own and one.uids().real == user.uid and has_locked(one.pid, "dispatcher.lock"):
                found.append(one.pid)
        except (psutil.Error, OSError):
            continue
    return found


_MODULES = {"agent": "trainworks.agent.command_agent", "supervisor": "trainworks.backends.slurm.batch"}


def _target(role: str, one: psutil.Process) -> tuple[psutil.Process, str] | None:
    """What plays a role by this process of a job, and the job's number; None if nothing does.

    The slurmstepd of a step carries no variables: it is the parent of an agent.
    """
    with suppress(psutil.Error, LookupError, ValueError):
        env, words = one.environ(), one.cmdline()
        if role == "rank":
            return (one, env["SLURM_JOB_ID"]) if env["RANK"] == "0" else None
        module = _MODULES["agent" if role == "slurmstepd" else role]
        target = one.parent() if role == "slurmstepd" else one
        if target is not None and one.name().startswith("python") and words[words.index("-m") + 1] == module:
            return target, env["SLURM_JOB_ID"]
    return None
