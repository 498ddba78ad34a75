"""Jobs and nodes as squeue, sacct, sinfo and scontrol print them, and Slurm's words for states, causes and signals.

An unknown word stays itself.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from trainworks.backends.backend import JobStatus, NodeState, NodeStatus
from trainworks.backends.job_tag import is_mark
from trainworks.backends.slurm.client import SlurmRefusedError
from trainworks.backends.slurm.run_copies import tag_here
from trainworks.config.slurm.sbatch_amounts import expand_nodes
from trainworks.host.users import user_name
from trainworks.jobs.cluster_job import ClusterJob
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import Cause, JobState
from trainworks.system import LinuxSignal

JOB_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "CONFIGURING": JobState.STARTING,
    "STAGE_OUT": JobState.RUNNING,
    "RUNNING": JobState.RUNNING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "COMPLETING": JobState.RUNNING,
    "EXPEDITING": JobState.QUEUED,
    "REQUEUED": JobState.QUEUED,
    "REQUEUE_FED": JobState.QUEUED,
    "REQUEUE_HOLD": JobState.QUEUED,
    "RESV_DEL_HOLD": JobState.QUEUED,
    "SPECIAL_EXIT": JobState.QUEUED,
    "PREEMPTED": JobState.PREEMPTED,
    "COMPLETED": JobState.SUCCEEDED,
    "CANCELLED": JobState.STOPPED,
    "REVOKED": JobState.STOPPED,
    "FAILED": JobState.FAILED,
    "TIMEOUT": JobState.FAILED,
    "DEADLINE": JobState.FAILED,
    "NODE_FAIL": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED,
    "BOOT_FAIL": JobState.FAILED,
    "LAUNCH_FAILED": JobState.FAILED,
    "RECONFIG_FAIL": JobState.FAILED,
}
"""Extended states of `squeue` and `sacct`."""

_CAUSES: dict[str, Cause] = {
    "FAILED": Cause.USER_ERROR,
    "TIMEOUT": Cause.TIME_LIMIT,
    "DEADLINE": Cause.TIME_LIMIT,
    "NODE_FAIL": Cause.NODE_LOST,
    "OUT_OF_MEMORY": Cause.OOM,
    "BOOT_FAIL": Cause.LAUNCH_FAILED,
    "LAUNCH_FAILED": Cause.LAUNCH_FAILED,
    "RECONFIG_FAIL": Cause.LAUNCH_FAILED,
    "PREEMPTED": Cause.PREEMPTED,
}
_CAUSES_BY_REASON: dict[str, Cause] = {
    "JobLaunchFailure": Cause.LAUNCH_FAILED,
    "launch_failed_requeued_held": Cause.LAUNCH_FAILED,
    "NodeDown": Cause.NODE_LOST,
    "DependencyNeverSatisfied": Cause.DEPENDENCY,
    "BadConstraints": Cause.NO_CAPACITY,
}
_CAUSES_OF_A_KILL: dict[str, Cause] = {
    "PREEMPTION": Cause.PREEMPTED,
    "NODE FAILURE": Cause.NODE_LOST,
    "TIME LIMIT": Cause.TIME_LIMIT,
    "JOB REQUEUE": Cause.REQUEUED,
}
"""Reasons in a job's log: `*** JOB 7 ON node1 CANCELLED AT 2026-11-22T06:34:01 DUE TO PREEMPTION ***`."""
_NODE_STATES: dict[str, NodeState] = {
    "idle": "free",
    "planned": "free",
    "mixed": "mixed",
    "allocated": "taken",
    "completing": "taken",
    "reserved": "taken",
    "blocked": "taken",
    "down": "down",
    "fail": "down",
    "failing": "down",
    "error": "down",
    "future": "down",
    "powered_down": "down",
    "powering_down": "down",
    "powering_up": "down",
    "power_down": "down",
    "reboot": "down",
    "rebooting": "down",
    "inval": "down",
}
_SILENT = "*"
"""Suffix of the state of a node that does not answer."""


FORWARDED = (
    LinuxSignal.SIGTERM,
    LinuxSignal.SIGINT,
    LinuxSignal.SIGHUP,
    LinuxSignal.SIGUSR1,
    LinuxSignal.SIGUSR2,
)
"""Signals that the batch script passes on, as SIGRTMIN+1, SIGRTMIN+2 and so on."""
ENDING = FORWARDED[:3]
"""Forwarded signals that ask the job to end."""


