"""A run of MLflow, through its own client: any tracking server or store that `MLFLOW_TRACKING_URI` can name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TypeVar, final

from trainworks.config.track import MLflow
from trainworks.errors import EnvironmentProblem
from trainworks.observe.trackers.tracker import MetricPoint, TrackedRun, Tracker

_MOST_METRICS = 1000
_MOST_PARAMETERS = 100
"""Limits of one request of `runs/log-batch` (MLflow REST API 2.0)."""
_LONGEST_PARAMETER = 6000
_KEY_TAG = "trainworks.key"
_USER = re.compile(r"(?<=://)[^/@]*@")
"""User and password in a URL."""
_ENDS = {"SUCCEEDED": "FINISHED", "STOPPED": "KILLED"}
"""MLflow's status of a final state; any other is FAILED."""

T = TypeVar("T")


@final
class MLflowTracker(Tracker):
    """One run in an experiment.

    MLflow keeps a metric once per key, time, step and value, so a batch that is repeated after a lost answer changes
    nothing. The run is found again by a tag when the answer to its creation was lost. `state` has `run_id` and
    `experiment_id` of an earlier process.
    """

    name: ClassVar[str] = "mlflow"

    def __init__(self, run: TrackedRun, state: Mapping[str, str | int], options: MLflow) -> None:
        super().__init__(run, state)
        self._options = options
        # The sender tries a server again that is down, and stores what was sent; MLflow itself tries for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._uri = options.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        if not self._uri:
            raise EnvironmentProblem(
                "cannot send the run to MLflow: no tracking server is named",
                hint="set `track: {mlflow: {uri: http://HOST:5000}}`, or export MLFLOW_TRACKING_URI",
            )
        self._entities = import_module("mlflow.entities")
        self._client: Any = import_module("mlflow.tracking").MlflowClient(tracking_uri=self._uri)

    @property
    def place(self) -> str:
        """Address of the run's page, without the user and password that the environment may have in it."""
        return f"{strip_user(self._uri)}/#/experiments/{self.state.get('experiment_id')}/runs/{self._id}"

    @property
    def _id(self) -> str:
        return str(self.state.get("run_id", ""))

    def open(self) -> None:
        """Create the run, or set the earlier one to RUNNING."""
        if not self._id:
            name = self._options.experiment or self._run.experiment
            known = self._client.get_experiment_by_name(name)
            experiment = str(known.experiment_id if known else self._client.create_experiment(name))
            found = self._client.search_runs([experiment], f"tags.`{_KEY_TAG}` = '{self._run.key}'", max_results=1)
            run = found[0] if found else self._create(experiment)
            self.state = {"run_id": run.info.run_id, "experiment_id": experiment}
        self._client.update_run(self._id, status="RUNNING")

    def _create(self, experiment: str) -> Any:
        return self._client.create_run(
            experiment,
            start_time=_milliseconds(self._run.created_at),
            tags={_KEY_TAG: self._run.key},
            run_name=self._run.name,
        )

    def send_parameters(self, parameters: Mapping[str, str | float], tags: Mapping[str, str]) -> None:
        """Send parameters and tags; MLflow refuses to change a parameter that it has."""
        values = (
            self._entities.Param(name, str(value)[:_LONGEST_PARAMETER]) for name, value in sorted(parameters.items())
        )
        for batch in _batches(values, _MOST_PARAMETERS):
            self._client.log_batch(self._id, params=batch)
        marks = [self._entities.RunTag(name, value) for name, value in tags.items()]
        if "trainworks.commit" in tags:
            marks.append(self._entities.RunTag("mlflow.source.git.commit", tags["trainworks.commit"]))
        self._client.log_batch(self._id, tags=marks)

    def send_points(self, points: Sequence[MetricPoint], *, repeated: bool) -> None:
        """Send metrics; a repeated step stays in the history beside its first values, under its later time."""
        metrics = (
            self._entities.Metric(name, value, _milliseconds(point.t), point.step)
            for point in points
            for name, value in point.values.items()
        )
        for batch in _batches(metrics, _MOST_METRICS):
            self._client.log_batch(self._id, metrics=batch)

    def send_artifact(self, path: Path, name: str) -> bool:
        """Upload a file under its own name, in the folder of `name`."""
        self._client.log_artifact(self._id, str(path), str(Path(name).parent) if "/" in name else None)
        return True

    def register(self, checkpoint: Path, step: int, lineage: Mapping[str, str]) -> bool:
        """Upload a checkpoint, and add it as a version of the registered model of `register_as`."""
        model = self._options.register_as
        if model is None:
            return False
        folder = f"checkpoint-{step:08d}"
        if not self._client.search_registered_models(f"name = '{_quoted(model)}'"):
            self._client.create_registered_model(model)
        versions = self._client.search_model_versions(f"name = '{_quoted(model)}' and run_id = '{self._id}'")
        if any(version.tags.get("trainworks.step") == str(step) for version in versions):
            return True
        self._client.log_artifacts(self._id, str(checkpoint), folder)
        self._client.create_model_version(
            model,
            f"{self._client.get_run(self._id).info.artifact_uri}/{folder}",
            self._id,
            tags={"trainworks.step": str(step), **lineage},
            description=f"Checkpoint of step {step:,} of {self._run.name}",
        )
        return True

    def finish(self, state: str, t: float) -> None:
        """Set the status and the time of the end."""
        self._client.set_terminated(self._id, _ENDS.get(state, "FAILED"), _milliseconds(t))


def strip_user(uri: str) -> str:
    """A URI without user and password."""
    return _USER.sub("", uri)


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


def _milliseconds(t: float) -> int:
    return round(1000 * t)


def _quoted(text: str) -> str:
    return text.replace("'", "\\'")
