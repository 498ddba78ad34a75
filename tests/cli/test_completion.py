"""What a shell offers when Tab is pressed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import terminal, trainworks_program
from trainworks.catalog.rows import KINDS
from trainworks.cli.commands import COMMANDS
from trainworks.record.runs_folder import create_run_dir


def offered(line: str, folder: Path) -> list[str]:
    """Words for the end of a line, as bash asks for them; the program says nothing else."""
    words = shlex.split(line) + [""] * line.endswith(" ")
    done = trainworks_program(
        folder=folder, _TRAINWORKS_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three runs in `runs`, and one in `others`."""
    for name in ("lm", "lm", "digits"):
        create_run_dir(tmp_path / "runs", name)
    create_run_dir(tmp_path / "others", "old")
    return tmp_path


def test_commands_are_offered_by_their_first_letters(folder: Path) -> None:
    assert offered("trainworks re", folder) == [name for name in COMMANDS if name.startswith("re")]


@pytest.mark.parametrize(
    "command", ["report", "stop", "describe", "ssh", "compare", "resume", "track", "checkpoint ls"]
)
def test_runs_are_offered_where_a_command_takes_one(command: str, folder: Path) -> None:
    assert sorted(offered(f"trainworks {command} lm", folder)) == ["lm-1", "lm-2"]
    assert sorted(offered(f"trainworks {command} ", folder)) == ["digits-1", "lm-1", "lm-2"]


def test_runs_are_those_of_the_folder_that_the_line_names(folder: Path) -> None:
    assert offered("trainworks report --runs others ", folder) == ["old-1"]
    assert offered("trainworks report --runs missing ", folder) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trainworks report --js", ["--json"]),
        ("trainworks catalog s", ["show"]),
        ("trainworks catalog list sw", ["switches"]),
        ("trainworks catalog show GB300-2", ["GB300-288GB"]),
        ("trainworks plan run.yaml --on p5.48", ["p5.48xlarge"]),
        ("trainworks plan run.yaml --set model.pre", ["model.preset="]),
        ("trainworks plan run.yaml --set model.preset=llama3-7", ["model.preset=llama3-70b"]),
        ("trainworks plan run.yaml --set optimizer.lr=", []),
        ("trainworks nonsense rep", ["report", "repair"]),
    ],
)
def test_a_line_is_completed(line: str, words: list[str], folder: Path) -> None:
    assert offered(line, folder) == words


def test_kinds_of_the_catalogue_are_offered_to_list(folder: Path) -> None:
    assert offered("trainworks catalog list ", folder) == list(KINDS)


def test_a_catalogue_that_cannot_be_read_offers_nothing_and_says_nothing(folder: Path) -> None:
    rows = folder / "rows.yaml"
    rows.write_text("accelerators:\n  mine: {memory: much}\n")
    asked = {"_TRAINWORKS_COMPLETE": "complete_bash", "COMP_WORDS": "trainworks catalog show H1", "COMP_CWORD": "3"}
    command = [Path(sys.executable).with_name("trainworks")]  # a process of its own: rows are read once in each
    env = terminal(TRAINWORKS_CATALOG=str(rows), **asked)
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert (done.stdout.strip(), done.stderr) == ("", "")
