"""`submit --dry-run --as`: a job leaves in another language, whatever this machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.program import trainworks_program
from trainworks.api.run_request import job_in_format, read_request, runs_of
from trainworks.config.load import parse_run_file
from trainworks.config.run_description import parse_tasks

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


SKY = (
    "name: {}\nresources: {{cpus: 2+, use_spot: true}}\nenvs: {{TOKEN: null, A: x y}}\nsetup: make\nrun: |\n  a\n  b\n"
)
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: demo, labels: {team: vision}}
spec:
  replicatedJobs:
  - name: node
    template:
      spec:
        parallelism: 2
        template:
          spec:
            dnsPolicy: None
            containers: [{name: main, image: "a/b:1", command: [python, -c, "print('a')"]}]
"""
FOREIGN = {
    "task.yaml": (SKY.format("one"), ["# task.yaml:2 resources.use_spot has no effect"]),
    "chain.yaml": (
        f"{SKY.format('one')}---\n{SKY.format('two')}",
        ["# chain.yaml:2 resources.", "# chain.yaml:10 resources."],
    ),
    "train.sbatch": (
        "#!/bin/bash\n#SBATCH --array=3,7 -N 2 --qos=high\nsrun ./a\n",
        ["# submit it with `--array 3,7`"],
    ),
    "demo.yaml": (JOBSET, ["# demo.yaml:3 metadata.labels.team has no effect"]),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_run_file_of_a_foreign_file_is_the_same_job(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, remarks = FOREIGN[name]
    Path(name).write_text(text)
    request = read_request(name)
    written = job_in_format(request, "run-file")
    assert [run_file for run_file, _ in parse_tasks(written, name="x.yaml")] == [
        one.run_file for one in runs_of(request)
    ]
    comments = [line for line in written.splitlines() if line.startswith("# ")]
    assert all(any(line.startswith(remark) for line in comments) for remark in remarks)


def test_the_run_file_is_all_that_is_printed(folder: Path) -> None:
    done = trainworks_program("submit", "--dry-run", "--as", "run-file", "train.yaml", folder=folder)
    assert yaml.safe_load(done.stdout)["run"] == "torchrun $TORCHRUN_ARGS train.py"
