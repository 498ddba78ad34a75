"""`trainworks checkpoint`: what is damaged is named, and a copy is complete or absent."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import trainworks
from tests.plan.shapes import layout
from trainworks.agent.launch import take_run
from trainworks.api.run_handle import Run
from trainworks.cli.app import app
from trainworks.config.spec import CheckpointCopy
from trainworks.errors import EnvironmentProblem, TrainworksError, UsageError
from trainworks.host.copies import places as module
from trainworks.record.events.log import append_event
from trainworks.record.manifest import MANIFEST, Manifest, checksum, write_manifest
from trainworks.record.run_dir import RunDir


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that has ended, with checkpoints of steps 10, 20 and 30, each of two files."""
    monkeypatch.chdir(tmp_path)
    ended = trainworks.run(["true"])
    for step in (10, 20, 30):
        save(ended.run_dir, step)
    return ended


def save(run_dir: RunDir, step: int, text: str = "") -> Path:
    """A complete checkpoint."""
    folder = run_dir.checkpoint(step)
    names = ("__0_0.distcp", "model/part")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((text + name).encode() * step)
    manifest = Manifest(
        step=step,
        attempt=1,
        created_at=1.0,
        layout=layout(),
        samples_consumed=step,
        data_fingerprint="",
        torch="2.13.0",
        files={name: (folder / name).stat().st_size for name in names},
        checksums={name: checksum(folder / name) for name in names},
    )
    write_manifest(folder, manifest)
    return folder


def test_the_places_that_wait_for_the_newest_checkpoint_are_named(run: Run, tmp_path: Path) -> None:
    resolved = run.resolved
    places = (CheckpointCopy(to=str(tmp_path / "far")), CheckpointCopy(to="s3://bucket/runs"))
    checkpoint = resolved.run_file.checkpoint.model_copy(update={"copies": places})
    changed = resolved.run_file.model_copy(update={"checkpoint": checkpoint})
    run.run_dir.write_resolved(resolved.model_copy(update={"run_file": changed}))
    far, store = str(tmp_path / "far" / run.id), f"s3://bucket/runs/{run.id}"
    assert run.pending_copies() == [far, store]
    append_event(
        run.run_dir.events_file, {"kind": "checkpoint_copied", "step": 20, "to": far, "bytes": 1, "seconds": 0.1}
    )
    append_event(
        run.run_dir.events_file, {"kind": "checkpoint_copied", "step": 30, "to": store, "bytes": 1, "seconds": 0.1}
    )
    waited = CliRunner().invoke(app, ["wait", run.id])
    assert waited.stdout == f"{run.id} SUCCEEDED\n"
    assert waited.stderr == f"{run.id}: the newest checkpoint is still to be copied to {far}\n"
    append_event(
        run.run_dir.events_file, {"kind": "checkpoint_copied", "step": 30, "to": far, "bytes": 1, "seconds": 0.1}
    )
    assert run.pending_copies() == []


