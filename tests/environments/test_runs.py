"""Runs in an environment: its packages on every node, its record, and a resume that uses the record."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

import trainworks
from tests.environments.wheels import make_wheel, write_lock
from trainworks.agent.environments.files import with_image, without_packages
from trainworks.api.env import RunPackages
from trainworks.config.load import parse_run_file
from trainworks.errors import RunFileError, UsageError
from trainworks.record.events.log import read_events
from trainworks.record.run_environment import Distribution, NodeEnvironment

MODULE = """
import torch
import ours
from torch.utils.data import TensorDataset

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)

    def forward(self, x, target):
        assert ours.__version__ == "2.0"
        return torch.nn.functional.mse_loss(self.inner(x).squeeze(-1), target)

def build_model():
    return Model()

def build_dataset():
    return TensorDataset(torch.randn(64, 4), torch.randn(64))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a lock file of one wheel, `ours` 2.0; pip builds it, also where uv is installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    bins = (Path(one) for one in os.environ["PATH"].split(os.pathsep))
    monkeypatch.setenv("PATH", os.pathsep.join(str(one) for one in bins if not (one / "uv").exists()))
    _, digest = make_wheel(tmp_path / "wheels", "ours", "2.0")
    write_lock(tmp_path, ("ours", "2.0", digest))
    return tmp_path


def test_every_node_runs_with_the_packages_that_the_record_then_has(folder: Path) -> None:
    command = "python -c \"import ours, sys; print('ours', ours.__version__)\""
    request = {"name": "demo", "run": command, "environment": "requirements.lock", "cluster": {"nodes": 2}}
    run = trainworks.run(request, folder=folder / "runs", review=False)
    assert [run.run_dir.rank_log(rank).read_text() for rank in range(2)] == ["ours 2.0\n"] * 2
    built = [event for event in read_events(run.run_dir.events_file) if event["kind"] == "environment"]
    assert sorted(event["seconds"] > 0 for event in built) == [False, True]
    packages = trainworks.env(run)
    assert packages.lock.splitlines()[-2].startswith("ours==2.0") and "--hash=sha256:" in packages.lock
    assert (packages.differences, list(packages.nodes)) == ([], [0, 1])


def test_a_resume_continues_with_the_recorded_packages_and_says_that_the_file_has_changed(folder: Path) -> None:
    command = "python -c 'import ours; print(ours.__version__)'; test -e go"
    request = {"name": "demo", "run": command, "environment": "requirements.lock"}
    failed = trainworks.run(request, folder=folder / "runs", review=False, wait=False)
    failed.wait()
    (folder / "go").touch()
    (folder / "requirements.lock").write_text("ours==3.0\n")
    shutil.rmtree(folder / "cache")
    with pytest.warns(UserWarning, match=r"requirements\.lock` has changed since the run was made"):
        trainworks.resume(failed.id, folder=folder / "runs")
    assert failed.run_dir.rank_log(0).read_text() == "2.0\n2.0\n"


def test_a_workload_is_measured_and_trained_in_its_environment(folder: Path) -> None:
    (folder / "model.py").write_text(MODULE)
    (folder / "run.yaml").write_text(
        "workload: {task: module, model: {module: model.py}, precision: fp32, global_batch: 8, train_for: 4 steps}\n"
        "name: module\nenvironment: requirements.lock\ncluster: {processes_per_node: 1}\n"
    )
    run = trainworks.run("run.yaml", folder=folder / "runs", review=False)
    versions = {one.name: one.version for one in trainworks.env(run).first.distributions}
    assert (versions["ours"], "torch" in versions, str(run.state)) == ("2.0", True, "SUCCEEDED")


