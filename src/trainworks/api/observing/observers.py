"""The processes that report a run: one per tracker, and one for the messages."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.host import process
from trainworks.observe.following import TRACKER_LIBRARIES, check_library
from trainworks.record.run_dir import RunDir

_NOTIFY = "trainworks.api.observing.notify"
_TRACK = "trainworks.api.observing.track"
_COPIER = "trainworks.observe.copies.copier"
_RECORDER = "trainworks.observe.copies.recorder"


def observers_of(run_file: RunFile) -> tuple[tuple[str, str], ...]:
    """Module and name of every process that the supervisor starts to report a run."""
    messages = ((_NOTIFY, "notify"),) if run_file.notify else ()
    copiers = ((_COPIER, str(number)) for number in range(len(run_file.checkpoint.copies)))
    is_rented = run_file.cluster.engine == "skypilot" and run_file.workload is not None
    recorder = ((_RECORDER, "record"),) if is_rented else ()
    return (*((_TRACK, name) for name in run_file.track.names), *messages, *copiers, *recorder)


def check_observers(run_file: RunFile) -> None:
    """Refuse a run on this machine that could not be reported.

    The libraries and variables of another machine are not known here.

    Raises:
        MissingExtraError: a library is not installed.
        UsageError: an environment variable that `notify` names is not set.
    """
    if run_file.cluster.engine != "local":
        return
    for name in run_file.track.names:
        check_library(TRACKER_LIBRARIES.get(name), name)
    if any(copy.is_s3 for copy in run_file.checkpoint.copies):
        check_library("botocore", "s3")
    if run_file.notify is None:
        return
    check_library("apprise", "notify")
    missing = [name for name in run_file.notify.variables if not os.environ.get(name)]
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        raise UsageError(f"`notify` names {names}, which is not set", hint=f"export {missing[0]}=...")


def watch_queue(run_dir: RunDir, run_file: RunFile) -> None:
    """Start the process that sends a message if a submitted run waits too long; it leaves when the run starts."""
    if run_file.notify is not None and "waiting" in run_file.notify.when:
        command = process.python_module(_NOTIFY, str(run_dir.path.resolve()), "waiting")
        process.detach(command, log=run_dir.observer_log("waiting"), folder=Path("/"))
