"""events.jsonl: the events of a run in order, from all its processes. Append-only; readable while it is written."""

import json
import logging
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast, get_args

from trainworks.files import append_text
from trainworks.record.events import job, training

_LOG = logging.getLogger(__name__)
_LOGGED_CHARACTERS = 500
"""Characters of an event in the log."""

Event: TypeAlias = (
    job.ChangedEvent
    | job.SubmittedEvent
    | job.NodeCheckEvent
    | job.AcceleratorDrainedEvent
    | job.NodesUnhealthyEvent
    | job.StateEvent
    | job.AgentStartedEvent
    | job.EnvironmentEvent
    | job.AgentLostEvent
    | job.RestartEvent
    | job.DecisionEvent
    | job.ResizedEvent
    | job.StragglerEvent
    | training.RanksStartedEvent
    | training.DataProgressEvent
    | training.DataReadyEvent
    | training.CompiledEvent
    | training.AttemptEvent
    | training.MetricsSourceEvent
    | job.FailureEvent
    | job.RestartRefusedEvent
    | training.CheckpointEvent
    | training.CheckpointDamagedEvent
    | training.CheckpointIntervalEvent
    | training.CheckpointFailedEvent
    | training.CallbackStopEvent
    | training.MemoryCheckpointsEndedEvent
    | training.CheckpointRestoredEvent
    | training.CheckpointCopiedEvent
    | training.CheckpointCopyFailedEvent
    | training.SkippedEvent
    | training.RollbackEvent
    | training.ProfileEvent
    | training.ProfileRefusedEvent
    | job.NoticeEvent
    | job.NoticeAnsweredEvent
    | job.IdleEvent
    | job.BusyEvent
    | job.StopRequestedEvent
    | job.StoppedEvent
    | training.SampleEvent
    | training.FinishedEvent
)
"""One line of the file; its `kind` tells which.

`append_event` writes these kinds with these fields. A record of a newer or an older version may hold other kinds, other
fields, or fewer of them: readers let kinds pass that they do not name, and `get` what an old record may lack.
"""


E = TypeVar("E", bound=Event)


def append_event(path: Path, event: Event) -> None:
    """Append one event, stamped with the time and the writer's process id."""
    stamped = {"t": time.time(), "kind": event["kind"], "writer": os.getpid(), **event}
    append_text(path, json.dumps(stamped) + "\n")
    if _LOG.isEnabledFor(logging.INFO):
        _LOG.info("event of %s: %s", path.parent.name, json.dumps(event)[:_LOGGED_CHARACTERS])


def of_kind(events: Iterable[Event], kind: type[E]) -> list[E]:
    """The events of one kind, in their order: `of_kind(events, FailureEvent)`."""
    (name,) = get_args(kind.__annotations__["kind"])
    return [cast(E, event) for event in events if event["kind"] == name]


def read_events(path: Path) -> list[Event]:
    """All complete events in the order of writing; torn lines are skipped."""
    events, _ = read_events_from(path, 0)
    return events


def read_events_from(path: Path, offset: int) -> tuple[list[Event], int]:
    """The events after byte `offset`, and the offset for the next call: `read_lines_from`, for the lines of a kind."""
    rows, after = read_lines_from(path, offset)
    return cast(list[Event], [row for row in rows if "kind" in row]), after


def read_lines_from(path: Path, offset: int, *, most_bytes: int = -1) -> tuple[list[dict[str, Any]], int]:
    """The JSON objects after byte `offset`, and the offset for the next call.

    A line without its newline is left for the next call; a line that is not JSON (its writer was killed) is skipped. A
    missing file counts as empty. `most_bytes` limits a call, and is longer than any line; -1 reads to the end.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(most_bytes)
    except FileNotFoundError:
        return [], offset
    complete = data[: data.rfind(b"\n") + 1]
    return [row for line in complete.splitlines() if (row := _json_object(line))], offset + len(complete)


def _json_object(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