def controller_times(config: str) -> tuple[float, float]:
    """Start of slurmctld in whole seconds, and the seconds for which it lists a job that has ended; NaN if not said.

    `config` is the text of `scontrol show config`.
    """
    said = dict(re.findall(r"^(BOOT_TIME|MinJobAge)\s*=\s*(\d+)", config, re.MULTILINE))
    return float(said.get("BOOT_TIME", "nan")), float(said.get("MinJobAge", "nan"))


def job_state(word: str, reason: str | None) -> JobState:
    """The state of a job; one that was cancelled because it could never start has failed."""
    first = word.split(maxsplit=1)[0] if word.split() else ""
    if first == "CANCELLED" and reason == "DependencyNeverSatisfied":
        return JobState.FAILED
    return JOB_STATES.get(first, JobState.UNKNOWN)


def cause_of(word: str, reason: str | None) -> Cause | None:
    """Why a job failed or lost its place; None of one that did neither."""
    if job_state(word, reason) not in (JobState.FAILED, JobState.PREEMPTED):
        return None
    by_reason = _CAUSES_BY_REASON.get((reason or "").replace(" ", "_"))
    return by_reason or _CAUSES.get(word.split(maxsplit=1)[0], Cause.UNKNOWN)


def cause_of_the_kill(log: str, job: str, since: float = 0.0) -> tuple[Cause, float] | None:
    """Why and when slurmstepd ended a job's batch script the last time; None if it did not, or a user requested it.

    The log of the batch script has earlier allocations, too: messages from before `since` are ignored.
    """
    found = re.findall(rf"\*\*\* JOB {job} ON \S+ CANCELLED AT (\S+)(?: DUE TO ([A-Z ]+))?", log)
    at, words = found[-1] if found else ("", "")
    cause = next((cause for text, cause in _CAUSES_OF_A_KILL.items() if words.startswith(text)), None)
    if cause is None:
        return None
    ended_at = datetime.fromisoformat(at).timestamp()
    return (cause, ended_at) if ended_at >= math.floor(since) else None


def node_state(raw: str) -> NodeState:
    """The state of a node, from `idle`, `idle+drain`, `allocated*` and their like."""
    words = re.sub(r"[*~#!%$@^-]+", "", raw.lower()).split("+")
    base = _NODE_STATES.get(words[0], "unknown")
    if "drain" in words or words[0] in ("drained", "draining", "maint"):
        busy = base in ("mixed", "taken") or words[0] == "draining"
        return "draining" if busy else "drained"
    if any(_NODE_STATES.get(word) == "down" for word in words):
        return "down"
    if _SILENT in raw:
        return "down" if base == "down" else "unknown"
    return base


def accelerators_in(gres: str) -> tuple[int, str | None]:
    """Number and name of the accelerators in `gpu:h100:8(S:0-1),shard:4` or `gpu:h100:0(IDX:N/A)`."""
    found = re.findall(r"(?:^|,)gpu(?::([^:,()]+))??:(\d+)(?=[(,]|$)", gres)
    names = [name for name, _ in found if name]
    return sum(int(count) for _, count in found), names[0] if names else None


def accelerator_names(gres: str) -> list[str]:
    """Names of the accelerators in `gpu:h100:8(S:0-1),gpu:a100:4`; those without a name have none."""
    return re.findall(r"(?:^|,)gpu:([^:,()]+):\d+(?=[(,]|$)", gres)


def expand(node_list: str) -> tuple[str, ...]:
    """The nodes of `gpu[1-3,7],login`; none of an empty list."""
    return expand_nodes(node_list) if node_list else ()


def exit_code_of(text: str) -> int | None:
    """Exit code as a shell reports it, from sacct's `code:signal` (`7:0`, `0:9`) or squeue's status of wait(2)."""
    code, colon, number = text.partition(":")
    if not code.isdecimal() or (colon and not number.isdecimal()):
        return None
    ended, killed_by = (int(code), int(number)) if colon else (int(code) >> 8, int(code) & 0x7F)
    return 128 + killed_by if killed_by else ended


QUEUE_FORMAT = (
    "JobID:20|,HetJobID:20|,State:20|,RestartCnt:8|,TimeUsed:24|,exit_code:16|,StartTime:24|,EndTime:24|,NodeList:4096|,"
    "Comment:256|,Reason:256"
)
"""Fields of a job in the queue, for `squeue --Format`."""
HISTORY_FORMAT = "JobID,State,ExitCode,Start,End,NodeList"
"""Fields of a job in accounting, for `sacct --format`; a component of a heterogeneous job is `7+1` there."""


