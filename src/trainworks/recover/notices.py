"""Answer to a notice that a node will end: an emergency checkpoint if it fits into the time left, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainworks.record.events import Event
from trainworks.units import format_duration

_SAFETY = 1.25
"""A save may take this many times the longest of the last ones: other jobs are saving, too."""
_RECENT = 3
_REACT_S = 1.0
"""Time until a rank knows that it has to stop, beside a logging interval."""


@dataclass(frozen=True, slots=True)
class NoticeAnswer:
    """What the job does about a notice."""

    saves: bool
    left_s: float
    """Time until the node ends."""
    needed_s: float | None
    """Time that a save needs; None before the first one was measured."""
    words: str


def answer_notice(
    notice: Event, events: Sequence[Event], *, now: float, logging_interval_s: float, grace_s: float
) -> NoticeAnswer:
    """Decide whether to save.

    A save needs a logging interval, in which the ranks agree on a step, and 1.25 times the longest of the last three
    saves, from the first stall to the manifest. Before the first save, it is tried.

    Args:
        notice: a `notice` event that ends the node.
        events: of the run so far.
        now: seconds since the epoch.
        logging_interval_s: predicted.
        grace_s: time for a clean end of the job, the limit where the notice has no deadline.
    """
    deadline_at = notice.get("deadline_at")
    left_s = grace_s if deadline_at is None else max(0.0, min(deadline_at - now, grace_s))
    saved = [event for event in events if event["kind"] == "checkpoint"][-_RECENT:]
    head = f"{notice['cloud'].upper() if notice['cloud'] == 'aws' else notice['cloud']}: {notice['what']} of node "
    head += f"{notice['node']} in {format_duration(left_s)}"
    if not saved:
        return NoticeAnswer(True, left_s, None, f"{head}; saving, though no save was measured yet")
    needed_s = _REACT_S + logging_interval_s + _SAFETY * max(event["stall_s"] + event["write_s"] for event in saved)
    fits = needed_s <= left_s
    if fits:
        words = f"{head}; saving, which needs up to {format_duration(needed_s)}"
    else:
        words = (
            f"{head}; no emergency checkpoint, which needs up to {format_duration(needed_s)}: "
            f"it continues from step {saved[-1]['step']:,}"
        )
    return NoticeAnswer(fits, left_s, needed_s, words)
