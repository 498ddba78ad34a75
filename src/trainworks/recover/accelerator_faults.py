"""Blame an accelerator for repeated failures of the rank that has it.

One failure blames none: a rank sees a fault of its accelerator as an error of the driver (`gpu_fault`), and a program
that reaches an address that is not its own sees the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainworks.record.events.job import FailureEvent
from trainworks.record.events.log import Event

BLAMED_AFTER = 2
"""Starts of the ranks in a row that a failure of the same accelerator ended, from which on it is at fault."""


def blamed_failure(events: Sequence[Event]) -> FailureEvent | None:
    """The last failure of the rank whose accelerator is at fault, since the job got its present nodes; else None.

    | `gpu_fault` in the last two starts of the ranks | blamed                  |
    |-------------------------------------------------|-------------------------|
    | of one rank alone, the same in both             | the accelerator of both |
    | the same error at the same step in both         | none                    |
    | of several ranks at once, or of different ranks | none                    |
    | in one of them only                             | none                    |

    A program that reaches an address that is not its own does so at the same step of a resumed run, with the same
    error: that is the program's failure, however often it repeats.
    """
    starts: list[list[FailureEvent]] = [[]]
    for event in events:
        if event["kind"] in ("submitted", "resized"):
            starts = [[]]
        elif event["kind"] == "ranks_started":
            starts.append([])
        elif event["kind"] == "failure" and event.get("cause") == "gpu_fault":
            starts[-1].append(event)
    last = starts[-BLAMED_AFTER:]
    ranks = {event["rank"] for start in last for event in start}
    errors = {(event.get("fingerprint"), event.get("step")) for start in last for event in start}
    if len(last) < BLAMED_AFTER or not all(last) or len(ranks) != 1 or len(errors) == 1:
        return None
    return last[-1][-1]


def drained_accelerator(name: str, reason: str, *, names_node: bool = True) -> str:
    """What is said of an accelerator out of service, by its name in a queue.

    >>> drained_accelerator("box1:2", "XID 79")
    'accelerator 2 of box1 is drained (XID 79)'
    """
    node, _, index = name.rpartition(":")
    return f"accelerator {index}{f' of {node}' if names_node else ''} is drained ({reason})"
