"""A checkpoint in shared memory is newer than that on disk, and never in its way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.worker.ranks import on_ranks
from tests.worker.test_damaged_checkpoints import LAST, NEWER, OLDER, Training, flip_middle
from trainworks.files import take_lock
from trainworks.record.events.log import Event, read_events
from trainworks.record.manifest import MANIFEST
from trainworks.record.run_dir import RunDir
from trainworks.recover import memory_checkpoints
from trainworks.recover.memory_checkpoints import (
    SHARED_MEMORY,
    forget_memory,
    make_memory_folder,
    memory_folder,
    place_of_node,
)
from trainworks.worker.checkpoint.memory import MemoryTier, transfers
from trainworks.worker.checkpoint.shards import ShardWriter


@pytest.fixture(scope="module", autouse=True)
def alone():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class InMemory(Training):
    """Training with a tier in memory."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.checkpointer.memory = MemoryTier(self.run_dir, 1, self.checkpointer.group)

    def save_to_memory(self, step: int) -> None:
        """Complete a checkpoint in memory."""
        parts = [self.module]
        self.checkpointer.save(step, parts, self.optimizer, samples_consumed=step, to_memory=True)
        self.checkpointer.allow_completion()
        self.checkpointer.await_copy()
        self.checkpointer.wait()

    def shard(self, step: int) -> Path:
        """A file in memory."""
        return self.checkpointer.memory.folder(step) / "rank-0.safetensors"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory of a run that is alive, whose shared memory is a folder of this test."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(memory_checkpoints, "SHARED_MEMORY", tmp_path / "shm")
    run_dir = RunDir(tmp_path / "run-1")
    run_dir.path.mkdir()
    lock = take_lock(run_dir.lock_file)
    assert lock is not None
    yield run_dir.path
    os.close(lock)


@pytest.fixture
def saved(path: Path) -> tuple[InMemory, dict[int, list[float]]]:
    """Training with step 2 on disk, steps 3 and 4 in memory, and its curve."""
    training = InMemory(path)
    curve = training.train(0, OLDER)
    training.save(OLDER)
    for step in (OLDER + 1, NEWER):
        curve |= training.train(step - 1, step)
        training.save_to_memory(step)
    return training, curve | training.train(NEWER)


def test_a_restart_goes_on_from_memory_bit_identically(saved, path: Path) -> None:
    again = InMemory(path)
    assert again.resume() == NEWER
    assert again.train(NEWER)[LAST] == saved[1][LAST]


def test_one_checkpoint_is_in_memory(saved, path: Path) -> None:
    folders = memory_folder(RunDir(path)).glob("node-0/checkpoints/*")
    assert [folder.name for folder in folders] == ["step-00000004"]
    assert [event["kind"] for event in read_events(RunDir(path).events_file)] == ["checkpoint"]


@pytest.mark.parametrize("hurt", [flip_middle, Path.unlink, lambda shard: (shard.parent / MANIFEST).unlink()])
def test_what_is_damaged_or_unfinished_in_memory_is_passed_over_for_the_disk(saved, path: Path, hurt) -> None:
    hurt(saved[0].shard(NEWER))
    again = InMemory(path)
    assert again.resume() == OLDER
    assert again.train(OLDER)[LAST] == saved[1][LAST]
    assert again.damage_events() == []
    assert not saved[0].shard(NEWER).parent.exists()


def test_a_newer_checkpoint_on_disk_is_taken(saved, path: Path) -> None:
    saved[0].save(LAST)
    assert InMemory(path).resume() == LAST


def test_memory_that_is_full_ends_the_tier_and_not_the_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = InMemory(path)
    training.train(0, OLDER)
    with monkeypatch.context() as patched:
        patched.setattr(ShardWriter, "_write_items", _raise_full)
        training.save_to_memory(OLDER)
    assert training.checkpointer.failure is None
    assert "no space left" in (training.checkpointer.memory.problem or "")
    (event,) = read_events(training.run_dir.events_file)
    assert event["kind"] == "memory_checkpoints_ended"
    training.save(OLDER)
    assert InMemory(path).resume() == OLDER


