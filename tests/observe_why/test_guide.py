"""The guide by symptom: each of its commands runs on the runs that it shows, and prints what it shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.observe_why.conftest import write_guide_runs
from trainworks.cli.app import app

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "why-is-it-slow.md"
TEXT = GUIDE.read_text(encoding="utf-8")
SHOWN = re.findall(r"```console\n\$ trainworks (.*)\n((?:.*\n)*?)```", TEXT)
TYPED = [found for found in re.findall(r"`trainworks ([^`]+)`", TEXT) if " " in found]


@pytest.fixture
def guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder that the guide's commands are typed in."""
    write_guide_runs(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.usefixtures("guide_runs")
@pytest.mark.parametrize(("command", "lines"), SHOWN, ids=[command for command, _ in SHOWN])
def test_the_guide_shows_what_is_printed(command: str, lines: str) -> None:
    answer = CliRunner().invoke(app, shlex.split(command))
    assert answer.exit_code == 0, answer.output
    assert [line.rstrip() for line in answer.stdout.splitlines()] == [line.rstrip() for line in lines.splitlines()]


@pytest.mark.usefixtures("guide_runs")
@pytest.mark.parametrize("command", sorted(set(TYPED)))
def test_a_command_of_the_guide_runs(command: str) -> None:
    answer = CliRunner().invoke(app, shlex.split(command))
    assert answer.exit_code in (0, 1), answer.output
    assert answer.exception is None or isinstance(answer.exception, SystemExit)
