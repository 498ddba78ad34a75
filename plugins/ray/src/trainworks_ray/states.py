"""Map jobs, placement groups and nodes of Ray's dashboard to statuses; an unknown state keeps its raw text. Pure.

Ray calls a job running as soon as its driver runs. Its placement group, which has the name of the job, tells whether it
has its nodes.

Source: `JobStatus` of Ray 2.60 (dashboard/modules/job/common.py), `PlacementGroupState` and `NodeState`
(util/state/common.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainworks.backends.backend import JobStatus, NodeState, NodeStatus
from trainworks.jobs.state import Cause, JobState, parse_cause
from trainworks_ray.gang import ENDED

__all__ = ["GROUP_STATES", "JOB_STATES", "job_status", "node_facts"]

Object = Mapping[str, Any]

JOB_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "STOPPED": JobState.STOPPED,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
}
GROUP_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "PREPARED": JobState.STARTING,
    "CREATED": JobState.RUNNING,
    "RESCHEDULING": JobState.RECOVERING,
    "REMOVED": JobState.RUNNING,  # the driver is about to end, or to restart the nodes
}
"""States of the placement group of a RUNNING job."""
_CAUSES_OF_ERROR: dict[str, Cause] = {
    "JOB_SUPERVISOR_ACTOR_START_TIMEOUT": Cause.NO_CAPACITY,
    "JOB_SUPERVISOR_ACTOR_START_FAILURE": Cause.LAUNCH_FAILED,
    "JOB_SUPERVISOR_ACTOR_UNSCHEDULABLE": Cause.NO_CAPACITY,
    "RUNTIME_ENV_SETUP_FAILURE": Cause.LAUNCH_FAILED,
    "JOB_SUPERVISOR_ACTOR_DIED": Cause.NODE_LOST,
    "JOB_SUPERVISOR_ACTOR_UNKNOWN_FAILURE": Cause.UNKNOWN,
    "JOB_ENTRYPOINT_COMMAND_START_ERROR": Cause.LAUNCH_FAILED,
    "JOB_ENTRYPOINT_COMMAND_ERROR": Cause.CONTROLLER_ERROR,
}
"""Causes by `error_type` of a failed job, if its driver did not report one."""
_KILLED = 128
"""Exit codes above this mean that a signal ended the driver."""
_NO_PROGRAM = (126, 127)
"""Exit codes of a shell that cannot run `cluster.ray.python`."""
_RAY_LINE = re.compile(r"Running entrypoint for job |\d{4}-\d\d-\d\d .*\tINFO ")
"""Lines that Ray writes into the log of every job."""
_NODE_STATES: dict[str, NodeState] = {"ALIVE": "free", "DEAD": "down"}
_NO_ROOM = {
    "INFEASIBLE": "no node of this cluster is large enough",
    "NO_RESOURCES": "all suitable nodes are in use",
    "PENDING": "Ray has not processed it yet",
}


def job_status(job: Object, groups: Sequence[Object] = ()) -> JobStatus:
    """Current status of a job.

    Args:
        job: one element of `GET /api/jobs/`.
        groups: placement groups of all attempts of the job.
    """
    word = str(job.get("status"))
    state = JOB_STATES.get(word, JobState.UNKNOWN)
    if state is JobState.RUNNING:
        seen = _alive(groups)
        is_first = len(groups) <= 1 and not seen.state.waits
        return replace(seen, starts_at=_time(job.get("start_time"))) if is_first else seen
    report = _driver_report(job) if state in (JobState.FAILED, JobState.STOPPED) else {}
    exit_code = report.get("exit_code", job.get("driver_exit_code"))
    return JobStatus(
        state=state,
        raw=word,
        reason=report.get("message") or _ray_message(job.get("message")) if state is not JobState.SUCCEEDED else None,
        cause=_cause(job, report) if state is JobState.FAILED else None,
        restarts=max(0, len(groups) - 1),
        exit_code=exit_code if state.is_final else None,
        starts_at=_time(job.get("start_time")) if state.is_final and len(groups) <= 1 else None,
        ended_at=_time(job.get("end_time")) if state.is_final else None,
    )


def _time(milliseconds: object) -> float | None:
    """Seconds since the epoch."""
    return float(milliseconds) / 1000 if isinstance(milliseconds, int | float) and milliseconds > 0 else None


def _alive(groups: Sequence[Object]) -> JobStatus:
    """Status of a job whose driver runs, from its newest placement group."""
    groups = sorted(groups, key=lambda group: group.get("state") == "REMOVED", reverse=True)
    if not groups:
        return JobStatus(state=JobState.STARTING, raw="RUNNING", reason="the driver is starting")
    group = groups[-1]
    word = str(group.get("state"))
    state = GROUP_STATES.get(word, JobState.UNKNOWN)
    bundles = group.get("bundles") or []
    nodes = tuple(str(bundle["node_id"]) for bundle in bundles if bundle.get("node_id"))
    return JobStatus(
        state=state,
        raw=f"RUNNING, placement group {word}",
        reason=_why_it_waits(group) if state is JobState.QUEUED else None,
        cause=Cause.NODE_LOST if state is JobState.RECOVERING else None,
        nodes=nodes if state is JobState.RUNNING else (),
        restarts=len(groups) - 1,
    )


def _why_it_waits(group: Object) -> str:
    bundles = group.get("bundles") or []
    resources = (bundles[0].get("unit_resources") or {}) if bundles else {}
    each = ", ".join(f"{name} {amount:g}" for name, amount in sorted(resources.items()))
    state = str((group.get("stats") or {}).get("scheduling_state") or "")
    why = _NO_ROOM.get(state, state)
    return f"waits for {len(bundles)} node(s) of {each}" + (f": {why}" if why else "")


def _driver_report(job: Object) -> dict[str, Any]:
    """Report of the driver at its end; Ray keeps the last lines of a failed job in its message."""
    lines = str(job.get("message") or "").splitlines()
    last = next((line for line in reversed(lines) if line.startswith(ENDED)), None)
    try:
        report = json.loads(last.removeprefix(ENDED)) if last else {}
    except ValueError:
        return {}
    return report if isinstance(report, dict) else {}


def _cause(job: Object, report: Object) -> Cause:
    if (by_driver := parse_cause(report.get("cause"))) is not None:
        return by_driver
    code = job.get("driver_exit_code") or 0
    if code in _NO_PROGRAM or code > _KILLED:
        return Cause.KILLED if code > _KILLED else Cause.LAUNCH_FAILED
    return _CAUSES_OF_ERROR.get(str(job.get("error_type")), Cause.UNKNOWN)


def _ray_message(text: object) -> str | None:
    """Ray's message about a job, with the last line of the log that it quotes."""
    first, *log = [line for line in str(text or "").strip().splitlines() if line.strip()] or [""]
    first = first.removesuffix(", last available logs (truncated to 20,000 chars):")
    last = next((line for line in reversed(log) if not _RAY_LINE.match(line)), None)
    return (f"{first}: {last}" if last else first)[:500] or None


