"""A run is reviewed before it starts: what it names is read, and what would end at once is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import trainworks
from trainworks.api.proving.review import review_launch
from trainworks.cli.app import app
from trainworks.config.run_description import load_tasks
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.review.check import check_text
from trainworks.review.registry import RULES

HANGS = "name: hangs\nrun: torchrun --standalone --nnodes=2 --nproc-per-node=1 train.py\n"
SLOW = "name: slow\nrun: ./train.sh\nenvs: {NCCL_DEBUG: TRACE}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('trained')\n")
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/bash\nexport NCCL_SOCKET_IFNAME=^lo,^docker0\npython3 train.py\n")
    script.chmod(0o755)
    return tmp_path


def command(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def found(text: str) -> set[str]:
    return {finding.rule for finding in check_text(text, tuple(RULES.values()), name="run.yaml")}


@pytest.mark.parametrize("verb", ["run", "submit"])
def test_a_run_that_would_end_before_its_first_step_is_refused(folder: Path, verb: str) -> None:
    (folder / "run.yaml").write_text(HANGS)
    error = command(verb, "run.yaml").exception
    assert isinstance(error, UsageError)
    assert (error.place, "TW116" in error.message, "--no-review" in (error.hint or "")) == ("run.yaml:2:15", True, True)
    assert not (folder / "runs").exists()


def test_no_review_starts_it(folder: Path) -> None:
    (folder / "run.yaml").write_text(HANGS)
    done = command("run", "run.yaml", "--dry-run", "--no-review")
    assert (done.exit_code, "TW" in done.output) == (0, False)


def test_a_command_is_reviewed_too(folder: Path) -> None:
    with pytest.raises(UsageError, match="TW116"):
        trainworks.run(["env", "A=1", "torchrun", "--standalone", "--nnodes=2", "train.py"])


def test_other_findings_are_shown_and_the_run_starts(folder: Path) -> None:
    (folder / "run.yaml").write_text(SLOW)
    done = command("run", "run.yaml")
    assert done.exit_code == 0
    assert "run.yaml:3:20: TW203 warning" in done.stderr
    assert "train.sh:2:8: TW207 error" in done.stderr
    assert done.stderr.index("TW207") < done.stderr.index("TW203"), "errors come first"
    assert "TW" not in done.stdout


def test_the_public_functions_warn(folder: Path) -> None:
    (folder / "run.yaml").write_text(SLOW)
    with pytest.warns(UserWarning, match="TW") as warned:
        trainworks.run("run.yaml")
    assert len(warned) == 2
    trainworks.run("run.yaml", review=False)


def test_a_plan_shows_findings_and_stays_a_plan(folder: Path) -> None:
    text = (Path(__file__).parents[2] / "examples" / "plan-llama-3-70b.yaml").read_text()
    (folder / "plan.yaml").write_text(text + "checkpoint: {to: /dev/shm/runs}\n")
    done = command("plan", "plan.yaml", "--json")
    assert (done.exit_code, done.stdout[0]) == (0, "{")
    assert "TW902 warning" in done.stderr


def test_pyproject_chooses_the_rules(folder: Path) -> None:
    (folder / "run.yaml").write_text(HANGS)
    (folder / "pyproject.toml").write_text('[tool.trainworks.review]\nignore = ["TW116"]\n')
    assert command("run", "run.yaml", "--dry-run").exit_code == 0


def test_a_launch_behind_a_condition_is_not_refused(folder: Path) -> None:
    (folder / "run.yaml").write_text("name: a\nrun: test -e no || torchrun --standalone --nnodes=2 train.py\n")
    done = command("run", "run.yaml", "--dry-run")
    assert (done.exit_code, "TW116 error" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    "text",
    [
        "name: a\nworkdir: src\nsetup: git clone x\nrun: python train.py\n",
        "name: a\nrun: cd src && python train.py\n",
        "name: a\nrun: python train.py\ncluster: {engine: kubernetes}\n",
        "name: a\nrun: python $SCRIPT\n",
        "name: a\nresources: {accelerators: A100:8}\nrun: python train.py\n",
    ],
)
def test_a_program_that_may_come_later_is_not_missed(text: str) -> None:
    assert found(text) == set()


def test_a_folded_command_is_left_out_of_the_rules_on_places() -> None:
    assert found("name: a\nrun: >\n  torchrun --standalone\n  --nnodes=2 train.py\n") == set()


@pytest.mark.parametrize("every", ["auto", "50 steps", "10m"])
def test_a_frequent_checkpoint_is_fine_on_many_nodes(every: str) -> None:
    text = f"name: a\nrun: python -m train\ncluster: {{engine: slurm, nodes: 2048}}\ncheckpoint: {{every: {every}}}\n"
    assert found(text) == set()


def test_the_described_cluster_and_the_node_mttf_count() -> None:
    text = "name: a\nrun: python -m train\ncluster: 512 nodes of 8x H100\ncheckpoint: {every: 2h}\n"
    assert found(text) == set()
    assert found(text + "recover: {node_mttf: 30d}\n") == {"TW903"}


def test_a_workflow_with_a_run_key_is_no_run_file() -> None:
    assert found("name: ci\non: push\nrun: torchrun --standalone --nnodes=2 train.py\n") == set()


@pytest.mark.parametrize(
    "launch",
    [
        "srun -N1 torchrun --nproc-per-node=8 train.py",
        "srun torchrun $ARGS --nproc-per-node=8 train.py",
        "export PET_NNODES=4\nsrun torchrun --nproc-per-node=8 train.py",
    ],
)
def test_a_step_of_one_node_may_train_alone(launch: str) -> None:
    text = f"#!/bin/bash\n#SBATCH --nodes=4\n{launch}\n"
    assert check_text(text, tuple(RULES.values()), name="train.sbatch") == []


def test_a_test_of_nccl_without_a_launcher_stays_on_the_first_node_of_a_job() -> None:
    script = "#!/bin/bash\n#SBATCH --nodes=4\n{}build/all_reduce_perf -b 8 -e 8G -g 8\n"
    (finding,) = check_text(script.format(""), [RULES["TW220"]], name="job.sbatch")
    assert finding.line == 3
    assert "4 nodes" in finding.message
    for launcher in ("srun --mpi=pmix ", "mpirun -np 4 "):
        assert check_text(script.format(launcher), [RULES["TW220"]], name="job.sbatch") == []


@pytest.mark.parametrize("workdir", ["x" * 300, "no/such/folder", "a\0b"])
def test_a_working_folder_that_cannot_be_is_left_to_the_run(folder: Path, workdir: str) -> None:
    run_file = RunFile.model_validate({"name": "t", "run": "python train.py; bash " + "y" * 300 + ".sh"})
    report = review_launch(run_file.model_copy(update={"workdir": workdir}), None)
    assert report.findings == []


def test_scripts_are_looked_for_in_the_working_folder(folder: Path) -> None:
    (folder / "run.yaml").write_text(f"name: slow\nworkdir: {folder}\nrun: bash train.sh\n")
    (folder / "elsewhere").mkdir()
    report = review_launch(*load_tasks(folder / "run.yaml")[0])
    assert [finding.rule for finding in report.findings] == ["TW207"]


def test_a_mistake_in_pyproject_does_not_stop_a_run(folder: Path) -> None:
    (folder / "pyproject.toml").write_text("[tool.trainworks.review]\nignore = [")
    assert command("run", "--dry-run", "--", "python3", "train.py").exit_code == 0
    (folder / "pyproject.toml").write_text('[tool.trainworks.review]\nignore = ["TW999"]\n')
    assert command("run", "--dry-run", "--", "python3", "train.py").exit_code == 0