def test_packages_that_cannot_be_installed_fail_the_run_before_its_command(folder: Path) -> None:
    make_wheel(folder / "wheels", "ours", "2.0", code="# other content\n")
    request = {"name": "demo", "run": "touch ran", "environment": "requirements.lock"}
    run = trainworks.run(request, folder=folder / "runs", review=False, wait=False)
    run.wait()
    assert (str(run.state), run.status.cause, (folder / "ran").exists()) == ("FAILED", "environment", False)
    assert "DO NOT MATCH THE HASHES" in (run.status.message or "")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("env: {A: b}", "unknown key `env`", "variables are keys of `envs`"),
        ("environment: {OMP: 1}", "`OMP` is a variable", "write `envs: {OMP: ...}`"),
        ("environment: ubuntu", "does not end like a lock file", "environment: {image: ...}"),
        ("environment: {lock: a.txt, image: b}", "exactly one of", "keys of `envs`"),
        ('environment: {conda: a.yaml, python: "3.12"}', "`python` is for `lock`", "remove `python`"),
        ("environment: a.txt\nframework: mpi\nnum_nodes: 2", "works on one node, got 2", "cluster.nodes: 1"),
    ],
)
def test_a_wrong_environment_is_refused_with_a_hint(text: str, message: str, hint: str) -> None:
    with pytest.raises(RunFileError) as caught:
        parse_run_file(f"run: 'true'\n{text}\n", name="run.yaml")
    assert message in caught.value.render() and hint in caught.value.render()


@pytest.mark.parametrize(
    ("environment", "cluster", "key"),
    [
        ("requirements.lock", "skypilot", "environment.lock"),
    ],
)
def test_a_backend_refuses_what_its_nodes_cannot_build(environment: object, cluster: str, key: str) -> None:
    request = {"name": "demo", "run": "true", "environment": environment, "cluster": cluster}
    with pytest.raises(UsageError, match=f"does not support `{key}`"):
        trainworks.submit(request, folder="runs", review=False)


@pytest.mark.parametrize("engine", ["slurm", "kubernetes", "skypilot"])
def test_the_image_becomes_that_of_the_cluster(engine: str) -> None:
    text = f"run: 'true'\nname: x\nenvironment: {{image: 'a.io/b@sha256:cc'}}\ncluster: {engine}\n"
    cluster = with_image(parse_run_file(text, name="run.yaml")[0]).cluster
    images = {
        "slurm": cluster.slurm.container and cluster.slurm.container.image,
        "kubernetes": cluster.kubernetes.image,
        "skypilot": (cluster.skypilot.image or "").removeprefix("docker:"),
    }
    assert images[engine] == "a.io/b@sha256:cc"


def test_a_program_of_trainworks_itself_keeps_the_image_of_a_cluster_and_no_other_packages() -> None:
    text = "run: 'true'\nname: x\nenvironment: {image: a/b}\ncluster: {engine: kubernetes}\n"
    own = without_packages(parse_run_file(text, name="run.yaml")[0])
    assert (own.environment, own.cluster.kubernetes.image) == (None, "a/b")
    locked = without_packages(parse_run_file("run: 'true'\nenvironment: a.lock\n", name="run.yaml")[0])
    assert (locked.environment, locked.cluster.local.container) == (None, None)


def test_two_images_are_refused() -> None:
    cluster = {"engine": "kubernetes", "kubernetes": {"image": "x"}}
    request = {"name": "demo", "run": "true", "environment": {"image": "y"}, "cluster": cluster}
    with pytest.raises(UsageError, match=r"`environment\.image` is `y`, and `cluster\.kubernetes\.image` is `x`"):
        trainworks.submit(request, folder="runs", review=False)


def test_a_command_without_an_environment_has_no_recorded_packages(folder: Path) -> None:
    run = trainworks.run(["true"], folder=folder / "runs")
    with pytest.raises(UsageError, match="its packages are not in the record"):
        trainworks.env(run)


def test_nodes_with_other_packages_are_named(folder: Path) -> None:
    def node(version: str) -> NodeEnvironment:
        ours = Distribution(name="ours", version=version)
        return NodeEnvironment(kind=None, folder="/x", python="3.12.1", platform="linux", distributions=(ours,))

    packages = RunPackages("demo-1", None, {0: node("1"), 1: node("2")})
    assert packages.differences == ["node 1 has ours 2 instead of 1"]
    assert json.loads(json.dumps(packages.to_json()))["nodes"]["1"]["distributions"][0]["version"] == "2"
