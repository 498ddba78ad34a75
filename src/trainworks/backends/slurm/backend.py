"""A cluster under Slurm."""

from __future__ import annotations

import copy
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self, final

from trainworks.backends.backend import AllocatedNodes, Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import check_node, entering
from trainworks.backends.job_tag import find_patiently
from trainworks.backends.slurm import states
from trainworks.backends.slurm.allocation import StepCommand, StepHosts, allocation, ending_of_turn
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.render import check, render, updates
from trainworks.backends.slurm.run_copies import RunCopies
from trainworks.backends.submission import submit_lock
from trainworks.config.engines import Slurm
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, TrainworksError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.cluster_job import ClusterJob
from trainworks.jobs.job_spec import JobSpec, NodeResources
from trainworks.jobs.program import Program
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

_GONE = re.compile(r"invalid job id|already complet|job has finished", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled|not running a database", re.IGNORECASE)
_HELD_BY_SLURM = "launch failed requeued held"
_ANY = "gpu"
"""The name of any accelerator, in Slurm's gres and in the run file."""
_NODES_ANSWER_S, _RETRY_S = 10.0, 2.0
_LOGIN_S = 10.0
"""Longest time for which a list of jobs waits for a login node to which no connection is open."""
_MOST_RELEASES = 3
"""Restarts after which a job whose launch fails stays held."""
_CLOCKS_DIFFER_S = 30.0
_ON_NODES = "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"


@final
class SlurmBackend(Backend):
    """Talks to Slurm by `sbatch`, `squeue`, `sacct`, `scancel`, `scontrol` and `sinfo`.

    `python` has Trainworks on all nodes; it is that of the options or this one when None.
    """

    name: ClassVar[str] = "slurm"
    gives_other_accelerators: ClassVar[bool] = True
    unsupported: ClassVar[frozenset[Capability]] = frozenset({"drain.accelerator"})
    without_accelerator: ClassVar[str] = (
        "once it is drained, an administrator lowers its `Gres` in slurm.conf, leaves the device out of `File` in "
        "gres.conf, and restarts slurmctld and its slurmd"
    )

    def __init__(
        self,
        options: Slurm,
        *,
        python: str | None = None,
        client: SlurmClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._python = python or options.python or sys.executable
        self._client = client or SlurmClient(options.login)
        self._clock = clock or SystemClock()
        self._accounting = True  # until sacct says that there is none

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(cluster.slurm)

    @classmethod
    def allocated_nodes(cls) -> AllocatedNodes:
        """Nodes of the job in whose batch script this process runs; a container has no `srun` to reach the others."""
        client = SlurmClient()
        job = allocation(os.environ, client, SystemClock())
        is_alone = len(job.nodes) == 1 or shutil.which("srun") is None
        steps = None if is_alone else StepHosts(job, StepCommand((), (sys.executable,)), client)
        return AllocatedNodes(len(job.nodes), job.cores_per_node, job.accelerators_per_node, steps)

    @classmethod
    def is_here(cls) -> bool:
        """Whether Slurm's programs are installed."""
        return shutil.which("sinfo") is not None

    def hurried(self) -> Self:
        """This backend, with a client that waits for each answer only for the time of a list.

        If that needs a new connection to a login node, the node has 2 s to greet and 10 s in all to log in and answer.
        """
        hurried = copy.copy(self)
        if not self._client.is_connected:
            hurried.patience_s = _LOGIN_S
        hurried._client = self._client.within(hurried.patience_s, connect_s=self.patience_s)
        return hurried

    def check(self, spec: JobSpec) -> None:
        """Refuse what Slurm cannot do."""
        super().check(spec)
        check(spec, self._options)

    def probe(self, spec: JobSpec) -> None:
        """Check partition, account, QOS, limits and nodes with `sbatch --test-only`."""
        rendered = self.render(self.adapted(replace(spec, depends_on=())), RunDir(Path("/run")))
        try:
            self._submit_with_retries(rendered.spec, lambda: self._client.submit(rendered.text, "--test-only"))
        except SlurmRefusedError as refused:
            refused.hint = None
            with suppress(TrainworksError):
                refused.hint = states.kinds_of(self.nodes())
            raise

    def adapted(self, spec: JobSpec) -> JobSpec:
        """Replace the accelerator's name by the one in Slurm's gres, where upper and lower case differ."""
        named = {group.node.accelerator for group in spec.groups if group.node.accelerators}
        if not named - {None}:
            return spec
        known = list[str]()
        if any(name is not None and name.lower() != _ANY for name in named):
            said = self._client.call("sinfo", "--noheader", *self._partition(), "--Format=Gres:1024")
            known = sorted({name for line in said.splitlines() for name in states.accelerator_names(line.strip())})
        roles = tuple(replace(role, node=_with_known_name(role.node, known)) for role in spec.roles)
        return replace(spec, node=_with_known_name(spec.node, known), roles=roles)

    def _partition(self) -> list[str]:
        return [f"--partition={self._options.partition}"] if self._options.partition else []

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """The batch script."""
        there, tag = self._copies.spec_there(spec, run_dir), self._copies.tag(run_dir)
        text = render(there, self._options, self._copies.place(run_dir), python=self._python, tag=tag)
        return RenderedJob(spec, text)

    @property
    def _copies(self) -> RunCopies:
        return RunCopies(self._options, self._client, self._clock)

    def fetch(self, run_dirs: Sequence[RunDir]) -> bool:
        """Fetch records from `cluster.slurm.folder`; see `run_copies`."""
        return self._copies.fetch(run_dirs)

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the script, unless a job with this run's mark waits or runs already.

        sbatch holds a lock of the run: if the submitting process is killed, the next submission waits for sbatch.

        Raises:
            SlurmRefusedError: by sbatch, in its words.
            UnreachableError: sbatch refuses the job while nodes that it needs are away.
            UnansweredError: sbatch was not answered; if Slurm has the job, another `submit` finds it.
            UnreachableError: Slurm does not answer, and does not have the job.
            EnvironmentProblem: another process submits the same run now.
        """
        with submit_lock(run_dir) as lock:
            if found := self.find(run_dir):
                return found
            self._copies.send(run_dir)
            try:
                answer = self._submit_with_retries(rendered.spec, lambda: self._send(rendered.text, run_dir, lock))
            except SlurmRefusedError:
                with suppress(TrainworksError):
                    self._copies.discard(run_dir)
                raise
        return answer.strip().partition(";")[0]

    def _send(self, script: str, run_dir: RunDir, lock: int) -> str:
        try:
            return self._client.submit(script, lock=lock)
        except UnreachableError as silent:
            return find_patiently(lambda: self.find(run_dir), silent, self._clock)

    def _submit_with_retries(self, spec: JobSpec, send: Callable[[], str]) -> str:
        """Call sbatch; again for some seconds if it calls a job impossible for which there are nodes.

        slurmctld does so after its start, until the nodes have answered, and while too many of them are down.
        """
        deadline = self._clock.now() + _NODES_ANSWER_S
        while True:
            try:
                return send()
            except SlurmRefusedError as refused:
                if not re.search(r"requested node configuration is not available", refused.message, re.IGNORECASE):
                    raise
                if not states.could_hold(spec, nodes := self.nodes()):
                    raise
                if self._clock.now() >= deadline:
                    present = [node for node in nodes if node.state not in states.AWAY]
                    if states.could_hold(spec, present):
                        raise
                    away = f"{len(nodes) - len(present)} of {len(nodes)} nodes are away"
                    message = f"Slurm refuses the job while {away}: {refused.message}"
                    raise UnreachableError(message, hint="try again when they are back: trainworks nodes") from None
            self._clock.sleep(_RETRY_S)

    def find(self, run_dir: RunDir) -> str | None:
        """Find the job by the tag in its comment; of a heterogeneous job, the first component."""
        mark = self._copies.tag(run_dir)
        said = self._client.call("squeue", "--me", "--noheader", f"--Format=JobID:20|,Comment:{len(mark) + 8}")
        rows = [line.split("|", 1) for line in said.splitlines() if "|" in line]
        return min((job.strip() for job, comment in rows if comment.strip() == mark), key=int, default=None)

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status from slurmctld, or from accounting for jobs that slurmctld has forgotten.

        A job that Slurm holds because a node could not launch it is released, at most three times.
        """
        if not handles:
            return {}
        statuses = self._poll_queue(handles)
        for handle, status in statuses.items():
            if (status.reason or "").replace("_", " ") == _HELD_BY_SLURM and status.restarts <= _MOST_RELEASES:
                self.release(handle)
        cancelled = [handle for handle, status in statuses.items() if status.state is JobState.STOPPED]
        missing = [handle for handle in handles if handle not in statuses]
        history = self._poll_history([*missing, *cancelled]) if self._accounting and (missing or cancelled) else {}
        for handle in history.keys() & cancelled:
            statuses[handle] = replace(statuses[handle], ended_by=history[handle].ended_by)
        return history | statuses

    def _poll_queue(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        wanted = f"--jobs={','.join(handles)}"
        try:
            said = self._client.call(
                "squeue", "--me", "--noheader", "--states=all", wanted, f"--Format={states.QUEUE_FORMAT}"
            )
        except SlurmRefusedError as refused:
            if _GONE.search(refused.message):
                return {}
            raise
        return states.parse_squeue(said)

    def _poll_history(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of ended jobs from sacct, which need not exist; UNKNOWN if it does not answer."""
        options = (
            "--allocations",
            "--noheader",
            "--parsable2",
            f"--jobs={','.join(handles)}",
            f"--format={states.HISTORY_FORMAT}",
        )
        try:
            said = self._client.call("sacct", *options)
        except UnreachableError as silent:
            unknown = JobStatus(state=JobState.UNKNOWN, reason=f"accounting does not answer: {silent.message}")
            return dict.fromkeys(handles, unknown)
        except (SlurmRefusedError, EnvironmentProblem) as error:
            if isinstance(error, SlurmRefusedError) and not _NO_ACCOUNTING.search(error.message):
                raise
            self._accounting = False
            return {}
        return states.parse_sacct(said)

    def stop(self, handle: str, *, at_once: bool = False) -> None:
        """Cancel a waiting job, or send SIGINT to the supervisor of a running one, which asks it to stop."""
        self._cancel("--state=PENDING", handle)
        self._cancel("--batch", "--signal=INT", handle)
        if at_once:
            self._cancel(handle)

    def _cancel(self, *arguments: str) -> None:
        try:
            self._client.call("scancel", *arguments)
        except SlurmRefusedError as refused:
            if "permission denied" in refused.message:
                hint = "ask the owner of the job, or an operator of Slurm"
                raise SlurmRefusedError(refused.message, hint=hint) from None
            if not _GONE.search(refused.message):
                raise

    def requeue(self, handle: str) -> None:
        """Return a job to the queue that slurmctld believes to run."""
        self._client.call("scontrol", "requeue", handle)

    def has_lost(self, seen_at: float, now: float) -> bool:
        """Whether slurmctld has restarted since, and a job that had ended since, or was cancelled, would be listed.

        slurmctld answers sbatch before a thread of its own saves the job: a crash loses the jobs of the last seconds.
        It lists a job that has ended for MinJobAge, 300 s by default; 0 is for ever.
        """
        started_at, listed_s = states.controller_times(self._client.call("scontrol", "show", "config"))
        is_listed = listed_s == 0 or now - seen_at < listed_s - _CLOCKS_DIFFER_S
        return is_listed and started_at > seen_at - _CLOCKS_DIFFER_S

    def last_end(self, run_dir: RunDir, handle: str) -> tuple[Cause, float]:
        """Cause and time that slurmstepd wrote into the log of the batch script, else a crash or a lost node."""
        started_at = math.nan
        with suppress(TrainworksError):
            started_at, _ = states.controller_times(self._client.call("scontrol", "show", "config"))
        return ending_of_turn(run_dir, handle, started_at)

    def hold(self, handle: str) -> None:
        """Keep a job that waits from starting."""
        self._client.call("scontrol", "hold", handle)

    def release(self, handle: str) -> None:
        """Let a held job start."""
        self._client.call("scontrol", "release", handle)

    def edit(self, handle: str, before: JobSpec, after: JobSpec) -> None:
        """Change the waiting job with `scontrol update`.

        Raises:
            SlurmRefusedError: in Slurm's words; users may not raise a priority or a time limit in every cluster.
            UsageError: the job reads a copy of its run directory, which may start to change at any moment.
        """
        if self._options.folder is not None:
            hint = "stop the job and submit it again"
            raise UsageError("cannot edit a job whose run directory was copied to `cluster.slurm.folder`", hint=hint)
        if words := updates(before, after, self._options):
            try:
                self._client.call("scontrol", "update", f"JobId={handle}", *words)
            except SlurmRefusedError as refused:
                refused.hint = "an operator of Slurm may change it; else stop the job and submit it again"
                raise

    def enter(
        self, run_dir: RunDir, handle: str, command: Sequence[str], *, node: int = 0, terminal: bool = False
    ) -> list[str]:
        """A step of the job on that node, which shares the resources of the ranks there."""
        if self._options.container is not None:
            hint = "start a step of your own: srun --overlap --jobid=" + handle
            raise UsageError(f"the ranks of run {run_dir.run_id} run in containers", hint=hint)
        said = self._client.call("squeue", "--noheader", f"--jobs={handle}", "--Format=JobID:20|,NodeList:4096")
        lists = sorted((line.partition("|") for line in said.splitlines()), key=lambda row: int(row[0]))
        groups = [states.expand(names.strip()) for _, _, names in lists]
        places = [(group, name) for group, names in enumerate(groups) for name in names]
        check_node(node, len(places))
        group, name = places[node]
        component = [f"--het-group={group}"] if len(groups) > 1 else []
        place = [*component, "--nodes=1", "--ntasks=1", f"--nodelist={name}", "--overlap", "--mem=0", "--cpu-bind=none"]
        streams = ["--pty"] if terminal else ["--unbuffered"]
        words = entering(str(self._copies.place(run_dir).path), command, node=node, python=self._python)
        step = ["srun", f"--jobid={handle}", *place, *streams, "--quiet", "--job-name=exec", *words]
        return self._client.attached(step, terminal=terminal)

    def exclude(self, handle: str, nodes: Iterable[str]) -> None:
        """Keep a job that waits away from these nodes; needs no operator. It replaces what was excluded before."""
        self._client.call("scontrol", "update", f"JobId={handle}", f"ExcNodeList={','.join(nodes)}")

    def preempt(self, handle: str) -> None:
        """Requeue the job: SIGTERM to all processes, `KillWait` seconds, SIGKILL, as with `PreemptMode=REQUEUE`."""
        self._client.call("scontrol", "requeue", handle)

    def nodes(self) -> list[NodeStatus]:
        """All nodes of the partition, in order of their names."""
        nodes, running, topology = self._client.calls(
            ("sinfo", "--noheader", "--Node", *self._partition(), f"--Format={states.NODE_FORMAT}"),
            ("squeue", "--noheader", _ON_NODES, "--Format=JobID:20|,HetJobID:20|,NodeList:4096"),
            ("scontrol", "show", "topology"),
        )
        return states.node_statuses(nodes(), running(), topology)

    def queue(self) -> list[ClusterJob]:
        """Jobs of all users, in every partition; those that have ended for `MinJobAge` seconds."""
        options = ("--noheader", "--all", "--states=all", f"--Format={states.CLUSTER_FORMAT}")
        return states.parse_cluster_queue(self._client.call("squeue", *options))

    def drain(self, node: str, reason: str) -> None:
        """Give the node no more jobs; Slurm lets its operators alone do this."""
        self._set(node, "DRAIN", reason)

    def set_down(self, node: str, reason: str) -> None:
        """Kill what runs on the node; Slurm lets its operators alone do this."""
        self._set(node, "DOWN", reason)

    def _set(self, node: str, state: Literal["DRAIN", "DOWN"], reason: str) -> None:
        words = " ".join(reason.split()) or "set by trainworks"
        self._client.call("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={words}")

    def undrain(self, node: str) -> None:
        """Give the node jobs again."""
        self._client.call("scontrol", "update", f"NodeName={node}", "State=RESUME")


def _with_known_name(node: NodeResources, known: Sequence[str]) -> NodeResources:
    wanted = node.accelerator
    if wanted is None or not node.accelerators:
        return node
    if wanted.lower() == _ANY:
        return replace(node, accelerator=None)
    found = matching_names(wanted, known)
    if len(found) == 1:
        return replace(node, accelerator=found[0])
    if found:
        raise UsageError(f"`{wanted}` may be any of {_listed(found)} in this cluster", hint="write one of them")
    none = f"it names none; where it has some, write `{_ANY}:{node.accelerators}`"
    there = f"it has {_listed(known)}" if known else none
    raise UsageError(f"the cluster has no accelerator `{wanted}`", hint=there)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
