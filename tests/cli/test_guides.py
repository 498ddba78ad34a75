"""What a guide prints is what the program prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guides" / "size-a-cluster.md"


def blocks() -> Iterator[tuple[str, list[str]]]:
    """Every command of the guide with the lines that it is said to print, without the cuts."""
    for block in re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        command, *lines = block.splitlines()
        yield command.removeprefix("$ trainworks "), [line for line in lines if line.strip() != "..."]


def planned_in_the_readme() -> Iterator[tuple[str, list[str]]]:
    """Every answer of the planner in the README; its lines may be cut at the end."""
    for block in re.findall(r"```\w+\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL):
        for answer in re.split(r"^\$ trainworks ", block, flags=re.MULTILINE)[1:]:
            command, *lines = answer.splitlines()
            if re.match(r"(plan|size) examples/", command) and lines:
                yield command, [line.removesuffix("...").rstrip() for line in lines]


@cache
def printed(command: str) -> str:
    """What the command prints on a wide terminal; it runs once."""
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(autouse=True)
def in_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guides name the examples from the repository's root, and no measurement of this machine counts."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.mark.parametrize(("command", "lines"), list(blocks()))
def test_a_guide_shows_what_is_printed(command: str, lines: list[str]) -> None:
    told = [line.rstrip() for line in printed(command).splitlines()]
    missing = [line for line in lines if line.rstrip() not in told]
    assert not missing, f"trainworks {command} does not print:\n" + "\n".join(missing)


@pytest.mark.parametrize(("command", "lines"), list(planned_in_the_readme()))
def test_the_readme_shows_what_is_printed(command: str, lines: list[str]) -> None:
    told = printed(command).splitlines()
    missing = [line for line in lines if not any(whole.startswith(line) for whole in told)]
    assert not missing, f"trainworks {command} does not print:\n" + "\n".join(missing)


def test_the_readme_shows_the_planner() -> None:
    assert {command.split()[0] for command, _ in planned_in_the_readme()} == {"plan", "size"}
