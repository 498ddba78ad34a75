"""SkyPilot's words for a managed job as ours. An unknown word stays itself.

Source: `ManagedJobStatus` of SkyPilot 0.14 (sky/jobs/state.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trainworks.backends.backend import JobStatus
from trainworks.jobs.state import Cause, JobState

__all__ = ["JOB_STATES", "job_status"]

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
    "RECOVERING": Cause.NODE_LOST,  # or taken away: SkyPilot does not tell one from the other
    "FAILED": Cause.USER_ERROR,
    "FAILED_SETUP": Cause.USER_ERROR,
    "FAILED_PRECHECKS": Cause.ENVIRONMENT,  # no access, or nothing that any cloud offers
    "FAILED_NO_RESOURCE": Cause.NO_CAPACITY,
    "FAILED_CONTROLLER": Cause.AGENT_LOST,
}
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_NOTHING = ("", "-")


def job_status(record: Mapping[str, Any]) -> JobStatus:
    """A job as it is now.

    Args:
        record: one element of `sky jobs queue --output json`.
    """
    word = str(record.get("status"))
    state = JOB_STATES.get(word, JobState.UNKNOWN)
    return JobStatus(
        state=state,
        raw=word,
        reason=_reason(record),
        cause=_CAUSES.get(word),
        restarts=int(record.get("recovery_count") or 0),
        exit_code=0 if state is JobState.SUCCEEDED else None,
        starts_at=None if state.waits else _time(record.get("start_at")),
        ended_at=_time(record.get("end_at")) if state.is_final else None,
    )


def _time(seconds: object) -> float | None:
    return float(seconds) if isinstance(seconds, int | float) and seconds > 0 else None


def _reason(record: Mapping[str, Any]) -> str | None:
    """Why it waits or failed; of one that has nodes, where they are."""
    words = [_plain(record.get(key)) for key in ("failure_reason", "details", "infra")]
    return next((text for text in words if text not in _NOTHING), None)


def _plain(text: object) -> str:
    return " ".join(_COLOUR.sub("", str(text)).split()) if text is not None else ""