CLUSTER_FORMAT = (
    "JobID:20|,HetJobID:20|,State:20|,UserName:64|,Account:64|,SubmitTime:24|,NumCPUs:12|,tres-alloc:256|,NodeList:4096|,"
    "Comment:256|,Name:256|,STDOUT:4096|,Reason:256"
)
"""Fields of a job of any user, for `squeue --Format`."""
_ACCELERATORS = re.compile(r"(?:^|,)gres/gpu=(\d+)")


def parse_cluster_queue(said: str) -> list[ClusterJob]:
    """Jobs of all users that squeue lists; one that Trainworks submitted writes its output into its run directory."""
    fields = CLUSTER_FORMAT.count("|")
    rows = [[part.strip() for part in line.split("|", fields)] for line in said.splitlines()]
    found = dict[str, ClusterJob]()
    for row in sorted((row for row in rows if len(row) == fields + 1), key=lambda row: _number(row[0])):
        leader, job = leader_of(*row[:2]), _job_of_anyone(row)
        if (whole := found.get(leader)) is not None:  # `job` is a later component of it
            cores, devices = whole.cores + job.cores, whole.accelerators + job.accelerators
            job = replace(whole, cores=cores, accelerators=devices, nodes=(*whole.nodes, *job.nodes))
        found[leader] = job
    return list(found.values())


def leader_of(job: str, het_job: str) -> str:
    """Number of a whole job: of a component of a heterogeneous job, that of the first one.

    >>> leader_of("8", "7"), leader_of("9", "N/A")
    ('7', '9')
    """
    return het_job if het_job.isdecimal() else job


def _number(job: str) -> int:
    return int(job) if job.isdecimal() else 0


def _job_of_anyone(row: Sequence[str]) -> ClusterJob:
    job, _, word, user, account, submitted, cores, allocated, nodes, comment, name, output, reason = row
    state = _ended(job_state(word, reason))
    run_dir = Path(output).parents[1] if is_mark(comment) and Path(output).is_absolute() else None
    return ClusterJob(
        id=job,
        name=run_dir.name if run_dir else name,
        owner=user,
        team=account if account != "(null)" else "",
        state=state,
        held=state.waits and reason in ("JobHeldUser", "JobHeldAdmin"),
        submitted_at=_time(submitted) or math.nan,
        cores=float(cores) if state.holds_resources else 0.0,
        accelerators=sum(map(int, _ACCELERATORS.findall(allocated))),
        nodes=expand(nodes) if state.holds_resources else (),
        run_dir=run_dir,
    )


def parse_squeue(said: str) -> dict[str, JobStatus]:
    """Status of the jobs that squeue lists, by number; that of a heterogeneous job has the nodes of all components."""
    rows = [_queued(line) for line in said.splitlines() if line.count("|") >= QUEUE_FORMAT.count("|")]
    return _whole((leader, _number(job), status) for job, leader, status in rows)


def _whole(rows: Iterable[tuple[str, int, JobStatus]]) -> dict[str, JobStatus]:
    """Status of whole jobs from rows of their number, the place of a component in the job, and its status.

    The state is that of the first component, which runs the batch script: Slurm starts, requeues and ends all together.
    """
    found = dict[str, JobStatus]()
    for job, _, status in sorted(rows, key=itemgetter(1)):
        whole = found.get(job)
        nodes = (*(whole.nodes if whole else ()), *status.nodes)
        found[job] = replace(whole or status, nodes=nodes, reason=(whole and whole.reason) or status.reason)
    return found


def parse_sacct(said: str) -> dict[str, JobStatus]:
    """Status of the jobs that sacct lists and that have ended, by number.

    A job that slurmctld has lost waits or runs there for ever.
    """
    rows = [line.split("|") for line in said.splitlines() if line.count("|") == HISTORY_FORMAT.count(",")]
    parts = [(row[0].partition("+"), _remembered(*row[1:])) for row in rows]
    found = _whole((job, _number(place), status) for (job, _, place), status in parts)
    return {job: one for job, one in found.items() if not (one.state.waits or one.state.holds_resources)}


