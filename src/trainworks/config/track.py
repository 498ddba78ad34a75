"""`track`: experiment trackers that receive the parameters, metrics and artifacts of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_serializer

from trainworks.config.spec import FieldError, Spec
from trainworks.errors import suggest

TrackerName = Literal["tensorboard", "mlflow", "wandb"]
TRACKERS: tuple[TrackerName, ...] = get_args(TrackerName)
"""Names of all trackers."""

Label = Annotated[str, Field(min_length=1, max_length=250)]
"""Name of an experiment, a project or a model in a tracker."""


def _strip_password(uri: str) -> str:
    if urlsplit(uri).password is not None:
        raise FieldError(
            "`track.mlflow.uri` has a password",
            hint="remove it, and export MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        )
    return uri


class TensorBoard(Spec):
    """Event files for TensorBoard, written without TensorFlow or torch."""

    folder: str | None = None
    """Parent of the folder of the event files, which has the name of the run; by default `tensorboard` in the run
    directory."""


class MLflow(Spec):
    """A run of MLflow."""

    uri: Annotated[str, AfterValidator(_strip_password)] | None = None
    """Tracking server: `http://host:5000`, or `sqlite:///mlflow.db`; by default $MLFLOW_TRACKING_URI."""
    experiment: Label | None = None
    """Experiment that gets the run; by default the name of the run file."""
    register_as: Label | None = None
    """Name of a registered model. A run that succeeds adds its newest checkpoint as a version, with its lineage."""


class WeightsAndBiases(Spec):
    """A run of Weights & Biases."""

    project: Label | None = None
    """Project that gets the run; by default the name of the run file."""
    entity: Label | None = None
    """Team or user; by default that of the API key."""
    mode: Literal["online", "offline"] | None = None
    """`offline` writes files for `wandb sync`; by default $WANDB_MODE, else `online`."""


class Track(Spec):
    """Trackers of a run. A list of names is short for trackers without options: `track: [tensorboard, mlflow]`."""

    tensorboard: TensorBoard | None = None
    mlflow: MLflow | None = None
    wandb: WeightsAndBiases | None = None

    @property
    def names(self) -> tuple[TrackerName, ...]:
        """Trackers that get the run."""
        return tuple(name for name in TRACKERS if getattr(self, name) is not None)

    @model_serializer
    def _only_chosen(self) -> dict[str, Any]:
        """The chosen trackers alone: a name without options, `mlflow:`, is a tracker, too."""
        return {name: getattr(self, name).model_dump(mode="json") for name in self.names}


def trackers_from_list(value: Any) -> Any:
    """Read `mlflow`, `[tensorboard, mlflow]` and `[{mlflow: {...}}]` as mappings of names to options."""
    if isinstance(value, Track):
        return value
    if value is None or isinstance(value, dict):
        options = value or {}
    else:
        items = value if isinstance(value, list | tuple) else [value]
        options = {}
        for item in items:
            options |= item if isinstance(item, dict) else {str(item): {}}
    for name in options:
        if name not in TRACKERS:
            known = f"known trackers: {', '.join(TRACKERS)}"
            raise FieldError(f"unknown tracker `{str(name)[:100]}`", hint=suggest(str(name), TRACKERS, otherwise=known))
    return {name: {} if each is None else each for name, each in options.items()}
