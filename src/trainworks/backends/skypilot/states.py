"""Map SkyPilot's states of managed jobs; an unknown state keeps its raw text.

Source: `ManagedJobStatus` of SkyPilot 0.14 (sky/jobs/state.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainworks.backends.backend import JobStatus
from trainworks.jobs.state import Cause, JobState

JOB_STATES: dict[str, JobState] = {
    "PENDING": JobState.QUEUED,
    "SUBMITTED": JobState.STARTING,
    "STARTING": JobState.STARTING,
    "RUNNING": JobState.RUNNING,
    "WINDING_DOWN": JobState.RUNNING,
    "RECOVERING": JobState.RECOVERING,
    "CANCELLING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "CANCELLED": JobState.STOPPED,
    "FAILED": JobState.FAILED,
    "FAILED_SETUP": JobState.FAILED,
    "FAILED_PRECHECKS": JobState.FAILED,
    "FAILED_NO_RESOURCE": JobState.FAILED,
    "FAILED_CONTROLLER": JobState.FAILED,
}

_CAUSES: dict[str, Cause] = {
    "RECOVERING": Cause.NODE_LOST,  # or preempted: SkyPilot does not tell them apart
    "FAILED": Cause.USER_ERROR,
    "FAILED_SETUP": Cause.USER_ERROR,
    "FAILED_PRECHECKS": Cause.ENVIRONMENT,  # no access, or resources that no cloud offers
    "FAILED_NO_RESOURCE": Cause.NO_CAPACITY,
    "FAILED_CONTROLLER": Cause.AGENT_LOST,
}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_EMPTY = ("", "-")


def job_status(record: Mapping[str, Any]) -> JobStatus:
    """Current status of a managed job."""
    raw = str(record.get("status"))
    state = JOB_STATES.get(raw, JobState.UNKNOWN)
    return JobStatus(
        state=state,
        raw=raw,
        reason=_reason(record),
        cause=_CAUSES.get(raw),
        restarts=int(record.get("recovery_count") or 0),
        exit_code=0 if state is JobState.SUCCEEDED else None,
        starts_at=None if state.waits else _time(record.get("start_at")),
        ended_at=_time(record.get("end_at")) if state.is_final else None,
    )


def _time(seconds: object) -> float | None:
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _reason(record: Mapping[str, Any]) -> str | None:
    """Reason why a job waits or failed; for one with nodes, their location."""
    texts = [_plain(record.get(key)) for key in ("failure_reason", "details", "infra")]
    return next((text for text in texts if text not in _EMPTY), None)


def _plain(text: object) -> str:
    return " ".join(_COLOUR.sub("", str(text)).split()) if text is not None else ""
