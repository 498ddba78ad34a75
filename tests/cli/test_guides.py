"""What a guide prints is what the program prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GUIDE = ROOT / "docs" / "guides" / "size-a-cluster.md"
CLUSTERS = ROOT / "docs" / "guides" / "plan-for-a-cluster.md"
SCORING = ROOT / "docs" / "guides" / "score-your-runs.md"
CUT_PAGES = (README, ROOT / "docs" / "guides" / "llama-2-7b-on-8-a100.md")


def blocks() -> Iterator[tuple[str, list[str]]]:
    """Every command of the guide with the lines that it is said to print, without the cuts."""
    for block in re.findall(r"```console\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        command, *lines = block.splitlines()
        yield command.removeprefix("$ trainworks "), [line for line in lines if line.strip() != "..."]


def cut_answers() -> Iterator[Any]:
    """Every answer of the planner on a page whose lines may be cut at the end, by page and command."""
    for page in CUT_PAGES:
        for block in re.findall(r"```\w+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for answer in re.split(r"^\$ trainworks ", block, flags=re.MULTILINE)[1:]:
                command, *lines = answer.splitlines()
                if re.match(r"(plan|size) examples/", command) and lines and not lines[0].startswith("error: "):
                    kept = [line.removesuffix("...").rstrip() for line in lines]
                    yield pytest.param(command, kept, id=f"{page.stem}: {command}")


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
    whole = " ".join(told)  # a page is narrower than a wide terminal: sentences break elsewhere
    missing = [line for line in lines if line.rstrip() not in told and line.rstrip() not in whole]
    assert not missing, f"trainworks {command} does not print:\n" + "\n".join(missing)


@pytest.mark.parametrize(("command", "lines"), list(cut_answers()))
def test_a_page_with_cut_lines_shows_what_is_printed(command: str, lines: list[str]) -> None:
    told = printed(command).splitlines()
    missing = [line for line in lines if not any(whole.startswith(line) for whole in told)]
    assert not missing, f"trainworks {command} does not print:\n" + "\n".join(missing)


def plans_of_the_guide_to_clusters(folder: Path) -> list[str]:
    """What its plans print: of its first run file, with its goal, compared, calibrated, and handed over."""
    text = CLUSTERS.read_text(encoding="utf-8")
    run_file, *others = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (goal,) = [other for other in others if "\ngoal:" in other]
    (folder / "llama-3-70b.yaml").write_text(run_file)
    (folder / "goal.yaml").write_text(run_file[: run_file.index("cluster:")] + goal)
    typed = re.findall(r"^\$ trainworks ((?:plan llama-3-70b.yaml --explain|calibrate) .*)$", text, re.MULTILINE)
    commands = ["plan llama-3-70b.yaml", "plan goal.yaml", *typed, "plan llama-3-70b.yaml"]
    commands.append("plan llama-3-70b.yaml --as megatron")
    results = [CliRunner().invoke(app, shlex.split(command)) for command in commands]
    assert [result.exit_code for result in results] == [0] * 6
    return [line for result in results for line in result.stdout.splitlines()]


def test_the_guide_to_clusters_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = plans_of_the_guide_to_clusters(tmp_path)
    blocks = re.findall(r"```(?:text|console)\n(.*?)```", CLUSTERS.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks if "error: " not in block for line in block.splitlines()]
    kept = [line.removesuffix("...").rstrip() for line in lines if not line.startswith(("$", "note: calibrated"))]
    together = " ".join(told)
    missing = [line for line in kept if not any(whole.startswith(line) for whole in told) and line not in together]
    assert not missing, "its plans do not print:\n" + "\n".join(missing)


def test_the_guide_to_scoring_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, answer, *_ = re.findall(r"```(?:text|console)\n(.*?)```", SCORING.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "runs.csv").write_text(table)
    monkeypatch.chdir(tmp_path)
    command, *lines = answer.removeprefix("$ trainworks ").splitlines()
    result = CliRunner().invoke(app, shlex.split(command))
    assert [line.rstrip() for line in result.stdout.splitlines()] == lines
    assert "predictions.csv" in [path.name for path in tmp_path.iterdir()]
