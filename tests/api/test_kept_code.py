"""`job.keep_code`: a run starts in the code as it was at submission."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainworks
from trainworks.errors import UsageError
from trainworks.record.run_dir import RunDir


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWORKS_DATA", str(tmp_path / "data"))
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (folder / "train.sh").write_text("echo version one\n")
    (folder / ".env").write_text("TOKEN=x\n")
    return folder


def _run(**job: object) -> dict[str, object]:
    return {"name": "kept", "run": "bash train.sh; ls -A", "job": {"keep_code": True, **job}}


def test_a_waiting_job_does_not_see_later_edits(code: Path) -> None:
    with pytest.warns(UserWarning, match=r"kept without \.env"):
        run = trainworks.submit(_run(hold=True), folder=code / "runs")
    (code / "train.sh").write_text("echo version two\n")
    assert run.job is not None
    run.job.release()
    assert str(run.wait()) == "SUCCEEDED"
    text = "".join(file.read_text() for file in sorted((run.path / "logs").rglob("*")) if file.is_file())
    assert "version one" in text
    assert ".env" not in text
    kept = RunDir(run.path).read_resolved().code
    assert kept is not None
    assert (kept.num_files, kept.left_out) == (1, (".env",))


def test_code_that_cannot_be_kept_leaves_no_run(code: Path) -> None:
    (code / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="leads out of"):
        trainworks.submit(_run(), folder=code / "runs")
    assert not list((code / "runs").glob("kept*"))


def test_pods_that_do_not_see_the_run_directory_are_refused(code: Path) -> None:
    target = _run() | {"cluster": {"engine": "kubernetes", "kubernetes": {"image": "python:3.12"}}}
    with pytest.raises(UsageError, match=r"(?i)kubernetes does not support `job.keep_code`"):
        trainworks.submit(target, folder=code / "runs")
    assert not list((code / "runs").glob("kept*"))
