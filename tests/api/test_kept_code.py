"""`job.keep_code`: a run starts in the code as it was at submission."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import trainworks
from trainworks.api.run_request import job_in_format, read_request
from trainworks.errors import UsageError
from trainworks.record.run_dir import RunDir
from trainworks.report.jobs import detail_document
from trainworks.report.rendering.text import render_text


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


def test_the_jobs_of_an_array_share_one_copy_and_do_not_see_later_edits(code: Path) -> None:
    _commit(code)
    (code / "train.sh").write_text("echo version two\n")
    with pytest.warns(UserWarning, match=r"kept-1 is kept without \.env"):
        runs = trainworks.submit_array(_run(hold=True), "2", folder=code / "runs")
    (code / "train.sh").write_text("echo version three\n")
    for run in runs:
        assert run.job is not None
        run.job.release()
        assert str(run.wait()) == "SUCCEEDED"
        text = "".join(file.read_text() for file in sorted((run.path / "logs").rglob("*")) if file.is_file())
        assert "version two" in text
        assert ".env" not in text
    first, second = ((RunDir(run.path).code_folder / "train.sh").stat() for run in runs)
    assert first.st_ino == second.st_ino


def test_a_job_is_described_with_its_copy(code: Path) -> None:
    (code / ".env").unlink()
    commit = _commit(code)
    for content, changes in (("echo version one\n", ""), ("echo version two\n", " with changes")):
        (code / "train.sh").write_text(content)
        job = trainworks.submit(_run(hold=True), folder=code / "runs").job
        assert job is not None
        kept = job.kept_code
        assert kept is not None
        shown = render_text(detail_document(job.row, [], price=None, code=kept, failure=[], now=0.0), width=200)
        assert f"1 file, 17 B, sha256 {kept.digest[:12]}, commit {commit[:12]}{changes}" in shown
        job.stop()
        shutil.rmtree(job.run_dir.path)
        assert job.kept_code is None


@pytest.mark.parametrize("language", ["jobset", "trainjob", "lsf", "skypilot"])
def test_a_job_for_use_without_trainworks_cannot_keep_its_code(language: str) -> None:
    with pytest.raises(UsageError, match=f"a job as {language} cannot keep its code"):
        job_in_format(read_request(_run()), language)


def _commit(folder: Path) -> str:
    """Commit `train.sh`, and return the hash."""
    git = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.com", "-C", str(folder)]
    for words in (["init", "--quiet"], ["add", "train.sh"], ["commit", "--quiet", "--message=one"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_code_that_cannot_be_kept_leaves_no_run(code: Path) -> None:
    (code / "link").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="leads out of"):
        trainworks.submit(_run(), folder=code / "runs")
    assert not list((code / "runs").glob("kept*"))


def test_code_that_is_too_large_for_a_secret_of_kubernetes_leaves_no_run(code: Path) -> None:
    (code / ".env").unlink()
    (code / "weights.bin").write_bytes(os.urandom(2**20))
    target = _run() | {"cluster": {"engine": "kubernetes", "kubernetes": {"image": "python:3.12"}}}
    with pytest.raises(UsageError, match=r"the code is 1\.0\d MB packed") as refused:
        trainworks.submit(target, folder=code / "runs")
    assert ".trainworksignore" in (refused.value.hint or "")
    assert not list((code / "runs").glob("kept*"))
