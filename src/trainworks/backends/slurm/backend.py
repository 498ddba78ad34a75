"""A cluster under Slurm."""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, Literal, Self, final

from trainworks.backends.backend import Backend, Capability, JobStatus, NodeStatus, RenderedJob
from trainworks.backends.entering import check_node, entering
from trainworks.backends.job_tag import find_patiently, mark_of
from trainworks.backends.slurm.allocation import ending_of_turn
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.backends.slurm.render import check, render, updates
from trainworks.backends.slurm.states import (
    accelerator_names,
    accelerators_in,
    cause_of,
    expand,
    job_state,
    node_state,
)
from trainworks.backends.submission import submit_lock
from trainworks.config.engines import Slurm
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, TrainworksError, UnreachableError, UsageError
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.accelerator_names import matching_names
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.program import Program
from trainworks.jobs.state import Cause, JobState
from trainworks.jobs.store import JobStore
from trainworks.record.run_dir import RunDir

_GONE = re.compile(r"invalid job id|already complet|job has finished", re.IGNORECASE)
_NO_ACCOUNTING = re.compile(r"accounting storage is disabled|not running a database", re.IGNORECASE)
_HELD_BY_SLURM = "launch failed requeued held"
_ANY = "gpu"
"""The name of any accelerator, in Slurm's gres and in the run file."""
_LOGIN_S = 10.0
"""Longest time for which a list of jobs waits for a login node to which no connection is open."""
_MOST_RELEASES = 3
"""Restarts after which a job whose launch fails stays held."""
_JOB = "JobID:20|,State:20|,RestartCnt:8|,exit_code:16|,StartTime:24|,EndTime:24|,NodeList:4096|,Reason:256"
_LEAF = re.compile(r"SwitchName=(\S+) Level=0 .*?\bNodes=(\S+)")
"""A line of `scontrol show topology`."""
_NODE = "NodeList:255|,StateComplete:80|,CPUsState:64|,Memory:24|,Gres:255|,GresUsed:255|,Reason:256"
_ON_NODES = "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"
_HISTORY = "JobIDRaw,State,ExitCode,Start,End,NodeList"


