"""What NCCL needs on a network reaches the ranks, and a value of the user's own wins."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fakes import job, processes, resolved_command
from trainworks.agent.node_agents import OwnProcesses, TrainingNodes
from trainworks.config.run_file import RunFile
from trainworks.host import process
from trainworks.host.network import LOOPBACK, listen
from trainworks.record.processes import Processes
from trainworks.record.run_dir import RunDir

ON_EFA = processes(2).model_copy(update={"device": "cuda", "nccl_environment": {"FI_PROVIDER": "efa"}})
ON_CPU = ON_EFA.model_copy(update={"device": "cpu"})


class ElsewhereThatShowsItsEnvironment(OwnProcesses):
    """Nodes on another machine, on which an agent only writes its environment down."""

    are_here = False

    def __init__(self, file: Path) -> None:
        self.addresses: Sequence[str] = [LOOPBACK] * 2
        self._file = file

    def command(self, node: int, command: list[str]) -> list[str]:
        """A shell, in place of the agent."""
        return ["sh", "-c", f"env > {shlex.quote(str(self._file))}"]


def variables(file: Path) -> dict[str, str]:
    return dict(line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)


def of_a_command(run_dir: RunDir, of: Processes, **run_file: object) -> dict[str, str]:
    """The environment of rank 0 of a command."""
    file = run_dir.path / "env"
    changes = {"name": "demo", "run": f"env > {shlex.quote(str(file))}"} | run_file
    run_dir.write_resolved(resolved_command(run_file=RunFile.model_validate(changes), processes=of))
    with listen() as free:
        port = str(free.getsockname()[1])
    arguments = (str(run_dir.path), "0", "0", port, "1", f"{LOOPBACK},{LOOPBACK}")
    done = process.run(process.python_module("trainworks.agent.command_agent", *arguments), timeout_s=120)
    assert done.exit_code == 0, done.stderr
    return variables(file)


def of_a_workload(run_dir: RunDir, of: Processes) -> dict[str, str]:
    """The environment of an agent of the trainer, which its ranks inherit."""
    file = run_dir.path / "env"
    nodes = TrainingNodes(
        run_dir, job().model_copy(update={"processes": of}), hosts=ElsewhereThatShowsItsEnvironment(file)
    )
    agent = nodes._agent(0)
    assert agent.wait(60) == 0
    return variables(file)


@pytest.mark.parametrize("environment", [of_a_command, of_a_workload])
def test_ranks_get_what_the_plan_says_of_nccl(run_dir, environment, monkeypatch):
    monkeypatch.delenv("FI_PROVIDER", raising=False)
    assert environment(run_dir, ON_EFA)["FI_PROVIDER"] == "efa"


@pytest.mark.parametrize("environment", [of_a_command, of_a_workload])
def test_a_value_of_the_user_s_shell_wins(run_dir, environment, monkeypatch):
    monkeypatch.setenv("FI_PROVIDER", "tcp")
    assert environment(run_dir, ON_EFA)["FI_PROVIDER"] == "tcp"


@pytest.mark.parametrize(("of_shell", "of_rank"), [("7", "7"), (None, "1")])
def test_a_command_keeps_the_number_of_threads_of_the_shell(run_dir, monkeypatch, of_shell, of_rank):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if of_shell:
        monkeypatch.setenv("OMP_NUM_THREADS", of_shell)
    assert of_a_command(run_dir, ON_CPU)["OMP_NUM_THREADS"] == of_rank
    assert of_a_command(run_dir, ON_CPU, envs={"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_a_value_of_the_run_file_wins(run_dir, monkeypatch):
    monkeypatch.delenv("FI_PROVIDER", raising=False)
    assert of_a_command(run_dir, ON_EFA, envs={"FI_PROVIDER": "verbs"})["FI_PROVIDER"] == "verbs"


@pytest.mark.parametrize("environment", [of_a_command, of_a_workload])
def test_ranks_on_cpus_get_nothing_of_nccl(run_dir, environment, monkeypatch):
    monkeypatch.delenv("FI_PROVIDER", raising=False)
    assert "FI_PROVIDER" not in environment(run_dir, ON_CPU)
