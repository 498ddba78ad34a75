"""`trainworks repair` on this machine, which counts as two nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import trainworks
from trainworks.cli.app import app
from trainworks.errors import TrainworksError


@pytest.fixture(autouse=True)
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A policy whose check fails on a node with a file of its name."""
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRAINWORKS_NODES", "2")
    file = tmp_path / "policy.yaml"
    file.write_text(f"max_share: 50%\ncheck: test ! -e {tmp_path}/$NODE\nreset: 'true'\nreboot: ''\n")
    return str(file)


def node() -> str:
    return trainworks.nodes()[0].name


def called(*arguments: str) -> tuple[int, str]:
    """Exit code and output of a repair of this machine."""
    result = CliRunner().invoke(app, ["repair", "local", *arguments])
    if isinstance(result.exception, TrainworksError):
        raise result.exception
    return result.exit_code, result.output


def test_a_dry_run_prints_node_cause_step_and_command_and_changes_nothing(policy: str, tmp_path: Path) -> None:
    code, said = called("--nodes", node(), "--policy", policy, "--dry-run", "--json")
    (plan,) = json.loads(said)
    command = f"test ! -e {tmp_path}/{node()}"
    assert (code, plan["step"], plan["detail"]) == (0, "drain", f"named by the user; then check; {command}")
    assert (trainworks.nodes()[0].state, called("--history")[1]) == ("free", "no repairs\n")


def test_without_a_terminal_the_plan_is_shown_and_nothing_is_done(policy: str) -> None:
    with pytest.raises(TrainworksError) as refused:
        called("--nodes", node(), "--policy", policy)
    assert refused.value.hint == "add `--yes`"
    assert trainworks.nodes()[0].state == "free"


def test_a_good_node_is_back_and_its_steps_are_on_record(policy: str) -> None:
    code, said = called("--nodes", node(), "--policy", policy, "--yes")
    assert (code, trainworks.nodes()[0].state) == (0, "free")
    assert f"{node()}  release" in said
    history = json.loads(called("--history", "--json")[1])
    assert [event["step"] for event in history] == ["waits", "drain", "drained", "check", "release", "back"]


def test_a_bad_node_is_out_with_exit_code_1(policy: str, tmp_path: Path) -> None:
    (tmp_path / node()).touch()
    code, _ = called("--nodes", node(), "--policy", policy, "--yes")
    assert (code, trainworks.nodes()[0].state) == (1, "drained")
    assert [file.name[: len(node())] for file in (tmp_path / "data/repairs/local-default").iterdir()] == [node()]


@pytest.mark.parametrize(
    ("arguments", "message", "place"),
    [
        (["--nodes", "nowhere"], "the cluster has no node `nowhere`", "--nodes"),
        (["--max-share", "often"], "`often` is not a share", "--max-share"),
        (["--from", "none.json"], "cannot read `none.json`: No such file or directory", "--from"),
        (["--history", "--yes"], "`--history` does not use `--yes`", "--yes"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], message: str, place: str) -> None:
    with pytest.raises(TrainworksError) as refused:
        called(*arguments)
    assert (refused.value.message, refused.value.place) == (message, place)
