"""`trainworks hooks` writes scripts that an administrator gives to Slurm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.errors import TrainworksError, UsageError


def hooks(*options: str) -> str:
    """What it prints."""
    result = CliRunner().invoke(app, ["hooks", *options])
    if isinstance(result.exception, TrainworksError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_scripts_are_written_and_the_conf_names_them(tmp_path: Path) -> None:
    printed = hooks("--accelerators", "8", "--free", "/tmp=1", "--folder", "/etc/tw", "--to", str(tmp_path / "out"))
    assert [Path(line).name for line in printed.splitlines()] == ["prolog.sh", "health_check.sh", "hooks.conf"]
    assert "Prolog=/etc/tw/prolog.sh" in (tmp_path / "out" / "hooks.conf").read_text()
    assert (tmp_path / "out" / "prolog.sh").stat().st_mode & 0o111 == 0o111
    subprocess.run(["bash", "-n", tmp_path / "out" / "prolog.sh"], check=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing is to be checked"),
        (["--free", "20"], "does not name a folder and GiB"),
        (["--mounted", "shared\nrm"], "is not an absolute path"),
        (["--mounted", "/a", "--folder", "/etc/\nProlog=/evil"], "is not an absolute path"),
    ],
)
def test_what_cannot_be_right_is_refused(options: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        hooks(*options)


def test_a_folder_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="`--free` gives `/tmp` twice"):
        hooks("--free", "/tmp=20", "--free", "/tmp=30")
