"""A run that cannot start leaves no run behind, or one that says why it failed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import trainworks
from trainworks.errors import DiskFullError, EnvironmentProblem
from trainworks.record.run_dir import RunDir


def test_a_disk_without_space_for_the_reserve_gets_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match="no space left on device"):
        trainworks.run(["true"], folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_supervisor_that_ends_at_once_leaves_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainworks.host.process.python_module", lambda *_: ["false"])
    with pytest.raises(EnvironmentProblem, match="the supervisor ended with code 1"):
        trainworks.run(["true"], folder=tmp_path)
    (run_folder,) = tmp_path.iterdir()
    assert RunDir(run_folder).read_status().state == "FAILED"


@pytest.mark.parametrize("target", [["true"], {"name": "true", "run": "true"}, "run.yaml"])
def test_settings_change_a_run_of_any_kind_of_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: object
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("name: other\nrun: 'false'\nenvs: {GONE: x}\n")
    settings = {"name": "true-too", "run": "exit 0", "envs.SEED": "'7'", "envs.GONE": None}
    if target != "run.yaml":
        settings = {"envs.SEED": "'7'"}
    done = trainworks.run(target, settings=settings)  # type: ignore[arg-type]
    assert (str(done.state), done.resolved.run_file.envs) == ("SUCCEEDED", {"SEED": "7"})
    assert done.id.startswith("true-")