def flip_a_bit(path: Path) -> None:
    """Damage that the size does not show."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def call(*arguments: str) -> Result:
    """The command."""
    return CliRunner().invoke(app, ["checkpoint", *arguments])


def problems(*arguments: str) -> dict[int, str | None]:
    """Problem of each step."""
    return {row["step"]: row["problem"] for row in json.loads(call(*arguments, "--json").stdout)}


def test_every_checkpoint_is_listed_with_its_problem(run: Run) -> None:
    (run.run_dir.checkpoint(10) / "model/part").write_bytes(b"short")
    (run.run_dir.checkpoint(20) / MANIFEST).unlink()
    assert problems("ls") == {10: "model/part: 5 bytes instead of 100", 20: "manifest.json: missing", 30: None}
    lines = call("ls").stdout.splitlines()
    assert lines[0].split() == ["step", "size", "saved", "layout", "problem"] and len(lines) == 4


def test_a_flipped_bit_is_found_by_reading(run: Run) -> None:
    flip_a_bit(run.run_dir.checkpoint(20) / "__0_0.distcp")
    assert problems("ls")[20] is None
    assert problems("verify") == {10: None, 20: "__0_0.distcp: checksum differs", 30: None}
    assert [call("verify").exit_code, call("verify", "--step", "30").exit_code] == [1, 0]


def test_a_copy_comes_back(run: Run, tmp_path: Path) -> None:
    away = tmp_path / "away"
    assert call("copy", "--to", str(away)).stdout == f"{run.id}: {away}/step-00000030\n"
    copied = trainworks.copy_checkpoint(run, to=away, step=10)
    assert sorted(path.name for path in away.iterdir()) == ["step-00000010", "step-00000030"]
    shutil.rmtree(run.run_dir.checkpoints)
    assert call("restore", run.id, "--from", str(copied.folder)).exit_code == 0
    assert problems("verify") == {10: None}
    assert call("restore", run.id, "--from", str(copied.folder)).exit_code == 0


def test_a_copy_that_was_killed_is_absent_and_the_next_one_is_complete(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away, files = tmp_path / "away", []

    def killed(source: Path, target: Path) -> None:
        files.append(target)
        if len(files) == 2:
            raise KeyboardInterrupt
        shutil.copyfile(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(module.shutil, "copyfile", killed)
        with pytest.raises(KeyboardInterrupt):
            trainworks.copy_checkpoint(run, to=away)
    assert [path.name for path in away.iterdir()] == [".step-00000030.copying"]
    trainworks.copy_checkpoint(run, to=away)
    assert [path.name for path in away.iterdir()] == ["step-00000030"]


def test_a_damaged_checkpoint_is_neither_copied_nor_restored(run: Run, tmp_path: Path) -> None:
    flip_a_bit(run.run_dir.checkpoint(30) / "model/part")
    with pytest.raises(EnvironmentProblem, match="step 30 is damaged: model/part: checksum differs"):
        trainworks.copy_checkpoint(run, to=tmp_path / "away")
    assert list((tmp_path / "away").iterdir()) == []
    moved = run.run_dir.checkpoint(30).rename(tmp_path / "moved")
    with pytest.raises(EnvironmentProblem, match="is damaged"):
        trainworks.restore_checkpoint(moved, run)
    assert problems("ls") == {10: None, 20: None}


def test_a_damaged_checkpoint_of_a_run_is_replaced_by_its_copy(run: Run, tmp_path: Path) -> None:
    copied = trainworks.copy_checkpoint(run, to=tmp_path / "away").folder
    flip_a_bit(run.run_dir.checkpoint(30) / "model/part")
    trainworks.restore_checkpoint(copied, run)
    assert problems("verify") == {10: None, 20: None, 30: None}


def test_another_checkpoint_of_that_step_is_not_replaced(run: Run, tmp_path: Path) -> None:
    there = run.run_dir.checkpoint(30).rename(tmp_path / "step-00000030")
    save(run.run_dir, 30, text="another")
    with pytest.raises(UsageError, match="is another checkpoint"):
        trainworks.copy_checkpoint(run, to=tmp_path)
    (there / MANIFEST).unlink()
    assert trainworks.copy_checkpoint(run, to=tmp_path).folder == there
    assert (there / MANIFEST).exists()


def test_prune_keeps_the_newest_that_are_complete(run: Run) -> None:
    (run.run_dir.checkpoint(30) / MANIFEST).unlink()
    assert trainworks.prune_checkpoints(run, keep=1) > 0
    assert problems("ls") == {20: None}
    shutil.rmtree(run.run_dir.checkpoint(20))
    with pytest.raises(UsageError, match="has no complete checkpoint"):
        trainworks.prune_checkpoints(run)


def test_a_live_run_keeps_its_checkpoints(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = trainworks.copy_checkpoint(run, to=tmp_path / "away").folder
    lock = take_run(run.run_dir)
    monkeypatch.setattr("trainworks.agent.launch._HANDOVER_S", 0.0)
    try:
        for action in (("prune",), ("restore", "--from", str(copied))):
            refused = call(*action)
            assert isinstance(refused.exception, TrainworksError) and run.id in str(refused.exception)
    finally:
        os.close(lock)
    assert len(problems("ls")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("copy",), "`copy` needs a folder"),
        (("restore",), "`restore` needs the folder of a checkpoint"),
        (("restore", "--from", "nowhere"), "`nowhere` is not a complete checkpoint: manifest.json: missing"),
        (("verify", "--step", "7"), "no checkpoint of step 7"),
        (("ls", "no-such-run"), "no run `no-such-run`"),
    ],
)
def test_what_cannot_be_is_refused(run: Run, arguments: tuple[str, ...], message: str) -> None:
    assert message in str(call(*arguments).exception)
