"""`track`: experiment trackers that receive a run; `metrics`: what a command's own program says of its training."""

from __future__ import annotations

import re
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


def _check_pattern(pattern: str) -> str:
    try:
        names = re.compile(pattern).groupindex.keys()
    except re.error as error:
        raise FieldError(f"`metrics.pattern` is not a regular expression: {error}") from None
    if not names & {"loss", "eval_loss", "eval_accuracy"} or names - set(PATTERN_GROUPS):
        hint = r"write it like `iter (?P<step>\d+) loss (?P<loss>[\d.]+)`; groups: " + ", ".join(PATTERN_GROUPS)
        raise FieldError(
            "`metrics.pattern` needs a group `loss`, `eval_loss` or `eval_accuracy`, and knows six names", hint=hint
        )
    return pattern


MetricName = Literal["step", "loss", "lr", "grad_norm", "eval_loss", "eval_accuracy"]
PATTERN_GROUPS: tuple[MetricName, ...] = get_args(MetricName)


class ScriptMetrics(Spec):
    """Metrics of a command: where its record has them from, how long it trains, and when it is good enough."""

    source: Literal["auto", "output", "tensorboard", "wandb", "mlflow", "none"] = "auto"
    """What is read: the output of the first and the last rank, or the files of a tracker that the program writes; with
    `auto` the first of them that names a loss. `trainworks.log` and a session always count."""
    pattern: Annotated[str, AfterValidator(_check_pattern)] | None = None
    """Regular expression of an output line, in place of the known forms, with groups: `(?P<step>...)`, `loss`, `lr`,
    `grad_norm`, `eval_loss`, `eval_accuracy`."""
    names: dict[MetricName, Annotated[str, Field(min_length=1, max_length=250)]] = Field(default_factory=dict)
    """Tags of a tracker, or keys of JSON and names in the output, by the metric that each is: `loss: objective/kl`. All
    others are read by their usual names."""
    steps: Annotated[int, Field(ge=1)] | None = None
    """Steps of the whole training; by default as the output counts them, `10/500`."""
    samples_per_step: Annotated[int, Field(ge=1)] | None = None
    """Sequences that the program trains on in what it counts as a step, if they are not `trains.global_batch`: 1 for a
    count of samples, all of the data for one of epochs."""
    objective: Literal["loss", "held-out loss", "held-out accuracy"] = "loss"
    """What a sweep compares its trials by."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """End the run, as succeeded, after so many evaluations in a row without an improvement; never by default."""
    min_delta: Annotated[float, Field(ge=0)] = 0.0
    """Smallest change that is an improvement."""

    @property
    def metric(self) -> Literal["loss", "accuracy"]:
        """Held-out metric that decides which evaluation is better."""
        return "accuracy" if self.objective == "held-out accuracy" else "loss"