def accelerator_types(node: Object) -> list[str]:
    """Names of a node's accelerators: `A100`, and `A100-80G` where their memory is part of the name."""
    keys = map(str, node.get("resources_total") or {})
    return [key.partition(":")[2] for key in keys if key.startswith("accelerator_type:")]


def node_facts(node: Object, groups: Sequence[Object] = ()) -> NodeStatus:
    """Status of a node, with the load of placement groups.

    Args:
        node: one row of the State interface's nodes.
        groups: all placement groups.
    """
    name, raw = str(node.get("node_id")), str(node.get("state"))
    total = node.get("resources_total") or {}
    held = [(group, bundle) for group in groups for bundle in group.get("bundles") or [] if bundle["node_id"] == name]
    held = [(group, bundle) for group, bundle in held if group.get("state") == "CREATED"]
    cores = sum(float(bundle["unit_resources"].get("CPU", 0)) for _, bundle in held)
    accelerators = sum(float(bundle["unit_resources"].get("GPU", 0)) for _, bundle in held)
    state = _NODE_STATES.get(raw, "unknown")
    if state == "free" and held:
        full = cores >= float(total.get("CPU", 0)) and accelerators >= float(total.get("GPU", 0))
        state = "taken" if full else "mixed"
    kinds = accelerator_types(node)
    return NodeStatus(
        name=name,
        state=state,
        raw=raw,
        reason=node.get("state_message") or None,
        cores=float(total.get("CPU", 0)),
        cores_taken=cores,
        accelerators=int(total.get("GPU", 0)),
        accelerators_taken=int(accelerators),
        accelerator=kinds[0] if kinds else None,
        memory_bytes=int(total.get("memory", 0)),
        jobs=tuple(str(group.get("name")) for group, _ in held),
    )
