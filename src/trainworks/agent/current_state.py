"""The state of a run where the supervisor that would write the next one may be gone."""

from __future__ import annotations

import socket
import time

from trainworks.host import process
from trainworks.jobs.state import JobState, parse_state
from trainworks.record.status import RunStatus

_START_TAKES_S = 60.0


def current_status(status: RunStatus) -> RunStatus:
    """The status as written, or the one that a supervisor which is gone could not write; see `current_state`."""
    return status.without_supervisor() if current_state(status) is not parse_state(status.state) else status


def current_state(status: RunStatus) -> JobState:
    """The state as written; LOST if it is not final and the supervisor that would change it is gone, or never came.

    A supervisor on another machine is its engine's to miss.
    """
    state = parse_state(status.state)
    if state.is_final or state.waits:  # a job in a queue has no supervisor, however long it waits
        return state
    if status.supervisor_host not in (None, socket.gethostname()):
        return state
    if status.supervisor_pid is None or status.supervisor_started_at is None:
        never_came = 0 < status.updated_at < time.time() - _START_TAKES_S
        return JobState.LOST if never_came else state
    return state if process.is_running(status.supervisor_pid, status.supervisor_started_at) else JobState.LOST
