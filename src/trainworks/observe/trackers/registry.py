"""The tracker of a name, with the options of the run file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from zlib import crc32

from trainworks.config.track import MLflow, TensorBoard, Track, TrackerName, WeightsAndBiases
from trainworks.observe.following import TRACKER_LIBRARIES, check_library
from trainworks.observe.trackers.feed import OpenTracker
from trainworks.observe.trackers.mlflow import MLflowTracker, strip_user
from trainworks.observe.trackers.tensorboard import TensorBoardTracker
from trainworks.observe.trackers.tracker import TrackedRun, Tracker
from trainworks.observe.trackers.wandb import WandBTracker


def tracker_opener(name: TrackerName, options: Track, working_folder: Path) -> OpenTracker:
    """A function that makes the tracker of a run.

    Args:
        name: of the tracker.
        options: of all trackers; those of a tracker that is not named there are the defaults.
        working_folder: folder that relative paths of the options start from.
    """

    def opened(run: TrackedRun, state: Mapping[str, str | int]) -> Tracker:
        check_library(TRACKER_LIBRARIES.get(name), name)
        if name == "tensorboard":
            return TensorBoardTracker(run, state, options.tensorboard or TensorBoard(), working_folder)
        if name == "mlflow":
            return MLflowTracker(run, state, options.mlflow or MLflow())
        return WandBTracker(run, state, options.wandb or WeightsAndBiases())

    return opened


def sent_name(name: TrackerName, options: Track) -> str:
    """Name under which a run keeps what one server or folder has got: that of the tracker, and a CRC-32 of the address.

    The place that is used without options has the name of the tracker alone.

    >>> sent_name("mlflow", Track.model_validate({"mlflow": {"uri": "http://ml:5000"}}))
    'mlflow-ab1490b4'
    """
    address = {
        "tensorboard": options.tensorboard.folder if options.tensorboard else None,
        "mlflow": (options.mlflow.uri if options.mlflow else None) or os.environ.get("MLFLOW_TRACKING_URI"),
        "wandb": os.environ.get("WANDB_BASE_URL"),
    }[name]
    return f"{name}-{crc32(strip_user(address).encode()):08x}" if address else name
