"""What trackers have got of a run."""

from __future__ import annotations

from dataclasses import dataclass

from trainworks.config.track import TrackerName
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class TrackerContent:
    """Content of one tracker."""

    tracker: TrackerName
    place: str
    """Where to look at the run."""
    num_points: int
    """Steps that it has."""
    new_points: int
    """Steps that were sent now."""
    last_step: int
    artifacts: tuple[str, ...]
    registered_step: int | None
    """Step of the checkpoint that was registered as a model."""
    ended: str | None
    """Final state of the run; None while it runs."""


@dataclass(frozen=True, slots=True)
class TrackReport(Result):
    """Content of the trackers of a run."""

    run: str
    trackers: tuple[TrackerContent, ...]
