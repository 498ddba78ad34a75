"""A real MLflow server gets parameters, metrics with steps, artifacts and a registered model with its lineage."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.observe_trackers.conftest import RecordedRun
from tests.observe_trackers.test_feed import manifest
from tests.ports import free_port
from trainworks.api.observing.track import tracker_opener
from trainworks.config.track import MLflow, Track
from trainworks.errors import EnvironmentProblem
from trainworks.jobs.state import JobState
from trainworks.observe.following import follow
from trainworks.observe.trackers.feed import Feed
from trainworks.record.manifest import write_manifest

pytest.importorskip("mlflow")
pytestmark = [pytest.mark.mlflow, pytest.mark.filterwarnings("ignore")]  # the client's own
PYTHON = os.environ.get("TRAINWORKS_TEST_MLFLOW", "")
_STARTS_IN_S = 180.0


class MLflowServer:
    """An MLflow server on SQLite, which can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._port = free_port()
        self.uri = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        store = f"sqlite:///{self.folder / 'mlflow.db'}"
        command = [PYTHON, "-m", "mlflow", "server", "--backend-store-uri", store, "--port", str(self._port)]
        command += ["--artifacts-destination", str(self.folder / "artifacts"), "--workers", "1"]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, process_group=0)
        deadline = time.monotonic() + _STARTS_IN_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "server.log").read_text()
            assert time.monotonic() < deadline, "MLflow did not start"
            time.sleep(0.2)

    def stop(self) -> None:
        os.killpg(self._process.pid, 15)
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    @property
    def client(self) -> Any:
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.uri)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MLflowServer]:
    if not PYTHON:
        pytest.skip("NOT TESTED: a real MLflow server; set TRAINWORKS_TEST_MLFLOW to a Python that has mlflow")
    server = MLflowServer(tmp_path_factory.mktemp("mlflow"))
    yield server
    server.stop()


def feed_of(run: RecordedRun, server: MLflowServer, **options: str) -> Feed:
    track = Track(mlflow=MLflow(uri=server.uri, **options))
    opener = tracker_opener("mlflow", track, Path(run.resolved.working_folder))
    return Feed(run.run_dir, "mlflow", opener, lambda: run.state)


def id_of(feed: Feed) -> str:
    return str(feed.sent.tracker["run_id"])


def test_a_run_arrives_with_its_model(recorded: RecordedRun, server: MLflowServer) -> None:
    folder = recorded.run_dir.checkpoint(20)
    folder.mkdir(parents=True)
    (folder / "weights.bin").write_bytes(b"weights")
    write_manifest(folder, manifest(20))
    recorded.enter(JobState.SUCCEEDED)
    feed = feed_of(recorded, server, register_as="demo-model")
    feed.send()
    run = server.client.get_run(id_of(feed))
    assert run.info.status == "FINISHED"
    assert run.data.params["model.layers"] == "4"
    assert run.data.params["plan.num_steps"] == "300"
    assert run.data.tags["mlflow.source.git.commit"] == "0123abcd"
    losses = server.client.get_metric_history(id_of(feed), "train/loss")
    assert [(each.step, each.value) for each in losses] == [
        (step, pytest.approx(4.0 / step + 1)) for step in range(1, 21)
    ]
    files = {each.path for each in server.client.list_artifacts(id_of(feed))}
    assert {"resolved.json", "events.jsonl", "checkpoint-00000020"} <= files
    (version,) = server.client.search_model_versions("name = 'demo-model'")
    assert version.run_id == id_of(feed)
    assert version.tags["trainworks.data"] == "f00d"
    assert version.tags["trainworks.commit"] == "0123abcd"
    assert len(version.tags["trainworks.plan"]) == 16
    (weights,) = (server.folder / "artifacts").rglob("weights.bin")
    assert weights.read_bytes() == b"weights"


def test_a_resumed_run_continues_and_what_is_sent_twice_counts_once(
    recorded: RecordedRun, server: MLflowServer
) -> None:
    recorded.enter(JobState.FAILED)
    first = feed_of(recorded, server)
    first.send()
    recorded.train(21, 30)
    recorded.enter(JobState.SUCCEEDED)
    known = first.sent.model_copy(update={"metrics_bytes": 0, "tracker": {}})  # killed before it could store
    recorded.run_dir.observer_file("mlflow").write_text(known.model_dump_json())
    second = feed_of(recorded, server)
    second.send()
    assert id_of(first) == id_of(second)
    losses = server.client.get_metric_history(id_of(second), "train/loss")
    assert [each.step for each in losses] == list(range(1, 31))
    assert server.client.get_run(id_of(second)).info.status == "FINISHED"


def test_a_server_that_was_down_gets_the_rest(recorded: RecordedRun, server: MLflowServer) -> None:
    feed = feed_of(recorded, server)
    feed.send()
    server.stop()
    recorded.train(21, 30)
    recorded.enter(JobState.SUCCEEDED)
    with pytest.raises(Exception, match=r"refused|Max retries|Connection"):
        feed.send()
    server.start()
    from trainworks.host.clock import SystemClock

    assert follow(feed, lambda: recorded.state, SystemClock())
    losses = server.client.get_metric_history(id_of(feed), "train/loss")
    assert [each.step for each in losses] == list(range(1, 31))


def test_without_a_server_the_error_says_what_to_set(recorded: RecordedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    feed = Feed(recorded.run_dir, "mlflow", tracker_opener("mlflow", Track(), Path("/")), lambda: recorded.state)
    with pytest.raises(EnvironmentProblem, match="no tracking server is named"):
        feed.send()
