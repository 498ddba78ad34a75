"""Which failure came first: the one that a person wants to hear about."""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.record.events import Event

__all__ = ["first_failure"]

_CONSEQUENCES = ("peer_lost",)


def first_failure(events: Sequence[Event]) -> Event | None:
    """The earliest failure since the last (re)start of the ranks that is not the consequence of another one.

    A rank that dies takes its peers with it; theirs are `peer_lost`, and count only if there is nothing else.
    """
    recent: list[Event] = []
    for event in events:
        if event["kind"] in ("attempt", "submitted"):
            # a rank of another node may have failed before the first node could say that this attempt began
            recent = [seen for seen in recent if event.get("attempt") and seen.get("attempt") == event["attempt"]]
        elif event["kind"] == "failure":
            recent.append(event)
    own = [event for event in recent if event.get("cause") not in _CONSEQUENCES]
    return min(own or recent, key=lambda event: event["t"], default=None)
