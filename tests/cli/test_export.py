"""`trainworks export`: what it refuses before it starts."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError

pytest.importorskip("torch", reason="exporting needs trainworks[train]")

from tests.worker.harness import make_run, write_corpus


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of four steps, with checkpoints of the second and the fourth."""
    folder = tmp_path_factory.mktemp("exported")
    changes = {"workload__train_for": "4 steps", "checkpoint": {"every": "2 steps"}, "name": "small"}
    run = make_run(folder / "runs", write_corpus(folder / "text"), folder / "cache" / "data", **changes)
    assert run.train() == [0, 0]
    return run


@pytest.fixture
def trainworks(run, monkeypatch):
    """Call `trainworks export` beside that run."""
    monkeypatch.setenv("TRAINWORKS_RUNS", str(run.run_dir.path.parent))
    monkeypatch.setenv("TRAINWORKS_CACHE", str(run.data_folder.parents[1]))

    def call(*arguments):
        result = CliRunner().invoke(app, ["export", *arguments])
        if isinstance(result.exception, TrainworksError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result

    return call


def test_the_newest_checkpoint_is_exported_and_said(trainworks, tmp_path):
    said = trainworks("small-1", "--to", str(tmp_path / "model")).stdout.splitlines()
    assert said[0].startswith("step 4 of small-1: 20 tensors, ")
    assert said[1] == str(tmp_path / "model")
    names = {file.name for file in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names


def test_a_step_without_a_checkpoint_is_refused_with_those_there_are(trainworks, tmp_path):
    with pytest.raises(UsageError, match="no checkpoint of step 3") as refused:
        trainworks("small-1", "--step", "3", "--to", str(tmp_path / "model"))
    assert refused.value.hint == "there are: 2, 4"


@pytest.mark.lane("test-all")
def test_a_damaged_checkpoint_is_refused_with_the_other_steps(trainworks, run, tmp_path):
    metadata = run.run_dir.checkpoint(4) / "metadata.json"
    good = metadata.read_bytes()
    metadata.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    try:
        with pytest.raises(EnvironmentProblem, match=r"step 4 is damaged: metadata\.json: checksum differs") as refused:
            trainworks("small-1", "--to", str(tmp_path / "model"))
    finally:
        metadata.write_bytes(good)
    assert refused.value.hint == "choose another one with `--step`: 2"


@pytest.mark.lane("test-all")
def test_what_the_worker_refuses_is_said_as_it_says_it(trainworks, tmp_path):
    (tmp_path / "model").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        trainworks("--to", str(tmp_path / "model"))
