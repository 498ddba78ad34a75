"""The first cause among the failures of a run, which is the one to report."""

from __future__ import annotations

import re
from collections.abc import Sequence

from trainworks.record.events.job import FailureEvent, FailureReason, RestartRefusedEvent
from trainworks.record.events.log import Event, of_kind
from trainworks.record.exit_code import as_exit_code

_CONSEQUENCES = ("peer_lost",)
_CANNOT_START = re.compile(
    r"(^|: )((ImportError|ModuleNotFoundError|SyntaxError|IndentationError|TabError): "
    r"|.*can't open file .*: \[Errno 2\] No such file or directory$)"
)
"""Last words of a Python program that misses a module, or that Python cannot read."""
_LACKS_GPUS = re.compile(
    r"Distributed package doesn't have NCCL built in|Torch not compiled with CUDA enabled"
    r"|ProcessGroupNCCL is only supported with GPUs"
)
"""Last words of PyTorch where a program takes a device or NCCL that its build or the machine does not have."""
_USAGE = re.compile(r": error: \S")
"""Last words of a program that refuses its arguments: `train.py: error: unrecognized arguments: --lrr`."""
_USAGE_ERROR = 2
"""Exit code of argparse and of most programs for wrong arguments."""
_NOT_RUN = (126, 127)
"""Exit codes of a shell that may not run a command, or does not find it."""


def first_failure(events: Sequence[Event], role: str | None = None) -> FailureEvent | None:
    """The earliest failure since the last (re)start of the ranks that is not the consequence of another one.

    A rank that dies takes its peers with it; theirs are `peer_lost`, and count only if there is nothing else. With a
    `role`, failures of that role alone count.
    """
    recent = [failure for failure in _recent_failures(events) if role in (None, failure.get("role"))]
    own = [event for event in recent if not is_consequence(event)]
    return min(own or recent, key=lambda event: event["t"], default=None)


def lost_agents(codes: Sequence[int], exit_code: int) -> FailureEvent:
    """The failure of a job whose node agents recorded none and ended with `codes`; `exit_code` is the first bad one."""
    message = f"the node agents ended with codes {codes}"
    return FailureEvent(kind="failure", rank=None, node=0, cause="agent_lost", exit_code=exit_code, message=message)


def explains_exit(events: Sequence[Event], node: int, exit_code: int) -> bool:
    """True if a node's agent has recorded the failure with whose exit code it ended: 128 + signal if a signal ended the
    failed rank.

    An agent that was killed has not. One whose fork server was killed ends by that signal, to be started again.
    """
    return any(
        failure.get("node") == node
        and failure.get("cause") not in ("agent_lost", "step_lost")
        and as_exit_code(failure.get("exit_code") or 0) == exit_code
        for failure in _recent_failures(events)
    )


def _recent_failures(events: Sequence[Event]) -> list[FailureEvent]:
    """Failures since the last (re)start of the ranks."""
    recent: list[FailureEvent] = []
    for event in events:
        recent = [seen for seen in recent if not _supersedes(event, seen)]
        if event["kind"] == "failure":
            recent.append(event)
    return recent


def is_consequence(failure: FailureReason) -> bool:
    """True if the rank failed only because another one did."""
    return failure.get("cause") in _CONSEQUENCES


def cannot_start(failure: FailureEvent) -> bool:
    """True if a rank ended because its program cannot start as it is written, and another start would end alike.

    Only what is certain counts: a module or a script that is missing, a syntax error, arguments that the program
    refuses, a command that the shell cannot run, NCCL or CUDA without a GPU.
    """
    code, message = failure.get("exit_code"), str(failure.get("message") or "")
    if failure.get("signal") is not None:
        return False
    refuses_arguments = code == _USAGE_ERROR and _USAGE.search(message) is not None
    return code in _NOT_RUN or refuses_arguments or lacks_gpus(failure) or _CANNOT_START.search(message) is not None


def lacks_gpus(failure: FailureEvent) -> bool:
    """True if the program took NCCL or CUDA, and PyTorch found no GPU for it."""
    return _LACKS_GPUS.search(str(failure.get("message") or "")) is not None


def latest_launch_events(events: Sequence[Event]) -> Sequence[Event]:
    """The events since a user submitted or resumed the run; another turn in a cluster's queue is not a new start."""
    starts = [i for i, event in enumerate(events) if event["kind"] == "submitted" and not event.get("restarts")]
    return events[starts[-1] :] if starts else events


def describe_failure(failure: FailureEvent, events: Sequence[Event]) -> str:
    """The message of a failure; of a final one, also why ranks did not start again."""
    message = str(failure.get("message") or "")
    reasons = [
        event["message"]
        for event in of_kind(events, RestartRefusedEvent)
        if event.get("rendezvous") == failure.get("rendezvous")
    ]
    return f"{message}; not restarted: {reasons[0]}" if reasons and not is_consequence(failure) else message


def _supersedes(event: Event, failure: FailureEvent) -> bool:
    """True if the event shows that ranks restarted after a failure."""
    match event["kind"]:
        case "submitted":
            return True
        case "attempt":  # a rank of another node may have failed before the first node could write this
            same = any(event.get(key) and event.get(key) == failure.get(key) for key in ("attempt", "rendezvous"))
            return not same and event.get("role") == failure.get("role")
        case "agent_started":
            return failure.get("rank") is None and failure.get("node") == event.get("node")
        case "failure":
            return len({event.get("rendezvous"), failure.get("rendezvous")} - {None}) > 1
        case _:
            return False
