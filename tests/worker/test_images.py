"""Images: one folder per class or shards of them, decoded into batches that do not depend on the ranks."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.data import Data, DataSource
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.data.images import ImageShard, joined, make_image_shards
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.reader import BatchReader

image_module = pytest.importorskip("PIL.Image", reason="images need trainworks[images]")

SUFFIXES = {"cat": ".png", "dog": ".jpg", "emu": ".webp"}


@pytest.fixture
def pictures(tmp_path):
    """Five images of each of three classes; the red of an image says which it is."""
    for label, (name, suffix) in enumerate(SUFFIXES.items()):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            picture = image_module.new("RGB", (40 + 10 * number, 30), (60 * label + 10 * number, 99, 7))
            picture.save(tmp_path / "pictures" / name / f"{number}{suffix}", quality=100)
    return tmp_path / "pictures"


def data(source, **changes) -> Data:
    return Data(**({"source": str(source), "image_size": 16} | changes))


def opened(source, tmp_path, **options):
    folder, _ = prepare(data(source), tmp_path / "cache")
    return open_dataset(folder, data(source), **options)


def test_folders_are_classes_in_alphabetical_order(pictures, tmp_path):
    _, card = prepare(data(pictures), tmp_path / "cache")
    assert card.classes == ("cat", "dog", "emu")


def test_every_format_is_decoded_with_its_label(pictures, tmp_path):
    dataset = opened(pictures, tmp_path, augment=False)
    batch = dataset.gather(np.arange(15), np.arange(15))
    assert (batch["images"].shape, batch["images"].dtype) == ((15, 16, 16, 3), np.uint8)
    assert batch["labels"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    red = batch["images"][:, 8, 8, 0].astype(int)
    assert abs(red - [60 * label + 10 * number for label in range(3) for number in range(5)]).max() <= 4


def test_shards_hold_the_images_of_the_folders(pictures, tmp_path):
    make_image_shards(DataSource(source=str(pictures)), tmp_path / "shards", lambda done, total: None)
    of_shards, of_folders = (opened(at, tmp_path, augment=False) for at in (tmp_path / "shards", pictures))
    ours, theirs = (each.gather(np.arange(15), np.arange(15)) for each in (of_shards, of_folders))
    assert (ours["images"] == theirs["images"]).all() and (ours["labels"] == theirs["labels"]).all()


def test_prepared_images_are_no_text(pictures, tmp_path):
    make_image_shards(DataSource(source=str(pictures)), tmp_path / "shards", lambda done, total: None)
    with pytest.raises(UsageError, match="holds prepared images, not tokens"):
        prepare(Data(source=str(tmp_path / "shards"), sequence_length=8), tmp_path / "cache")


def test_an_interrupted_shard_is_made_again_and_a_finished_one_is_not(pictures, tmp_path):
    source = DataSource(source=str(pictures))
    card = make_image_shards(source, tmp_path / "whole", lambda done, total: None)
    work = tmp_path / ".shards.making"
    work.mkdir()
    (work / "images-00000.bin").write_bytes(b"half")
    assert make_image_shards(source, tmp_path / "shards", lambda done, total: None) == card


def test_a_shard_that_another_version_finished_is_made_again(pictures, tmp_path):
    source = DataSource(source=str(pictures))
    card = make_image_shards(source, tmp_path / "whole", lambda done, total: None)
    work = tmp_path / ".shards.making"
    work.mkdir()
    (name, shard) = next(iter(card.shards.items()))
    shutil.copy(tmp_path / "whole" / name, work)
    (work / f"{name}.json").write_text(shard.model_dump_json())  # version 0.1 kept no more of it
    assert make_image_shards(source, tmp_path / "shards", lambda done, total: None) == card


def test_another_seed_crops_other_pixels(pictures, tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    image_module.fromarray(noise).save(pictures / "cat" / "0.png")
    same, samples = np.zeros(8, dtype=np.int64), np.arange(8)
    first, again, other = (opened(pictures, tmp_path, seed=seed).gather(same, samples)["images"] for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_augmentation_depends_on_seed_and_sample_number_only(pictures, tmp_path):
    dataset = opened(pictures, tmp_path)
    alone = dataset.gather(np.array([7]), np.array([3]))["images"][0]
    among = dataset.gather(np.array([1, 7, 7]), np.array([9, 3, 4]))["images"]
    assert (among[1] == alone).all()


@pytest.mark.parametrize(("dp", "micro_batch"), [(2, 1), (1, 2), (4, 1)])
def test_the_batches_do_not_depend_on_the_ranks(pictures, tmp_path, dp, micro_batch):
    dataset = opened(pictures, tmp_path)

    def batches(dp, micro_batch):
        readers = [
            BatchReader(
                dataset, seed=1, global_batch=4, micro_batch=micro_batch, dp_rank=r, dp=dp, first_step=0, last_step=6
            )
            for r in range(dp)
        ]
        steps = [[reader.next_batch() for reader in readers] for _ in range(6)]
        return [sorted(int(i.int().sum()) for b in step for i in b["images"].flatten(0, 1)) for step in steps]

    assert batches(dp, micro_batch) == batches(1, 4)


def test_images_without_class_folders_are_refused(tmp_path):
    (tmp_path / "loose").mkdir()
    image_module.new("RGB", (8, 8)).save(tmp_path / "loose" / "a.png")
    with pytest.raises(UsageError, match="holds no folders of images, but loose ones"):
        prepare(data(tmp_path / "loose"), tmp_path / "cache")


def test_an_image_that_is_none_is_named(pictures, tmp_path):
    (pictures / "cat" / "0.png").write_bytes(b"no image")
    dataset = opened(pictures, tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"cannot decode image `.*cat/0.png`"):
        dataset.gather(np.array([0]), np.array([0]))


@given(st.lists(st.tuples(st.binary(max_size=50), st.integers(0, 2**32 - 1)), max_size=20))
def test_a_shard_gives_back_what_was_put_in(pairs):
    shard = ImageShard(np.frombuffer(joined([i for i, _ in pairs], [n for _, n in pairs]), dtype=np.uint8))
    assert [(shard.encoded(n).tobytes(), int(shard.labels[n])) for n in range(len(shard))] == pairs
