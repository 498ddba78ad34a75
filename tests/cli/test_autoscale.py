"""`trainworks autoscale` writes the files of the engine that the run file names."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.errors import TrainworksError, UsageError

SLURM = """name: elastic
run: python train.py
cluster:
  engine: ENGINE
  autoscale:
    slurm: {nodes: "cloud[1-4]", node: {cores: 8, memory: 30 GB}, start: "up $NODE", stop: "down $NODE"}
"""


@pytest.fixture
def autoscale(tmp_path: Path):
    """A function that writes a run file and calls the command."""

    def call(text: str, *options: str) -> str:
        (tmp_path / "run.yaml").write_text(text)
        result = CliRunner().invoke(app, ["autoscale", str(tmp_path / "run.yaml"), *options])
        if isinstance(result.exception, TrainworksError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return call


def test_it_prints_the_files(autoscale) -> None:
    printed = autoscale(SLURM.replace("ENGINE", "slurm"))
    assert [line for line in printed.splitlines() if line.startswith("# --- ")] == [
        "# --- resume.sh",
        "# --- suspend.sh",
        "# --- power.conf",
    ]


def test_it_writes_the_files_and_the_programs_can_be_run(autoscale, tmp_path: Path) -> None:
    folder = tmp_path / "power"
    printed = autoscale(SLURM.replace("ENGINE", "slurm"), "--to", str(folder))
    assert printed.split() == [str(folder / name) for name in ("resume.sh", "suspend.sh", "power.conf")]
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}
    assert modes == {"resume.sh": "0o755", "suspend.sh": "0o755", "power.conf": "0o644"}


def test_kubernetes_gets_its_own(autoscale) -> None:
    assert "kind: AdmissionCheck" in autoscale(SLURM.replace("ENGINE", "kubernetes"))


def test_an_engine_without_nodes_of_its_own_is_refused(autoscale) -> None:
    with pytest.raises(UsageError, match="`engine: local` starts and stops no nodes"):
        autoscale(SLURM.replace("ENGINE", "local"))


def test_a_run_file_without_the_block_is_refused(autoscale) -> None:
    with pytest.raises(UsageError, match=r"has no `cluster\.autoscale`"):
        autoscale("name: a\nrun: 'true'\ncluster: slurm\n")
