"""`trainworks rm` and `trainworks wait`: what goes, what stays, and who may."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import trainworks
from trainworks.api import retention
from trainworks.cli.app import app
from trainworks.errors import EnvironmentProblem, NotOwnerError, RunFailedError, UsageError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where runs are kept."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "runs"


def call(*arguments: str) -> Result:
    """A command, as a user without a terminal calls it."""
    return CliRunner().invoke(app, list(arguments))


def names() -> list[str]:
    """Runs that there are."""
    return [run.id for run in trainworks.runs()]


def test_a_run_that_ended_goes_and_its_job_stays() -> None:
    ended = trainworks.submit(["true"])
    ended.wait()
    other = trainworks.run(["true"])
    assert call("rm", ended.id, "--yes").exit_code == 0
    assert (names(), ended.path.exists()) == ([other.id], False)
    assert str(ended.path.resolve()) in [job.row.run_dir for job in trainworks.jobs()]


def test_checkpoints_go_and_the_record_stays() -> None:
    ended = trainworks.run(["true"])
    shard = ended.run_dir.checkpoint(7) / "shard"
    shard.parent.mkdir()
    shard.write_bytes(b"0" * 1000)
    printed = call("rm", ended.id, "--checkpoints", "--yes")
    assert printed.stdout.splitlines() == [f"{ended.id} SUCCEEDED: 1.00 kB of checkpoints", "1.00 kB freed"]
    assert (list(ended.run_dir.checkpoints.iterdir()), ended.state) == ([], "SUCCEEDED")


def test_runs_go_by_their_age(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = trainworks.run(["true"]), trainworks.run(["true"])
    end = new.status.updated_at
    monkeypatch.setattr(retention.time, "time", lambda: end + 60)
    status = old.run_dir.read_status()
    old.run_dir.write_status(status.model_copy(update={"updated_at": end - 100}))
    assert call("rm", "--older-than", "90 s", "--dry-run").stdout.startswith(f"{old.id} SUCCEEDED")
    assert len(names()) == 2
    call("rm", "--older-than", "90 s", "-y")
    assert names() == [new.id]


def test_a_run_that_runs_stays() -> None:
    running = trainworks.submit(["sleep", "60"])
    try:
        refused = call("rm", running.id, "--yes")
        assert isinstance(refused.exception, UsageError) and running.path.exists()
        with pytest.raises(UsageError):
            trainworks.remove(running)
    finally:
        running.stop(at_once=True)
        running.wait()


def test_a_run_of_somebody_else_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, me = trainworks.run(["true"]), os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(NotOwnerError, match="belongs to another user"):
        trainworks.remove(ended)
    assert retention.ended_before(age_s=-60.0) == []


@pytest.mark.parametrize(("arguments", "words"), [((), "no run is named"), (("x",), "no run `x`")])
def test_a_run_has_to_be_named(arguments: tuple[str, ...], words: str) -> None:
    assert words in str(call("rm", *arguments).exception)


def test_nothing_is_deleted_unless_somebody_confirms_it() -> None:
    ended = trainworks.run(["true"])
    assert "needs a terminal" in str(call("rm", ended.id).exception)
    assert names() == [ended.id]


def test_what_a_killed_deletion_left_goes_with_the_next_and_is_never_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = trainworks.run(["true"]), trainworks.run(["true"])

    def killed(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(retention.shutil, "rmtree", killed)
        with pytest.raises(EnvironmentProblem, match="cannot delete"):
            trainworks.remove(first)
    assert names() == [second.id] and len(list(first.path.parent.iterdir())) == 2
    trainworks.remove(second)
    assert list(first.path.parent.iterdir()) == []


def test_wait_has_the_exit_code_of_the_first_that_failed() -> None:
    good, bad = trainworks.submit(["true"]), trainworks.submit(["false"])
    waited = call("wait", good.id, bad.id)
    assert waited.stdout.splitlines() == [f"{good.id} SUCCEEDED", f"{bad.id} FAILED"]
    assert isinstance(waited.exception, RunFailedError)
    assert call("wait", good.id).exit_code == 0
    assert call("retry", bad.id).stdout == f"{bad.id} queued again\n"
    assert isinstance(call("wait").exception, RunFailedError)
