"""A checkpoint exists when its manifest does, and is whole when every file has its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import LAUNCH_AT
from trainworks.config.layout import Layout, resolve_layout
from trainworks.record.manifest import (
    MANIFEST,
    Manifest,
    complete_checkpoints,
    delete_checkpoint,
    read_manifest,
    write_manifest,
)
from trainworks.record.run_dir import RunDir

KILLED_WHILE_DELETING = """
import os, sys
from pathlib import Path
from trainworks.record.manifest import delete_checkpoint
sys.addaudithook(lambda event, _: os._exit(9) if event == "shutil.rmtree" else None)
delete_checkpoint(Path(sys.argv[1]))
"""


def save(run_dir: RunDir, step: int) -> Path:
    """A complete checkpoint of two files."""
    folder = run_dir.checkpoint(step)
    folder.mkdir()
    (folder / "rank-0.safetensors").write_bytes(b"x" * 100)
    (folder / "rank-1.safetensors").write_bytes(b"x" * 50)
    manifest = Manifest(
        step=step,
        attempt=1,
        created_at=LAUNCH_AT,
        layout=resolve_layout(Layout(dp_shard=2), world_size=2, global_batch=4, micro_batch=1),
        samples_consumed=4 * step,
        data_fingerprint="abc",
        torch="2.13.0",
        files={"rank-0.safetensors": 100, "rank-1.safetensors": 50},
    )
    write_manifest(folder, manifest)
    return folder


def steps(run_dir: RunDir) -> list[int]:
    """Steps of the complete checkpoints."""
    return [manifest.step for manifest, _ in complete_checkpoints(run_dir)]


def test_a_manifest_is_read_as_it_was_written(run_dir: RunDir) -> None:
    manifest = read_manifest(save(run_dir, 10))
    assert manifest is not None
    assert (manifest.step, manifest.num_bytes) == (10, 150)


def test_a_checkpoint_without_its_manifest_is_not_complete(run_dir: RunDir) -> None:
    (save(run_dir, 10) / MANIFEST).unlink()
    assert steps(run_dir) == []


def test_a_checkpoint_whose_file_is_missing_is_not_complete(run_dir: RunDir) -> None:
    (save(run_dir, 10) / "rank-1.safetensors").unlink()
    assert steps(run_dir) == []


@pytest.mark.parametrize("size", [0, 49, 51])
def test_a_checkpoint_whose_file_has_another_size_is_not_complete(run_dir: RunDir, size: int) -> None:
    (save(run_dir, 10) / "rank-1.safetensors").write_bytes(b"x" * size)
    assert steps(run_dir) == []


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"\xff"])
def test_a_checkpoint_with_a_torn_manifest_is_not_complete(run_dir: RunDir, content: bytes) -> None:
    (save(run_dir, 10) / MANIFEST).write_bytes(content)
    assert steps(run_dir) == []


def test_complete_checkpoints_come_oldest_first(run_dir: RunDir) -> None:
    for step in (30, 10, 20):
        save(run_dir, step)
    (run_dir.checkpoint(20) / MANIFEST).unlink()
    assert steps(run_dir) == [10, 30]


def test_a_deleted_checkpoint_leaves_nothing(run_dir: RunDir) -> None:
    delete_checkpoint(save(run_dir, 10))
    assert list(run_dir.checkpoints.iterdir()) == []


def test_a_kill_while_deleting_leaves_no_complete_checkpoint(run_dir: RunDir) -> None:
    folder = save(run_dir, 10)
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_DELETING, folder], check=False)
    assert (done.returncode, sorted(path.name for path in folder.iterdir())) == (
        9,
        ["rank-0.safetensors", "rank-1.safetensors"],
    )


def test_deleting_what_is_gone_does_nothing(run_dir: RunDir) -> None:
    delete_checkpoint(run_dir.checkpoint(10))
    assert steps(run_dir) == []
