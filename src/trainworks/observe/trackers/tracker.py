"""The interface of a tracker, a sink of parameters, metrics, artifacts and the end of one run; and what it has got."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trainworks.config.track import TrackerName
from trainworks.results import Result


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """Metrics of one step, or a sample of the system during it; `t` is in seconds since the epoch."""

    step: int
    t: float
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as trackers name it."""

    name: str
    """Run id, such as `stdlib-lm-1`."""
    experiment: str
    """Name of the run file."""
    key: str
    """Text that is the same for every attempt of this run and differs for every other run."""
    folder: Path
    """Run directory."""
    created_at: float
    """Seconds since the epoch."""


class Tracker(ABC):
    """Sends one run to one tracker.

    A call returns when the tracker has the data, or raises; the caller repeats a call that raised. `state` names the
    tracker's run and is stored after every call, so that a later process continues that run. It is empty for a new run.
    """

    name: ClassVar[str]

    def __init__(self, run: TrackedRun, state: Mapping[str, str | int]) -> None:
        self._run = run
        self.state: dict[str, str | int] = dict(state)

    @property
    @abstractmethod
    def place(self) -> str:
        """Where to look at the run: a folder or an address."""

    @abstractmethod
    def open(self) -> None:
        """Create the tracker's run, or continue the one in `state`."""

    @abstractmethod
    def send_parameters(self, parameters: Mapping[str, str | float], tags: Mapping[str, str]) -> None:
        """Send parameters, each of them once, and tags, which may change."""

    @abstractmethod
    def send_points(self, points: Sequence[MetricPoint], *, repeated: bool) -> None:
        """Send metrics, at least one point, in the order of their steps.

        They are `repeated` after a restart from before: the earlier points of these steps and of later ones are lost
        work.
        """

    def send_artifact(self, path: Path, name: str) -> bool:
        """Send a file; returns False if the tracker has no artifacts."""
        return False

    def register(self, checkpoint: Path, step: int, lineage: Mapping[str, str]) -> bool:
        """Register the model of a checkpoint; returns False without a registry, or if the options do not ask."""
        return False

    @abstractmethod
    def finish(self, state: str, t: float) -> None:
        """Record the final state of the run: SUCCEEDED, FAILED, STOPPED or LOST."""

    def close(self) -> None:  # noqa: B027, a tracker may hold no connection
        """Release connections; the run itself may continue."""


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