@final
class SlurmBackend(Backend):
    """Talks to Slurm by `sbatch`, `squeue`, `sacct`, `scancel`, `scontrol` and `sinfo`.

    Args:
        options: what the run file says about Slurm.
        python: interpreter with Trainworks, on all nodes; this one when left out.
        client: calls the programs.
        clock: waits between two looks for a job whose submission was not answered.
    """

    name: ClassVar[str] = "slurm"
    unsupported: ClassVar[frozenset[Capability]] = frozenset()

    def __init__(
        self,
        options: Slurm,
        *,
        python: str = sys.executable,
        client: SlurmClient | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        self._python = python
        self._client = client or SlurmClient(options.login)
        self._clock = clock or SystemClock()
        self._accounting = True  # until sacct says that there is none

    @classmethod
    def connect(cls, cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Self:
        """Create the backend of a run file's `cluster`."""
        return cls(cluster.slurm)

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
            self._client.submit(rendered.text, "--test-only")
        except SlurmRefusedError as refused:
            refused.hint = self._what_there_is()
            raise

    def adapted(self, spec: JobSpec) -> JobSpec:
        """Replace the accelerator's name by the one in Slurm's gres, where upper and lower case differ."""
        wanted = spec.node.accelerator
        if wanted is None or not spec.node.accelerators:
            return spec
        if wanted.lower() == _ANY:
            return replace(spec, node=replace(spec.node, accelerator=None))
        known = self._accelerators()
        found = matching_names(wanted, known)
        if len(found) == 1:
            return replace(spec, node=replace(spec.node, accelerator=found[0]))
        if found:
            raise UsageError(f"`{wanted}` may be any of {_listed(found)} in this cluster", hint="write one of them")
        none = f"it names none; where it has some, write `{_ANY}:{spec.node.accelerators}`"
        there = f"it has {_listed(known)}" if known else none
        raise UsageError(f"the cluster has no accelerator `{wanted}`", hint=there)

    def _accelerators(self) -> list[str]:
        """Names of the types of `gpu` in the gres of the partition's nodes."""
        said = self._client.call("sinfo", "--noheader", *self._partition(), "--Format=Gres:1024")
        return sorted({name for line in said.splitlines() for name in accelerator_names(line.strip())})

    def _partition(self) -> list[str]:
        return [f"--partition={self._options.partition}"] if self._options.partition else []

    def _what_there_is(self) -> str | None:
        with suppress(TrainworksError):
            kinds = Counter((node.cores, node.accelerators, node.accelerator) for node in self.nodes())
            each = [
                f"{count} node(s) of {cores:g} cores" + (f" and {devices} {name or 'accelerators'}" if devices else "")
                for (cores, devices, name), count in kinds.items()
            ]
            return f"there are {', '.join(each)}" if each else None
        return None

    def render(self, spec: JobSpec, run_dir: RunDir) -> RenderedJob:
        """The batch script."""
        return RenderedJob(spec, render(spec, self._options, RunDir(run_dir.path.absolute()), python=self._python))

    def submit(self, rendered: RenderedJob, run_dir: RunDir) -> str:
        """Submit the script, unless a job with this run's mark waits or runs already.

        sbatch holds a lock of the run: if the submitting process is killed, the next submission waits for sbatch.

        Raises:
            SlurmRefusedError: by sbatch, in its words.
            UnansweredError: sbatch was not answered; if Slurm has the job, another `submit` finds it.
            UnreachableError: Slurm does not answer, and does not have the job.
            EnvironmentProblem: another process submits the same run now.
        """
        with submit_lock(run_dir) as lock:
            if found := self.find(run_dir):
                return found
            try:
                answer = self._client.submit(rendered.text, lock=lock)
            except UnreachableError as silent:
                return find_patiently(lambda: self.find(run_dir), silent, self._clock)
        return answer.strip().partition(";")[0]

    def find(self, run_dir: RunDir) -> str | None:
        """Find the job by the tag in its comment."""
        mark = mark_of(RunDir(run_dir.path.absolute()))
        said = self._client.call("squeue", "--me", "--noheader", f"--Format=JobID:20|,Comment:{len(mark) + 8}")
        rows = [line.split("|", 1) for line in said.splitlines() if "|" in line]
        return next((job.strip() for job, comment in rows if comment.strip() == mark), None)

    def poll(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status from slurmctld, or from accounting for jobs that slurmctld has forgotten.

        A job that Slurm holds because a node could not launch it is released, at most three times.
        """
        if not handles:
            return {}
        statuses = self._in_the_queue(handles)
        for handle, status in statuses.items():
            if (status.reason or "").replace("_", " ") == _HELD_BY_SLURM and status.restarts <= _MOST_RELEASES:
                self.release(handle)
        if (missing := [handle for handle in handles if handle not in statuses]) and self._accounting:
            statuses |= self._in_history(missing)
        return statuses

    def _in_the_queue(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        wanted = f"--jobs={','.join(handles)}"
        try:
            said = self._client.call("squeue", "--noheader", "--states=all", wanted, f"--Format={_JOB}")
        except SlurmRefusedError as refused:
            if _GONE.search(refused.message):
                return {}
            raise
        return dict(_job_status(line) for line in said.splitlines() if line.count("|") >= _JOB.count("|"))

    def _in_history(self, handles: Sequence[str]) -> dict[str, JobStatus]:
        """Status of jobs from sacct, which need not exist; UNKNOWN if it does not answer."""
        options = ("--allocations", "--noheader", "--parsable2", f"--jobs={','.join(handles)}", f"--format={_HISTORY}")
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
        rows = (line.split("|") for line in said.splitlines())
        return {row[0]: _remembered(*row[1:]) for row in rows if len(row) == _HISTORY.count(",") + 1}

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
            if not _GONE.search(refused.message):
                raise

    def last_end(self, run_dir: RunDir, handle: str) -> tuple[Cause, float]:
        """Cause and time that slurmstepd wrote into the log of the batch script, else a lost node."""
        return ending_of_turn(run_dir, handle)

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
        """
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
        nodes = self._client.call("squeue", "--noheader", f"--jobs={handle}", "--Format=NodeList:4096").strip()
        names = expand(nodes)
        check_node(node, len(names))
        place = ["--nodes=1", "--ntasks=1", f"--nodelist={names[node]}", "--overlap", "--mem=0", "--cpu-bind=none"]
        streams = ["--pty"] if terminal else ["--unbuffered"]
        words = entering(str(run_dir.path.absolute()), command, node=node, python=self._python)
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
            ("sinfo", "--noheader", "--Node", *self._partition(), f"--Format={_NODE}"),
            ("squeue", "--noheader", _ON_NODES, "--Format=JobID:20|,NodeList:4096"),
            ("scontrol", "show", "topology"),
        )
        rows = [[field.strip() for field in line.split("|", _NODE.count("|"))] for line in nodes().splitlines()]
        jobs, switches = _jobs_by_node(running()), _switch_by_node(topology)
        return [_facts(row, jobs, switches) for row in sorted({row[0]: row for row in rows if len(row) > 1}.values())]

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


def _jobs_by_node(said: str) -> dict[str, list[str]]:
    """Jobs on each node, from a list of jobs and their nodes."""
    jobs: dict[str, list[str]] = {}
    for job, _, nodes in (line.partition("|") for line in said.splitlines()):
        for node in expand(nodes.strip()):
            jobs.setdefault(node, []).append(job.strip())
    return jobs


def _switch_by_node(topology: Callable[[], str]) -> dict[str, str]:
    """Leaf switch of every node that topology.conf names; empty without one."""
    try:
        return {node: switch for switch, nodes in _LEAF.findall(topology()) for node in expand(nodes)}
    except SlurmRefusedError:
        return {}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _job_status(line: str) -> tuple[str, JobStatus]:
    """One line of squeue; the reason stands last, because it may hold anything."""
    parts = (part.strip() for part in line.split("|", _JOB.count("|")))
    job, word, restarts, code, starts, ends, nodes, reason = parts
    why = reason if reason not in ("None", "") else None
    state = _ended(job_state(word, why))
    return job, JobStatus(
        state=state,
        raw=word,
        reason=why,
        cause=cause_of(word, why),
        nodes=expand(nodes),
        restarts=int(restarts or 0),
        exit_code=_exit_code(code) if state.is_final else None,
        starts_at=_time(starts),
        ended_at=_time(ends) if state.is_final else None,
    )


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and their like."""
    return float(text) if text.isdecimal() else None


def _remembered(word: str, code: str, start: str, end: str, nodes: str) -> JobStatus:
    """One line of sacct, which counts no restarts in old versions."""
    state = _ended(job_state(word, None))
    return JobStatus(
        state=state,
        raw=word,
        cause=cause_of(word, None),
        nodes=expand(nodes) if nodes != "None assigned" else (),
        exit_code=_exit_code(code),
        starts_at=_time(start),
        ended_at=_time(end) if state.is_final else None,
    )


def _ended(state: JobState) -> JobState:
    """Map PREEMPTED to FAILED: in Slurm such a job has ended, and a requeued one is PENDING."""
    return JobState.FAILED if state is JobState.PREEMPTED else state


def _exit_code(text: str) -> int | None:
    """Exit code as a shell reports it, from sacct's `code:signal` (`7:0`, `0:9`) or squeue's status of wait(2)."""
    code, colon, number = text.partition(":")
    if not code.isdecimal() or (colon and not number.isdecimal()):
        return None
    ended, killed_by = (int(code), int(number)) if colon else (int(code) >> 8, int(code) & 0x7F)
    return 128 + killed_by if killed_by else ended


def _facts(row: Sequence[str], jobs: Mapping[str, Sequence[str]], switches: Mapping[str, str]) -> NodeStatus:
    name, raw, cores, memory, gres, gres_used, reason = row
    taken, _, _, total = (float(part) for part in cores.split("/"))
    count, accelerator = accelerators_in(gres)
    return NodeStatus(
        name=name,
        state=node_state(raw),
        raw=raw,
        reason=reason if reason.lower() != "none" else None,
        cores=total,
        cores_taken=taken,
        accelerators=count,
        accelerators_taken=accelerators_in(gres_used)[0],
        accelerator=accelerator,
        memory_bytes=int(memory) * 2**20 if memory.isdecimal() else 0,
        jobs=tuple(jobs.get(name, ())),
        switch=switches.get(name),
    )
