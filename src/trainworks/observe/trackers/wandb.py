"""A run of Weights & Biases, online or as files for `wandb sync`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, final

from trainworks.config.track import WeightsAndBiases
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun, Tracker


@final
class WandBTracker(Tracker):
    """One run in a project.

    All processes of a run use one id, so a resumed run continues its curves, online and after `wandb sync`. The client
    keeps what it sends on disk first; points that a killed process sent but did not store come twice, at their step.
    `state` has the `folder` of an earlier process.
    """

    name: ClassVar[str] = "wandb"

    def __init__(self, run: TrackedRun, state: Mapping[str, str | int], options: WeightsAndBiases) -> None:
        super().__init__(run, state)
        self._options = options
        self._wandb: Any = import_module("wandb")
        self._session: Any = None

    @property
    def place(self) -> str:
        """Address of the run's page, or the folder for `wandb sync`."""
        return str(self.state.get("url") or self.state.get("folder", ""))

    def open(self) -> None:
        """Begin a session of the run."""
        folder = self._run.folder / "observe"
        folder.mkdir(exist_ok=True)
        self._session = self._wandb.init(
            project=self._options.project or self._run.experiment,
            entity=self._options.entity,
            id=self._run.key,
            name=self._run.name,
            dir=str(folder),
            mode=self._options.mode,
            resume="allow",
            settings=self._wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
        )
        self._session.define_metric("*", step_metric="step")
        self.state = {"folder": str(Path(self._session.dir).parent), "url": self._session.url or ""}

    def send_parameters(self, parameters: Mapping[str, str | float], tags: Mapping[str, str]) -> None:
        """Update the configuration of the run, tags included."""
        self._session.config.update({**parameters, **tags}, allow_val_change=True)

    def send_points(self, points: Sequence[MetricPoint], *, repeated: bool) -> None:
        """Add rows to the history; `step` is a column of them, because W&B's own step cannot go back."""
        for point in points:
            self._session.log({**point.values, "step": point.step, "time": point.t})

    def send_artifact(self, path: Path, name: str) -> bool:
        """Add a version of the artifact of the run that has this file."""
        artifact = self._wandb.Artifact(f"{self._run.name}-{Path(name).stem}", type="record")
        artifact.add_file(str(path), name=name)
        self._session.log_artifact(artifact)
        return True

    def finish(self, state: str, t: float) -> None:
        """Record the final state, and how the run ended."""
        self._session.summary["state"] = state
        self._end(0 if state in ("SUCCEEDED", "STOPPED") else 1)

    def close(self) -> None:
        """End the session; the run itself may continue."""
        self._end(0)

    def _end(self, exit_code: int) -> None:
        if self._session is not None:
            self._session.finish(exit_code=exit_code)
            self._session = None
