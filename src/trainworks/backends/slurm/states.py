"""States and causes of jobs, states of nodes and signals in Slurm's words. An unknown word stays itself."""

from __future__ import annotations

import math
import re
import signal
from datetime import datetime

from trainworks.backends.backend import NodeState
from trainworks.config.slurm.slurm_words import expand_nodes
from trainworks.jobs.state import Cause, JobState

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
    "JOB REQUEUE": Cause.PREEMPTED,
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

_CONTROLLER_TIME = re.compile(r"^(BOOT_TIME|MinJobAge)\s*=\s*(\d+)", re.MULTILINE)

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the batch script passes on, as SIGRTMIN+1, SIGRTMIN+2 and so on."""
ENDING = FORWARDED[:3]
"""Forwarded signals that ask the job to end."""


def controller_times(config: str) -> tuple[float, float]:
    """Start of slurmctld in whole seconds, and the seconds for which it lists a job that has ended; NaN if not said.

    Args:
        config: text of `scontrol show config`.
    """
    said = dict(_CONTROLLER_TIME.findall(config))
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

    Args:
        log: output of the batch script, earlier allocations included.
        job: number of the job.
        since: start of the allocation; earlier messages are ignored.
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
