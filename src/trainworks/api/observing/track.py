"""Send a run to experiment trackers: all at once, or beside the run.

The resolved run names this module, and the supervisor of the run starts `python -m trainworks.api.observing.track
RUN_DIR TRACKER` once per tracker.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

from trainworks.api.run_handle import find_run
from trainworks.config.track import TRACKERS, MLflow, TensorBoard, Track, TrackerName, WeightsAndBiases
from trainworks.errors import ArgumentError, EnvironmentProblem, TrainworksError, UsageError, suggest
from trainworks.files import closing_handle
from trainworks.host.clock import SystemClock
from trainworks.jobs.state import JobState
from trainworks.observe.following import TRACKER_LIBRARIES, check_library, describe, report_beside, try_turn
from trainworks.observe.trackers.feed import Feed, OpenTracker, Sent
from trainworks.observe.trackers.mlflow import MLflowTracker, strip_user
from trainworks.observe.trackers.tensorboard import TensorBoardTracker
from trainworks.observe.trackers.tracker import TrackedRun, Tracker, TrackerContent, TrackReport
from trainworks.observe.trackers.wandb import WandBTracker
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.run_progress import state_of


def track(
    name: str | None = None,
    to: Sequence[str] = (),
    *,
    uri: str | None = None,
    experiment: str | None = None,
    register_as: str | None = None,
    folder: Path | str = "runs",
) -> TrackReport:
    """Send a run to trackers, from where the last process stopped: of the past, or what there is of a live one.

    Args:
        name: id or path of the run; the newest run of the folder when None.
        to: `tensorboard`, `mlflow` or `wandb`; those of the run file when empty.
        uri: tracking server of MLflow, instead of the run file's.
        experiment: experiment of MLflow and project of W&B, instead of the run file's.
        register_as: registered model of MLflow that gets the newest checkpoint of a run that succeeded.
        folder: folder of all runs.

    Raises:
        ArgumentError: unknown tracker, or none is named.
        UsageError: another process sends the run to this tracker.
        EnvironmentProblem: a tracker or its library is missing; what was sent stays, and the next call continues.
    """
    run_dir = find_run(name, folder).run_dir
    written = run_dir.read_resolved().run_file.track
    names = tuple(_checked(each) for each in to) or written.names
    if not names:
        known = ", ".join(TRACKERS)
        raise ArgumentError(f"run {run_dir.run_id} names no tracker", argument="to", hint=f"name one of {known}")
    options = _with_options(written, names, uri=uri, experiment=experiment, register_as=register_as)
    return TrackReport(run_dir.run_id, tuple(_send(run_dir, each, options) for each in names))


def _checked(name: str) -> TrackerName:
    if name not in TRACKERS:
        hint = suggest(name, TRACKERS, otherwise=f"known trackers: {', '.join(TRACKERS)}")
        raise ArgumentError(f"unknown tracker `{name}`", argument="to", hint=hint)
    return name


def _with_options(written: Track, names: Sequence[TrackerName], **given: str | None) -> Track:
    """The options of the run file with those given; an option that no named tracker has is refused."""
    keys = {
        "tensorboard": {},
        "mlflow": {"uri": "uri", "experiment": "experiment", "register_as": "register_as"},
        "wandb": {"experiment": "project"},
    }
    options: dict[str, Any] = written.model_dump(mode="json")
    for name in names:
        changes = {key: given[argument] for argument, key in keys[name].items() if given[argument] is not None}
        options[name] = options.get(name, {}) | changes
    for argument, value in given.items():
        if value is not None and not any(argument in keys[name] for name in names):
            hint = f"leave `--{argument.replace('_', '-')}` out, or add `--to mlflow`"
            raise ArgumentError(f"{' and '.join(names)} does not use it", argument=argument, hint=hint)
    return Track.model_validate(options)


def _send(run_dir: RunDir, name: TrackerName, options: Track) -> TrackerContent:
    lock = try_turn(run_dir, name)
    if lock is None:
        hint = f"wait for the end of the run, or read {run_dir.observer_log(name)}"
        raise UsageError(f"another process sends run {run_dir.run_id} to {name}", hint=hint)
    with closing_handle(lock):
        feed = _feed(run_dir, name, options, partial(state_of, run_dir))
        before = feed.sent.num_points
        if name == "mlflow" and options.mlflow and options.mlflow.register_as and feed.sent.registered_step is None:
            feed.sent = feed.sent.model_copy(update={"ended": None})  # its end was sent without the model
        _send_once(feed, run_dir.run_id, name)
        return _content(feed.sent, name, before)


def _send_once(feed: Feed, run_id: str, name: TrackerName) -> None:
    """Send everything; the errors of the tracker's library become one of ours."""
    try:
        feed.send()
        feed.close()
    except TrainworksError:
        raise
    except Exception as error:  # libraries of trackers raise anything
        problem = describe(error)
        feed.note(problem)
        hint = "run the command again later: it continues where it stopped"
        raise EnvironmentProblem(f"cannot send run {run_id} to {name}: {problem}", hint=hint) from None


def _content(sent: Sent, name: TrackerName, before: int) -> TrackerContent:
    return TrackerContent(
        tracker=name,
        place=sent.place,
        num_points=sent.num_points,
        new_points=sent.num_points - before,
        last_step=sent.last_step,
        artifacts=tuple(sent.artifacts),
        registered_step=sent.registered_step,
        ended=sent.ended,
    )


def _feed(run_dir: RunDir, name: TrackerName, options: Track, state: Callable[[], JobState]) -> Feed:
    working_folder = Path(run_dir.read_resolved().working_folder)
    return Feed(run_dir, sent_name(name, options), tracker_opener(name, options, working_folder), state)


def main(run_folder: str, name: str) -> int:
    """Send a run to one tracker while it runs; returns the exit code, 1 if something is left to send."""
    run_dir = RunDir(Path(run_folder))

    def start(state: Callable[[], JobState]) -> Feed:
        return _feed(run_dir, _checked(name), run_dir.read_resolved().run_file.track, state)

    return report_beside(run_dir, name, partial(state_of, run_dir), SystemClock(), start)


def tracker_opener(name: TrackerName, options: Track, working_folder: Path) -> OpenTracker:
    """A function that makes the tracker of a run, whose options name paths relative to the working folder.

    Options of a tracker that is not among them are the defaults.
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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