def _raise_full(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_run_that_ends_frees_its_memory_and_that_of_runs_whose_supervisor_is_gone(tmp_path: Path, path: Path) -> None:
    runs = [RunDir(path), RunDir(tmp_path / "live"), RunDir(tmp_path / "dead"), RunDir(tmp_path / "gone")]
    for run in runs[1:3]:
        run.path.mkdir()
    folders = [make_memory_folder(run, 0) for run in runs]
    lock, dead = take_lock(runs[1].lock_file), take_lock(runs[2].lock_file)
    assert lock is not None and dead is not None
    os.close(dead)
    forget_memory(runs[0])
    os.close(lock)
    assert [folder is not None and folder.exists() for folder in folders] == [False, True, False, False]


def test_memory_that_others_can_read_is_not_used(path: Path) -> None:
    folder = memory_folder(RunDir(path))
    folder.parent.mkdir(mode=0o755)
    folder.parent.chmod(0o755)
    assert make_memory_folder(RunDir(path), 0) is None
    training = InMemory(path)
    assert not training.checkpointer.memory.is_due(1)


def test_the_folder_in_memory_is_the_users_own(path: Path) -> None:
    folder = make_memory_folder(RunDir(path), 0)
    assert folder is not None
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert Path("/dev/shm") == SHARED_MEMORY


def test_a_copy_of_every_file_is_on_another_node_and_is_enough_to_resume(path: Path) -> None:
    root, steps = path.parent / "shm", (OLDER, OLDER + 1)
    undisturbed, saved = zip(*on_ranks(3, _train_and_save, path, root, steps), strict=True)
    assert saved == (
        ["metadata.json", "rank-0.safetensors", "rank-2.safetensors"],
        ["metadata.json", "rank-0.safetensors", "rank-1.safetensors"],
        ["rank-1.safetensors", "rank-2.safetensors"],
    )
    node_folders = [memory_folder(RunDir(path)) / f"node-{node}" for node in range(3)]
    shutil.rmtree(node_folders[0])
    resumed = on_ranks(3, _resume_and_train, path, root)
    assert resumed == [(steps[-1], curve) for curve in undisturbed]
    flip_middle(node_folders[1] / "checkpoints" / "step-00000003" / "rank-1.safetensors")
    assert on_ranks(3, _resume_and_train, path, root) == resumed


def test_without_two_neighbouring_nodes_no_checkpoint_in_memory_is_left(path: Path) -> None:
    root = path.parent / "shm"
    on_ranks(3, _train_and_save, path, root, (OLDER,))
    for node in (1, 2):
        shutil.rmtree(memory_folder(RunDir(path)) / f"node-{node}")
    assert [step for step, _ in on_ranks(3, _resume_and_train, path, root)] == [0, 0, 0]


def _on_three_nodes(path: Path, root: Path) -> InMemory:
    """Training with a rank on each of three nodes of this machine."""
    memory_checkpoints.SHARED_MEMORY = root
    training = InMemory(path)
    rank = dist.get_rank()
    training.checkpointer.memory = MemoryTier(
        training.run_dir, 1, training.checkpointer.group, place=rank, ranks_per_node=1
    )
    return training


def _train_and_save(path: Path, root: Path, steps: tuple[int, ...]) -> tuple[dict[int, list[float]], list[str]]:
    training = _on_three_nodes(path, root)
    for before, step in zip((0, *steps), steps, strict=False):
        training.train(before, step)
        training.save_to_memory(step)
    files = {file.name for file in training.checkpointer.memory.folder(steps[-1]).iterdir()}
    return training.train(steps[-1]), sorted(files - {MANIFEST})


def _resume_and_train(path: Path, root: Path) -> tuple[int, dict[int, list[float]]]:
    training = _on_three_nodes(path, root)
    step = training.resume()
    return step, training.train(step)


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (["ab", "ab"], []),
        (["ab", ""], [("a", 0, 1), ("b", 0, 1)]),
        (["a", "b"], [("a", 0, 1), ("b", 1, 0)]),
        (["", "ab", "ab"], [("a", 1, 0), ("b", 1, 0)]),
        (["a", "a", "b", "b"], [("a", 0, 2), ("a", 1, 3), ("b", 2, 0), ("b", 3, 1)]),
        (["a", "a"], "b"),
    ],
)
def test_nodes_get_what_they_lack_from_those_that_have_it(held: list[str], expected: object) -> None:
    planned = transfers(["a", "b"], [frozenset(names) for names in held])
    assert (planned if isinstance(planned, str) else [astuple(each) for each in planned]) == expected


@pytest.mark.parametrize(
    ("events", "place"), [([], 1), ([{"kind": "resized", "places": [0, 2]}, {"kind": "attempt"}], 2)]
)
def test_a_node_keeps_its_folder_when_the_job_shrinks(events: list[Event], place: int) -> None:
    assert place_of_node(1, events) == place
