"""The supervisor of a run starts its observers, and neither waits for them nor ends them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import trainworks
from tests.observe_trackers.test_notify import Webhook, webhook  # noqa: F401, a fixture
from trainworks.errors import ArgumentError, MissingExtraError, UsageError
from trainworks.jobs.state import JobState

_PATIENCE_S = 240.0


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)


def ended(run: trainworks.api.run_handle.Run, name: str) -> bool:  # type: ignore[name-defined]
    file = run.run_dir.observer_file(name)
    return file.exists() and json.loads(file.read_text()).get("ended") not in (None, False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Folder of runs, whose observers end with the test."""
    yield tmp_path / "runs"
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(tmp_path) in word for word in one.cmdline()) and one.pid != os.getpid():
                one.send_signal(signal.SIGKILL)


def test_a_run_is_tracked_and_its_end_is_told(folder: Path, webhook: Webhook) -> None:  # noqa: F811
    written = {"name": "demo", "run": "true", "track": ["tensorboard"], "notify": [webhook.patient_url]}
    run = trainworks.run(written, folder=folder)
    wait_until(lambda: ended(run, "tensorboard") and len(webhook.posts) == 1)
    assert webhook.titles[0].startswith("demo-1 finished")
    assert list((run.path / "observe" / "tensorboard").glob("*tfevents*"))


def test_a_recipient_that_hangs_does_not_hold_the_run(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"json://127.0.0.1:{silent.getsockname()[1]}?rto=600&cto=600"
        run = trainworks.run({"name": "demo", "run": "true", "notify": [url]}, folder=folder)
        assert run.state is JobState.SUCCEEDED
        wait_until(lambda: run.run_dir.observer_file("notify").exists())  # it outlives its supervisor
        assert json.loads(run.run_dir.observer_file("notify").read_text())["num_sent"] == 0


def test_a_variable_that_is_not_set_is_refused_before_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEAM_URL", raising=False)
    with pytest.raises(UsageError, match="`notify` names `TEAM_URL`, which is not set"):
        trainworks.run({"name": "demo", "run": "true", "notify": ["${TEAM_URL}"]}, folder=folder)


def test_a_tracker_without_its_library_is_refused_before_the_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainworks.observe.following.TRACKER_LIBRARIES", {"mlflow": "no_such_library"})
    monkeypatch.setattr("trainworks.api.observing.observers.TRACKER_LIBRARIES", {"mlflow": "no_such_library"})
    with pytest.raises(MissingExtraError) as refused:
        trainworks.run({"name": "demo", "run": "true", "track": ["mlflow"]}, folder=folder)
    assert refused.value.hint == "pip install 'trainworks[mlflow]'"


def test_a_run_of_the_past_is_sent_once(folder: Path) -> None:
    run = trainworks.run({"name": "demo", "run": "true"}, folder=folder)
    report = trainworks.track(run.id, ["tensorboard"], folder=folder)
    assert report.trackers[0].ended == "SUCCEEDED"
    file = next((run.path / "observe" / "tensorboard").glob("*tfevents*"))
    size = file.stat().st_size
    trainworks.track(run.id, ["tensorboard"], folder=folder)
    assert file.stat().st_size == size
    assert "tensorboard" in str(report)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "names no tracker"),
        ({"to": ["mlfow"]}, "unknown tracker `mlfow`"),
        ({"to": ["tensorboard"], "uri": "http://h"}, "tensorboard does not use it"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(folder: Path, arguments: dict[str, object], problem: str) -> None:
    run = trainworks.run({"name": "demo", "run": "true"}, folder=folder)
    with pytest.raises(ArgumentError, match=problem):
        trainworks.track(run.id, folder=folder, **arguments)


def test_a_run_that_is_resumed_in_the_background_is_watched_in_the_queue(folder: Path, webhook: Webhook) -> None:  # noqa: F811
    run = trainworks.run({"name": "demo", "run": "false", "notify": [webhook.patient_url]}, folder=folder, wait=False)
    assert run.wait() is JobState.FAILED
    assert not run.run_dir.observer_log("waiting").exists()
    trainworks.resume(run.id, folder=folder, background=True)
    wait_until(run.run_dir.observer_log("waiting").exists)


def test_a_run_that_fails_before_its_first_rank_is_told(folder: Path, webhook: Webhook) -> None:  # noqa: F811
    health, envs = "echo fan hunter22 is off; false", {"FAN_TOKEN": "hunter22"}
    written = {"name": "demo", "run": "true", "job": {"health": health}, "envs": envs, "notify": [webhook.patient_url]}
    with pytest.warns(UserWarning, match="keeps the value of FAN_TOKEN"):
        run = trainworks.run(written, folder=folder, wait=False)
    assert run.wait() is JobState.FAILED
    wait_until(lambda: len(webhook.posts) == 1)
    assert webhook.titles == ["demo-1 failed"]
    assert "fan *** is off" in webhook.posts[0]["message"]


def test_a_tracker_that_is_killed_costs_the_run_nothing_and_gets_the_rest_later(folder: Path) -> None:
    until_killed = f"until [ -e {folder}/killed ]; do sleep 0.1; done"
    run = trainworks.run({"name": "demo", "run": until_killed, "track": ["tensorboard"]}, folder=folder, wait=False)
    wait_until(lambda: run.run_dir.observer_file("tensorboard").exists())
    (observer,) = (one for one in psutil.process_iter() if is_observer(one, run.path))
    observer.send_signal(signal.SIGKILL)
    (folder / "killed").touch()
    assert run.wait() is JobState.SUCCEEDED
    assert not ended(run, "tensorboard")
    assert trainworks.track(run.id, folder=folder).trackers[0].ended == "SUCCEEDED"


def is_observer(one: psutil.Process, run: Path) -> bool:
    with suppress(psutil.Error):
        return one.cmdline()[-3:] == ["trainworks.api.observing.track", str(run.resolve()), "tensorboard"]
    return False
