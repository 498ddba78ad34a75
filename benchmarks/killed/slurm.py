"""A Slurm of 16 nodes on this machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

import psutil

from benchmarks.killed.queue import Queue, killed
from tests.backends.slurm_cluster import Cluster, started
from trainworks.deploy.sandbox.slurm import daemon_pid
from trainworks.deploy.sandbox.slurm_files import CLUSTER, SandboxSize
from trainworks.host import process
from trainworks.host.process_end import variable_of
from trainworks.jobs.job_row import JobRow
from trainworks.jobs.state import JobState


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
    shares: ClassVar = {
        "rank": 4,
        "agent": 4,
        "supervisor": 4,
        "slurmd": 2,
        "node": 2,
        "slurmctld": 1,
        "slurmstepd": 1,
    }

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
        role = self._draw()
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
                if (run_dirs := self._runs_of({handle})) and killed(one.pid):
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
        self._look()

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
        if not (run_dirs := self._runs_of(variable_of(there, "SLURM_JOB_ID"))):
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

    def _runs_of(self, handles: set[str]) -> set[str]:
        """Run directories of these jobs; none if one of them is unknown, or has been hit often enough."""
        live = [state for state in JobState if not state.is_final]
        runs = {job.handle: job.run_dir for job in self.store.search(states=live)}
        found = {runs.get(handle, "") for handle in handles}
        return set() if "" in found or self._are_spared(found) else found


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