def _queued(line: str) -> tuple[str, str, JobStatus]:
    """One line of squeue, with the numbers of the job and of the whole job; the reason may hold anything."""
    parts = (part.strip() for part in line.split("|", QUEUE_FORMAT.count("|")))
    job, het_job, word, restarts, used, code, starts, ends, nodes, comment, reason = parts
    why = reason if reason not in ("None", "") else None
    state = _ended(job_state(word, why))
    if word == "COMPLETING" and int(restarts or 0) and used == "0:00":  # requeued, and its nodes have not ended
        state, why, starts = JobState.QUEUED, f"Slurm still ends its last turn on {nodes}", ""
    status = JobStatus(
        state=state,
        raw=word,
        reason=why,
        cause=cause_of(word, why),
        nodes=expand(nodes),
        restarts=int(restarts or 0),
        exit_code=exit_code_of(code) if state.is_final else None,
        starts_at=_time(starts),
        ended_at=_time(ends) if state.is_final else None,
        tag=tag_here(comment) or None,
    )
    return job, leader_of(job, het_job), status


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and their like."""
    return float(text) if text.isdecimal() else None


def _remembered(word: str, code: str, start: str, end: str, nodes: str) -> JobStatus:
    """One line of sacct, which counts no restarts in old versions, and says `CANCELLED by 1000` with the user."""
    state = _ended(job_state(word, None))
    who = word.removeprefix("CANCELLED by ")
    return JobStatus(
        state=state,
        raw=word,
        cause=cause_of(word, None),
        nodes=expand(nodes) if nodes != "None assigned" else (),
        exit_code=exit_code_of(code),
        starts_at=_time(start),
        ended_at=_time(end) if state.is_final else None,
        ended_by=f"cancelled in Slurm by {user_name(int(who))}" if who.isdecimal() else None,
    )


def _ended(state: JobState) -> JobState:
    """Map PREEMPTED to FAILED: in Slurm such a job has ended, and a requeued one is PENDING."""
    return JobState.FAILED if state is JobState.PREEMPTED else state


AWAY: frozenset[NodeState] = frozenset({"down", "unknown"})
"""States of nodes that may come back by themselves."""
NODE_FORMAT = "NodeList:255|,StateComplete:80|,CPUsState:64|,Memory:24|,Gres:255|,GresUsed:255|,Reason:256"
"""Fields of `sinfo --Node --Format` that `node_statuses` reads."""
_LEAF = re.compile(r"SwitchName=(\S+) Level=0 .*?\bNodes=(\S+)")
"""A line of `scontrol show topology`."""


def could_hold(spec: JobSpec, nodes: Sequence[NodeStatus]) -> bool:
    """Whether nodes have the cores, memory and accelerators that a job requests, used or not: those of each role."""
    groups = [(role.node, role.nodes) for role in spec.roles] or [(spec.node, spec.min_nodes)]
    return all(
        sum(each.could_hold(wanted) and wanted.accelerator in (None, each.accelerator) for each in nodes) >= number
        for wanted, number in groups
    )


def kinds_of(nodes: Iterable[NodeStatus]) -> str | None:
    """How many nodes of which cores and accelerators there are, as a hint; None if there are none."""
    kinds = Counter((node.cores, node.accelerators, node.accelerator) for node in nodes)
    each = [
        f"{count} node(s) of {cores:g} cores" + (f" and {devices} {name or 'accelerators'}" if devices else "")
        for (cores, devices, name), count in kinds.items()
    ]
    return f"there are {', '.join(each)}" if each else None


def node_statuses(nodes: str, running: str, topology: Callable[[], str]) -> list[NodeStatus]:
    """Status of all nodes, in order of their names; a node in several partitions is listed once.

    `nodes` is said by sinfo in `NODE_FORMAT`, `running` by squeue: a line `JOB|HET_JOB|NODES` for each job, or each
    component of a heterogeneous job, that holds nodes.
    `topology` calls `scontrol show topology`, which fails where there is none.
    """
    rows = [[field.strip() for field in line.split("|", NODE_FORMAT.count("|"))] for line in nodes.splitlines()]
    jobs, switches = defaultdict[str, list[str]](list), dict[str, str]()
    with suppress(SlurmRefusedError):
        switches = {node: switch for switch, names in _LEAF.findall(topology()) for node in expand(names)}
    for job, het_job, names in (map(str.strip, line.split("|", 2)) for line in running.splitlines()):
        for node in expand(names):
            jobs[node].append(leader_of(job, het_job))
    by_name = {row[0]: row for row in rows if len(row) > 1}
    return [_node_status(row, jobs, switches) for _, row in sorted(by_name.items())]


def _node_status(row: Sequence[str], jobs: Mapping[str, Sequence[str]], switches: Mapping[str, str]) -> NodeStatus:
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
        jobs=tuple(dict.fromkeys(jobs.get(name, ()))),
        switch=switches.get(name),
    )
