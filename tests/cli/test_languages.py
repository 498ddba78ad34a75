"""`submit --dry-run --as`: a job leaves in another language, whatever this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.test_app import trainworks_program
from trainworks.config.load import parse_run_file

RUN = """\
num_nodes: 2
resources: {accelerators: H100:8}
run: torchrun $TORCHRUN_ARGS train.py
cluster:
  engine: kubernetes
  kubernetes: {image: ghcr.io/ada/train:1}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a run file in it."""
    (tmp_path / "train.yaml").write_text(RUN)
    return tmp_path


@pytest.mark.parametrize(("language", "kind"), [("jobset", "JobSet"), ("trainjob", "TrainJob")])
def test_a_manifest_is_all_that_is_printed_and_nothing_starts(folder: Path, language: str, kind: str) -> None:
    done = trainworks_program("submit", "--dry-run", "--as", language, "train.yaml", folder=folder)
    assert (yaml.safe_load(done.stdout)["kind"], done.returncode) == (kind, 0)
    assert [path.name for path in folder.iterdir()] == ["train.yaml"]


def test_a_task_for_skypilot_is_a_run_file(folder: Path) -> None:
    done = trainworks_program("submit", "--dry-run", "--as", "skypilot", "train.yaml", folder=folder)
    assert parse_run_file(done.stdout, name="task.yaml")[0].nodes == 2


def test_a_command_leaves_too(folder: Path) -> None:
    done = trainworks_program("submit", "--dry-run", "--as", "lsf", "--", "echo", "a b", folder=folder)
    assert done.stdout.startswith("#!/bin/bash\n#BSUB -J echo\n")
    assert "exec echo 'a b'" in done.stdout


def test_another_language_submits_nothing(folder: Path) -> None:
    done = trainworks_program("submit", "--as", "lsf", "train.yaml", folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`--as lsf` cannot submit" in done.stderr
