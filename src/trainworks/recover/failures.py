"""The first cause among the failures of a run, which is the one to report."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.record.events import Event

_CONSEQUENCES = ("peer_lost",)


def first_failure(events: Sequence[Event]) -> Event | None:
    """The earliest failure since the last (re)start of the ranks that is not the consequence of another one.

    A rank that dies takes its peers with it; theirs are `peer_lost`, and count only if there is nothing else.
    """
    recent: list[Event] = []
    for event in events:
        recent = [seen for seen in recent if not _supersedes(event, seen)]
        if event["kind"] == "failure":
            recent.append(event)
    own = [event for event in recent if not is_consequence(event)]
    return min(own or recent, key=lambda event: event["t"], default=None)


def is_consequence(failure: Event) -> bool:
    """True if the rank failed only because another one did."""
    return failure.get("cause") in _CONSEQUENCES


def since_user_start(events: Sequence[Event]) -> Sequence[Event]:
    """The events since a user submitted or resumed the run; another turn in a cluster's queue is not a new start."""
    starts = [i for i, event in enumerate(events) if event["kind"] == "submitted" and not event.get("restarts")]
    return events[starts[-1] :] if starts else events


def describe_failure(failure: Event, events: Sequence[Event]) -> str:
    """The message of a failure; of a final one, also why ranks did not start again."""
    message = str(failure.get("message") or "")
    reasons = [
        event["message"]
        for event in events
        if event["kind"] == "restart_refused" and event.get("rendezvous") == failure.get("rendezvous")
    ]
    return f"{message}; not restarted: {reasons[0]}" if reasons and not is_consequence(failure) else message


def _supersedes(event: Event, failure: Event) -> bool:
    """True if the event shows that ranks restarted after a failure."""
    match event["kind"]:
        case "submitted":
            return True
        case "attempt":  # a rank of another node may have failed before the first node could write this
            return not any(event.get(key) and event[key] == failure.get(key) for key in ("attempt", "rendezvous"))
        case "agent_started":
            return failure.get("rank") is None and failure.get("node") == event.get("node")
        case "failure":
            return len({event.get("rendezvous"), failure.get("rendezvous")} - {None}) > 1
        case _:
            return False
