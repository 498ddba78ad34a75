"""A damaged checkpoint is passed over for the one before it, or refused; no flipped bit is loaded in silence."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.utils._pytree import tree_map_only

from tests.lanes import amount
from tests.worker.ranks import on_ranks
from trainworks.config.layout import ResolvedLayout
from trainworks.config.optimizer import Optimizer
from trainworks.config.recovery import Guard
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.record.events.log import read_events
from trainworks.record.manifest import (
    MANIFEST,
    Damage,
    Manifest,
    check_file,
    check_manifest,
    checksum,
    describe_damage,
    write_manifest,
)
from trainworks.record.run_dir import RunDir
from trainworks.worker import session
from trainworks.worker.checkpoint import failures
from trainworks.worker.checkpoint.checkpointer import Checkpointer
from trainworks.worker.checkpoint.shards import LoadPlannerOfValues, SavePlannerOfValues, ShardWriter, reader_of
from trainworks.worker.checkpoint.state import whole_state
from trainworks.worker.mesh import Mesh
from trainworks.worker.optimizer import StepOptimizer

OLDER, NEWER, LAST = 2, 4, 6
OFFSETS = amount(test=50, test_all=997, nightly=10**9)
FILES = ["metadata.json", "rank-0.safetensors", MANIFEST]


class Training:
    """A linear model that is trained by `dp_replicate` ranks on numbers made from the step."""

    def __init__(self, path: Path, *, keep: int = 2, width: int = 8) -> None:
        world_size = dist.get_world_size()
        layout = ResolvedLayout(
            dp_replicate=world_size, dp_shard=1, cp=1, tp=1, pp=1, ep=1, micro_batch=1, grad_accum_steps=1
        )
        torch.manual_seed(1)
        self.run_dir = RunDir(path)
        self.module = nn.Linear(width, 4)
        self.optimizer = StepOptimizer(
            [self.module],
            Mesh(layout, "cpu"),
            Optimizer(),
            num_steps=LAST,
            precision="fp32",
            device=torch.device("cpu"),
            guard=Guard(spike="skip"),
        )
        template = {"attempt": 1, "layout": layout, "data_fingerprint": "of-nothing"}
        self.checkpointer = Checkpointer(self.run_dir, dist.new_group(backend="gloo"), keep=keep, template=template)

    def resume(self) -> int:
        """The step that training goes on from."""
        manifest = self.checkpointer.load_newest([self.module], self.optimizer)
        return 0 if manifest is None else manifest.step

    def train(self, after: int, to: int = LAST) -> dict[int, list[float]]:
        """All weights after each step, to the last bit."""
        weights = {}
        for step in range(after + 1, to + 1):
            values = torch.arange(16.0).reshape(2, 8).add(step).sin()
            loss = self.module(values).square().sum()
            loss.backward()
            self.optimizer.step(step - 1, loss.detach())
            weights[step] = [value for each in self.module.parameters() for value in each.flatten().tolist()]
        return weights

    def save(self, step: int) -> None:
        """Complete a checkpoint."""
        self.checkpointer.save(step, [self.module], self.optimizer, samples_consumed=step)
        self.checkpointer.allow_completion()
        self.checkpointer.await_copy()
        self.checkpointer.wait()
        assert self.checkpointer.failure is None

    def damage_events(self) -> list[dict]:
        """What the record says of damaged checkpoints."""
        return [event for event in read_events(self.run_dir.events_file) if event["kind"] == "checkpoint_damaged"]


def save_two(path: Path) -> dict[int, list[float]]:
    """Train to the end with two checkpoints; returns the weights after each step."""
    training = Training(path)
    curve = training.train(0, OLDER)
    training.save(OLDER)
    curve |= training.train(OLDER, NEWER)
    training.save(NEWER)
    return curve | training.train(NEWER)


@pytest.fixture(scope="module", autouse=True)
def alone():
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def saved(alone, tmp_path_factory):
    """A run directory with two good checkpoints, and the curve that led through them."""
    path = tmp_path_factory.mktemp("saved") / "run-1"
    path.mkdir()
    return path, save_two(path)


@pytest.fixture
def run(saved, tmp_path):
    """A copy of that run directory, to be damaged."""
    return RunDir(shutil.copytree(saved[0], tmp_path / "run-1"))


@pytest.fixture
def curve(saved):
    """Weights after each step of the undisturbed training."""
    return saved[1]


def flip(file: Path, offset: int) -> None:
    content = bytearray(file.read_bytes())
    content[offset] ^= 1 << (offset % 8)
    file.write_bytes(content)


def flip_head(file: Path) -> None:
    flip(file, 0)


def flip_middle(file: Path) -> None:
    flip(file, file.stat().st_size // 2)


def flip_tail(file: Path) -> None:
    flip(file, file.stat().st_size - 1)


def cut_short(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def remove(file: Path) -> None:
    file.unlink()


DAMAGE = [flip_head, flip_middle, flip_tail, cut_short, empty, zero, remove]


def write_as_before(run: RunDir, *, checksums: bool = False) -> Path:
    """Make the newest checkpoint one of a version that pickled the metadata, and at first wrote no checksums."""
    folder = run.checkpoint(NEWER)
    fields = json.loads((folder / MANIFEST).read_bytes())
    training = Training(run.path)
    training.resume()
    shutil.rmtree(folder)
    dcp.save(whole_state([training.module], training.optimizer), checkpoint_id=folder)
    del fields["crc32"]
    manifest = Manifest.model_validate_json(json.dumps(fields))
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    sums = {name: checksum(folder / name) for name in files} if checksums else {}
    write_manifest(folder, manifest.model_copy(update={"files": files, "checksums": sums}))
    if not checksums:
        fields = json.loads((folder / MANIFEST).read_bytes())
        del fields["checksums"], fields["crc32"]
        (folder / MANIFEST).write_text(json.dumps(fields))
    return folder


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_training_goes_on_bit_identically_from_the_older_checkpoint(run, curve, file, damage):
    damage(run.checkpoint(NEWER) / file)
    training = Training(run.path)
    assert training.resume() == OLDER
    assert training.train(OLDER) == {step: weights for step, weights in curve.items() if step > OLDER}


def test_an_undamaged_checkpoint_is_loaded_bit_identically_and_nothing_is_said(run, curve):
    training = Training(run.path)
    assert training.resume() == NEWER
    assert training.train(NEWER) == {step: weights for step, weights in curve.items() if step > NEWER}
    assert training.damage_events() == []


def test_a_flipped_bit_in_any_tensor_is_found(run, curve):
    """Weights, moments, step counts, random state, the guard's window: each has bytes of its own in the shard."""
    folder = run.checkpoint(NEWER)
    shard = folder / "rank-0.safetensors"
    good = shard.read_bytes()
    places = reader_of(folder).read_metadata().storage_data
    kinds = {index.fqn.partition(".")[0] for index in places}
    assert {"model", "optimizer", "judge"} <= kinds
    for place in places.values():
        shard.write_bytes(good)
        flip(shard, place.start + place.num_bytes // 2)
        training = Training(run.path)
        assert training.resume() == OLDER
        assert training.train(OLDER, NEWER)[NEWER] == curve[NEWER]


@pytest.mark.parametrize("file", FILES)
def test_a_flipped_bit_in_any_byte_is_found(run, file):
    folder = run.checkpoint(NEWER)
    manifest = check_manifest(folder)
    good = (folder / file).read_bytes()
    for offset in range(0, len(good), max(1, len(good) // OFFSETS)):
        (folder / file).write_bytes(good)
        flip(folder / file, offset)
        found = check_manifest(folder) if file == MANIFEST else check_file(folder, manifest, file)
        assert isinstance(found, Damage), offset


def test_the_record_names_the_damaged_file_and_the_step_to_go_on_from(run):
    flip_middle(run.checkpoint(NEWER) / "rank-0.safetensors")
    training = Training(run.path)
    training.resume()
    (event,) = training.damage_events()
    assert describe_damage(event) == (
        "checkpoint of step 4 is damaged: rank-0.safetensors: checksum differs; resuming from step 2"
    )


class _Mark:
    """Unpickled by Python, it leaves a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.mkdir, (str(self._path),)


def with_mark(metadata: Path, mark: Path) -> bytes:
    """The pickled metadata with a call of `os.mkdir` in it."""
    with metadata.open("rb") as file:
        stored = pickle.load(file)
    stored.planner_data["model.weight"] = _Mark(mark)
    return pickle.dumps(stored)


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint, with the checksums to it."""
    (folder / name).write_bytes(content)
    fields = json.loads((folder / MANIFEST).read_bytes())
    fields["files"][name], fields["checksums"][name] = len(content), zlib.crc32(content)
    del fields["crc32"]
    write_manifest(folder, Manifest.model_validate_json(json.dumps(fields)))


def test_a_pickle_in_the_place_of_metadata_is_not_run(run, tmp_path):
    """Its checksum is right: a user who can write the folder can compute it."""
    folder, mark = write_as_before(run, checksums=True), tmp_path / "mark"
    forge(folder, ".metadata", with_mark(folder / ".metadata", mark))
    training = Training(run.path)
    assert training.resume() == OLDER
    (event,) = training.damage_events()
    assert ".metadata names `posix.mkdir`" in event["problem"]
    assert not mark.exists()
    dcp.FileSystemReader(folder).read_metadata()
    assert mark.exists(), "torch's own reader runs it: the test would see it"


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "..", ""])
def test_metadata_that_points_outside_of_the_checkpoint_is_refused(run, name):
    folder = run.checkpoint(NEWER)
    fields = json.loads((folder / "metadata.json").read_bytes())
    next(iter(fields["tensors"].values()))["chunks"][0]["file"] = name
    forge(folder, "metadata.json", json.dumps(fields).encode())
    training = Training(run.path)
    assert training.resume() == OLDER
    assert "no place in a checkpoint" in training.damage_events()[0]["problem"]


def test_a_pickle_among_the_values_is_not_run(tmp_path):
    dcp.save({"count": 3}, storage_writer=ShardWriter(tmp_path), planner=SavePlannerOfValues())
    fields, content = json.loads((tmp_path / "metadata.json").read_bytes()), io.BytesIO()
    torch.save(_Mark(tmp_path / "mark"), content)
    (tmp_path / "evil").write_bytes(content.getvalue())
    fields["values"]["count"] = {"file": "evil", "start": 0, "bytes": len(content.getvalue())}
    (tmp_path / "metadata.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointException, match="`count` is not a plain value"):
        dcp.load({"count": 0}, storage_reader=reader_of(tmp_path), planner=LoadPlannerOfValues())
    assert not (tmp_path / "mark").exists()


def test_every_value_that_can_be_saved_is_loaded(tmp_path):
    state = {
        "numbers": [1, 2.5, True, None, 3j],
        "text": "ä",
        "numpy": np.random.default_rng(1).bit_generator.state,
        "generator": ("MT19937", np.arange(5, dtype=np.uint32), np.float64(0.5)),
        "tensors": {f"{dtype}": torch.ones(2, 3).to(dtype) for dtype in (torch.bfloat16, torch.bool, torch.int64)},
        "scalar": torch.tensor(7.0),
        "empty": torch.empty(0, 4),
        "slice": torch.arange(12.0).reshape(3, 4).T,
    }
    dcp.save(state, storage_writer=ShardWriter(tmp_path), planner=SavePlannerOfValues())
    loaded = tree_map_only(torch.Tensor, torch.zeros_like, state) | {"numbers": [0] * 5, "text": ""}
    dcp.load(loaded, storage_reader=reader_of(tmp_path), planner=LoadPlannerOfValues())
    assert repr(loaded) == repr(state)


def test_a_value_that_only_code_could_load_is_refused_at_the_save(tmp_path):
    with pytest.raises(CheckpointException, match=r"cannot save `it`, a Path: loading it could run code|a PosixPath"):
        dcp.save({"it": tmp_path}, storage_writer=ShardWriter(tmp_path), planner=SavePlannerOfValues())


def test_a_checkpoint_with_pickled_metadata_is_loaded_bit_identically(run, curve):
    write_as_before(run, checksums=True)
    training = Training(run.path)
    assert training.resume() == NEWER
    assert training.train(NEWER)[LAST] == curve[LAST]
    assert training.damage_events() == []


def test_other_tools_open_a_shard(run):
    opened = safetensors.torch.load_file(run.checkpoint(NEWER) / "rank-0.safetensors")
    training = Training(run.path)
    training.resume()
    assert torch.equal(opened["model.weight"], training.module.weight)


def test_a_damaged_checkpoint_stays_on_disk_and_does_not_count_for_those_to_keep(run):
    flip_middle(run.checkpoint(NEWER) / "rank-0.safetensors")
    training = Training(run.path, keep=1)
    training.resume()
    training.train(OLDER, OLDER + 1)
    training.save(OLDER + 1)
    assert [step for step, _ in run.checkpoint_folders()] == [OLDER + 1, NEWER]
    assert Training(run.path).resume() == OLDER + 1


def test_a_checkpoint_that_is_saved_again_is_good_again(run, curve):
    zero(run.checkpoint(NEWER) / "rank-0.safetensors")
    training = Training(run.path)
    training.resume()
    training.train(OLDER, NEWER)
    training.save(NEWER)
    found = training.checkpointer.newest()
    assert found is not None and found[0].step == NEWER
    again = Training(run.path)
    assert again.resume() == NEWER
    assert again.train(NEWER)[LAST] == curve[LAST]


def test_a_checkpoint_damaged_after_it_was_loaded_is_found_at_the_next_rollback(run):
    training = Training(run.path)
    assert training.resume() == NEWER
    flip_middle(run.checkpoint(NEWER) / "rank-0.safetensors")
    found = training.checkpointer.newest()
    assert found is not None and found[0].step == OLDER


def test_where_no_checkpoint_can_be_loaded_the_error_names_all_that_were_tried(run):
    flip_middle(run.checkpoint(NEWER) / "rank-0.safetensors")
    remove(run.checkpoint(OLDER) / "metadata.json")
    training = Training(run.path)
    with pytest.raises(EnvironmentProblem) as raised:
        training.resume()
    assert raised.value.message == (
        "no checkpoint can be loaded: step 4: rank-0.safetensors: checksum differs; step 2: metadata.json: missing"
    )
    assert "start a new run" in raised.value.hint and "resume" not in raised.value.hint
    assert [event["fallback_step"] for event in training.damage_events()] == [None, None]
    assert len(run.checkpoint_folders()) == 2


def test_a_save_that_was_cut_off_is_deleted_and_not_called_damaged(run):
    remove(run.checkpoint(NEWER) / MANIFEST)
    remove(run.checkpoint(OLDER) / MANIFEST)
    training = Training(run.path)
    assert training.resume() == 0
    assert training.damage_events() == run.checkpoint_folders() == []


def test_another_model_is_an_error_of_its_own_and_no_older_checkpoint_is_tried(run):
    training = Training(run.path, width=6)
    with pytest.raises(UsageError, match=r"step 4 does not fit the model: Size mismatch .* for model.weight") as raised:
        training.resume()
    assert "start a new run" in raised.value.hint
    assert training.damage_events() == []


def test_a_file_that_cannot_be_read_is_passed_over(run):
    shard = run.checkpoint(NEWER) / "rank-0.safetensors"
    shard.unlink()
    shard.symlink_to(shard)
    training = Training(run.path)
    assert training.resume() == OLDER
    (event,) = training.damage_events()
    assert event["problem"] == "cannot be read: Too many levels of symbolic links"


def _trained_by_a_session(path: str, num_steps: int) -> tuple[int, list[float]]:
    """A loop of one's own: the step that it goes on from, and its last weights."""
    os.environ["TRAINWORKS_RUN_DIR"] = path
    torch.manual_seed(1)
    module = nn.Linear(8, 4)
    optimizer = torch.optim.AdamW(module.parameters())
    steps = session.start(module, optimizer, num_steps=num_steps, checkpoint_every=2)
    first = steps.steps_done
    for step in steps:
        loss = module(torch.arange(16.0).reshape(2, 8).add(step).sin()).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps.log(loss=loss)
    return first, [value for each in module.parameters() for value in each.flatten().tolist()]


def test_a_loop_of_ones_own_passes_over_a_damaged_checkpoint(tmp_path):
    path = tmp_path / "run-1"
    path.mkdir()
    ((_, weights),) = on_ranks(1, _trained_by_a_session, str(path), 6)
    flip_middle(RunDir(path).checkpoint(6) / "rank-0.safetensors")
    assert on_ranks(1, _trained_by_a_session, str(path), 6) == [(4, weights)]


# Of versions that wrote no checksums


def test_a_checkpoint_without_checksums_is_loaded_and_nothing_is_said(run, curve):
    write_as_before(run)
    training = Training(run.path)
    assert training.resume() == NEWER
    assert training.train(NEWER)[LAST] == curve[LAST]
    assert training.damage_events() == []


@pytest.mark.parametrize("file", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_without_checksums_that_cannot_be_read_is_passed_over(run, curve, file):
    zero(write_as_before(run) / file)
    training = Training(run.path)
    assert training.resume() == OLDER
    assert training.train(OLDER)[LAST] == curve[LAST]
    (event,) = training.damage_events()
    assert describe_damage(event).startswith("checkpoint of step 4 cannot be loaded: ")


def test_a_manifest_that_lost_its_checksum_is_damaged(run):
    folder = run.checkpoint(NEWER)
    fields = json.loads((folder / MANIFEST).read_bytes())
    del fields["crc32"]
    (folder / MANIFEST).write_text(json.dumps(fields))
    assert Training(run.path).resume() == OLDER


# Several ranks


def _saved_by_ranks(path: str) -> dict[int, list[float]]:
    return save_two(Path(path))


def _resumed_by_ranks(path: str) -> tuple[int, dict[int, list[float]], list[str]]:
    """The step, the weights after it, and the files whose checksums this rank compared."""
    read: list[str] = []
    check = failures.check_file
    failures.check_file = lambda folder, manifest, name: (read.append(name), check(folder, manifest, name))[1]
    training = Training(Path(path))
    step = training.resume()
    return step, training.train(step), read


@pytest.fixture(scope="module")
def saved_by_two(alone, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run-1"
    path.mkdir()
    return path, on_ranks(2, _saved_by_ranks, str(path))[0]


@pytest.fixture
def run_of_two(saved_by_two, tmp_path):
    return RunDir(shutil.copytree(saved_by_two[0], tmp_path / "run-1"))


def test_every_file_is_read_by_one_rank(run_of_two):
    results = on_ranks(2, _resumed_by_ranks, str(run_of_two.path))
    assert [step for step, _, _ in results] == [NEWER, NEWER]
    assert [read for _, _, read in results] == [["metadata.json", "rank-0.safetensors"], ["rank-1.safetensors"]]


@pytest.mark.parametrize("file", ["metadata.json", "rank-0.safetensors", "rank-1.safetensors", MANIFEST])
def test_all_ranks_pass_over_what_one_of_them_finds(run_of_two, saved_by_two, file):
    flip_middle(run_of_two.checkpoint(NEWER) / file)
    results = on_ranks(2, _resumed_by_ranks, str(run_of_two.path))
    assert [step for step, _, _ in results] == [OLDER, OLDER]
    assert all(weights[LAST] == saved_by_two[1][LAST] for _, weights, _ in results)


def test_all_ranks_pass_over_what_one_of_them_cannot_load(run_of_two, saved_by_two):
    """Its checksum is right, and the file ends before the last tensor."""
    folder = run_of_two.checkpoint(NEWER)
    forge(folder, "rank-1.safetensors", (folder / "rank-1.safetensors").read_bytes()[:-8])
    results = on_ranks(2, _resumed_by_ranks, str(run_of_two.path))
    assert [step for step, _, _ in results] == [OLDER, OLDER]
    assert all(weights[LAST] == saved_by_two[1][LAST] for _, weights, _ in results)


def test_more_ranks_than_saved_it_compare_every_file_once(run_of_two):
    results = on_ranks(3, _resumed_by_ranks, str(run_of_two.path))
    assert sorted(name for _, _, read in results for name in read) == [
        "metadata.json",
        "rank-0.safetensors",
        "rank-1.safetensors",
    ]


def test_a_checksum_is_crc_32(tmp_path):
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") == zlib.crc32(content)
