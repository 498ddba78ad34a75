"""Images encoded anew: stored as training would have seen them, nothing is lost unnamed, a kill costs a shard."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from trainworks.cli.app import app
from trainworks.config.data import Data, DataSource, Reencoding
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.worker.data import images
from trainworks.worker.data.images import ImageFile, decode_crop, image_files, make_image_shards
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.prepare import prepare
from trainworks.worker.data.reader import BatchReader
from trainworks.worker.data.reencoding import Reencoder, encode_file
from trainworks.worker.tasks.open_task import MapStyleDataset

image_module = pytest.importorskip("PIL.Image", reason="images need trainworks[images]")

FORMATS = {"webp": "WEBP", "jpeg": "JPEG"}
SMALL = 32


def wavy(width=96, height=64) -> np.ndarray:
    """A smooth image, grey, of 8 bits, whose left and upper side differ from the others."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (120 * x + 60 * y + 50 * np.sin(7 * x * y)).clip(0, 255).astype(np.uint8)


def colours() -> np.ndarray:
    return np.stack([wavy(), 255 - wavy(), wavy() // 2], axis=-1)


def turned(path):
    exif = image_module.Exif()
    exif[0x0112] = 6
    image_module.fromarray(colours()).save(path, exif=exif, quality=95)


KINDS = {
    "rgb.jpg": lambda path: image_module.fromarray(colours()).save(path, quality=95),
    "turned.jpg": turned,
    "cmyk.jpg": lambda path: image_module.fromarray(colours()).convert("CMYK").save(path, quality=95),
    "grey.png": lambda path: image_module.fromarray(wavy()).save(path),
    "grey16.png": lambda path: image_module.fromarray(wavy().astype(np.uint16) * 257).save(path),
    "palette.png": lambda path: image_module.fromarray(colours()).quantize(64).save(path),
    "alpha.webp": lambda path: image_module.fromarray(
        np.dstack([colours(), np.full((64, 96), 200, dtype=np.uint8)])
    ).save(path, lossless=True),
}


def crop(content) -> np.ndarray:
    return decode_crop(content, "x", SMALL, None).astype(int)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format_", FORMATS)
def test_training_sees_the_stored_image_as_it_saw_the_source(tmp_path, kind, format_):
    path = tmp_path / kind
    KINDS[kind](path)
    stored = encode_file(ImageFile(str(path), 0, 0), Reencoding(format=format_, quality=95, size=48))
    with image_module.open(io.BytesIO(stored)) as image:
        assert image.format == FORMATS[format_]
        assert image.size == ((48, 72) if kind == "turned.jpg" else (72, 48))
    difference = np.abs(crop(stored) - crop(path.read_bytes()))
    assert difference.mean() < 3
    assert crop(stored).std() > 10


def test_a_camera_that_was_turned_gives_an_upright_image_in_training(tmp_path):
    turned(tmp_path / "turned.jpg")
    upright = image_module.fromarray(np.rot90(colours(), -1).copy())
    upright.save(tmp_path / "upright.png")
    ours, theirs = (crop((tmp_path / name).read_bytes()) for name in ("turned.jpg", "upright.png"))
    assert np.abs(ours - theirs).mean() < 3


def test_grey_of_16_bits_is_not_white(tmp_path):
    KINDS["grey16.png"](tmp_path / "a.png")
    KINDS["grey.png"](tmp_path / "b.png")
    assert np.abs(crop((tmp_path / "a.png").read_bytes()) - crop((tmp_path / "b.png").read_bytes())).max() <= 1


def test_an_image_that_is_never_enlarged_keeps_its_size_and_a_grey_jpeg_is_grey(tmp_path):
    KINDS["grey.png"](tmp_path / "a.png")
    stored = encode_file(ImageFile(str(tmp_path / "a.png"), 0, 0), Reencoding(format="jpeg", size=4000))
    with image_module.open(io.BytesIO(stored)) as image:
        assert (image.size, image.mode) == ((96, 64), "L")


def test_an_image_larger_than_pillow_takes_is_named(tmp_path, monkeypatch):
    KINDS["grey.png"](tmp_path / "a.png")
    monkeypatch.setattr(image_module, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(EnvironmentProblem, match="cannot decode image `x`: Image size"):
        crop((tmp_path / "a.png").read_bytes())


@pytest.fixture
def pictures(tmp_path):
    """Six images of each of two classes, one of them cut off, one that is none."""
    for number in range(12):
        path = tmp_path / "pictures" / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image_module.fromarray(np.roll(colours(), 8 * number, axis=1)).save(path)
    cut = tmp_path / "pictures" / "a" / "00.png"
    cut.write_bytes(cut.read_bytes()[:500])
    (tmp_path / "pictures" / "b" / "01.png").write_bytes(b"no image")
    return tmp_path / "pictures"


def test_the_command_says_what_it_gained_and_names_what_is_damaged(pictures, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    options = ["data", "prepare", str(pictures), "--images", "--format", "webp", "--quality", "60", "--processes", "1"]
    shown = CliRunner().invoke(app, options, catch_exceptions=False).stdout
    made = json.loads(CliRunner().invoke(app, [*options, "--json"], catch_exceptions=False).stdout)
    gain = made["gain"]
    assert (made["num_items"], made["damaged"], gain["sample"]) == (10, 2, 10)
    sizes = [file.stat().st_size for file in pictures.rglob("*.png") if file.name not in ("00.png", "01.png")]
    assert gain["source_bytes"] == sum(sizes) > made["num_bytes"]
    assert "encoded      webp, quality 60: " in shown and "dB, of a sample of 10" in shown
    assert "storage      1,000 images/s read " in shown
    assert "left out     2 images that cannot be decoded" in shown
    lines = (tmp_path / "cache" / "data").glob("image-shards-*/damaged.jsonl")
    damaged = [json.loads(line) for line in next(lines).read_text().splitlines()]
    assert [each["image"].rpartition("/")[2] for each in damaged] == ["00.png", "01.png"]
    assert "0x" not in damaged[1]["problem"]
    folder, _ = prepare(Data(source=made["folder"], image_size=SMALL), tmp_path / "cache")
    batch = open_dataset(folder, Data(source=made["folder"], image_size=SMALL)).gather(np.arange(10), np.arange(10))
    assert batch["labels"].tolist() == [0] * 5 + [1] * 5


def encoder(source, **how):
    files = image_files(source)[1]
    return closing(Reencoder(files, Reencoding(**({"format": "webp"} | how)), image_size=SMALL, processes=1))


def test_a_lower_quality_takes_fewer_bytes_and_loses_more(pictures):
    source = DataSource(source=str(pictures))
    with encoder(source, quality=95) as fine, encoder(source, quality=5) as coarse:
        assert coarse.share < fine.share < 1
        assert 10 < coarse.gain.psnr_db < fine.gain.psnr_db < 80


KILLED = """
import os, signal, sys
from pathlib import Path
from trainworks.config.data import DataSource, Reencoding
from trainworks.worker.data import images
from trainworks.worker.data.reencoding import encode_file

class Encoder:
    share = 1.0
    shards = 0
    def encoded(self, files):
        self.shards += 1
        for file in files:
            yield encode_file(file, Reencoding(format="webp"))
        if self.shards == 2:
            os.kill(os.getpid(), signal.SIGKILL)

images._SHARD_BYTES = int(sys.argv[3])
images.make_image_shards(DataSource(source=sys.argv[1]), Path(sys.argv[2]), lambda done, total: None, Encoder())
"""


def test_a_killed_preparation_goes_on_with_the_next_shard_and_gives_the_same_bytes(pictures, tmp_path, monkeypatch):
    source, seen = DataSource(source=str(pictures)), []
    total = sum(file.num_bytes for file in image_files(source)[1])
    program = [sys.executable, "-c", KILLED, str(pictures), str(tmp_path / "shards"), str(total // 3)]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "shards").exists()
    with encoder(source) as real:
        monkeypatch.setattr(images, "_SHARD_BYTES", real.share * total / 3)
        whole = make_image_shards(source, tmp_path / "whole", lambda done, total: None, real)
        encoded = real.encoded
        monkeypatch.setattr(real, "encoded", lambda files: seen.extend(files) or encoded(files))
        card = make_image_shards(source, tmp_path / "shards", lambda done, total: None, real)
    assert (card.shards, card.damaged, card.gain.source_bytes) == (whole.shards, 2, whole.gain.source_bytes)
    assert len(card.shards) == 3 and len(seen) == 8
    assert (tmp_path / "shards" / "damaged.jsonl").read_bytes() == (tmp_path / "whole" / "damaged.jsonl").read_bytes()


def test_a_file_that_goes_away_ends_the_preparation_and_is_not_left_out(pictures):
    source = DataSource(source=str(pictures))
    files = image_files(source)[1]
    with encoder(source) as real:
        (pictures / "a" / "02.png").unlink()
        with pytest.raises(EnvironmentProblem, match=r"cannot read image `.*02.png`"):
            list(real.encoded(files))


def test_images_of_which_none_can_be_decoded_are_refused(tmp_path):
    (tmp_path / "p" / "a").mkdir(parents=True)
    (tmp_path / "p" / "a" / "a.png").write_bytes(b"no image")
    with pytest.raises(UsageError, match="none of the 1 images"), encoder(DataSource(source=str(tmp_path / "p"))):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "webp"], "only images are encoded anew"),
        (["--images", "--quality", "3"], "quality and size belong to a format"),
    ],
)
def test_options_that_belong_together_are_asked_for(pictures, options, message):
    result = CliRunner().invoke(app, ["data", "prepare", str(pictures), *options])
    assert message in str(result.exception)


class Decoded:
    """Stand-in for what a pipeline of DALI gives."""

    def __init__(self, pixels):
        self._pixels = pixels

    def as_cpu(self):
        return self

    def as_array(self):
        return self._pixels


class Pipeline:
    """Stand-in for a pipeline of DALI: encoded images are fed to it, and it gives one decoded batch for each feed."""

    def __init__(self):
        self._batches = iter(())

    def feed_input(self, name, encoded):
        assert name == "encoded"
        self._batches = iter([np.stack([decode_crop(content, "x", SMALL, None) for content in encoded])])

    def run(self):
        return (Decoded(next(self._batches)),)


class DecodedElsewhere:
    """The dataset of the guide."""

    fingerprint = "pictures"

    def __init__(self, paths):
        self._paths, self._pipeline = paths, Pipeline()

    def __len__(self):
        return len(self._paths)

    def gather(self, indices, samples):
        self._pipeline.feed_input("encoded", [np.fromfile(self._paths[index], np.uint8) for index in indices])
        (pixels,) = self._pipeline.run()
        return {"images": pixels.as_cpu().as_array(), "labels": np.asarray(indices)}


def batches(dataset, *, dp, first_step=0):
    readers = [
        BatchReader(
            dataset, seed=1, global_batch=4, micro_batch=2, dp_rank=rank, dp=dp, first_step=first_step, last_step=6
        )
        for rank in range(dp)
    ]
    steps = [[reader.next_batch() for reader in readers] for _ in range(first_step, 6)]
    for reader in readers:
        reader.close()
    return [
        sorted((int(label), int(image.int().sum())) for batch in step for label, image in pairs(batch))
        for step in steps
    ]


def pairs(batch):
    return zip(batch["labels"].flatten(), batch["images"].flatten(0, 1), strict=True)


def test_a_decoder_of_ones_own_keeps_the_samples_on_any_ranks_and_after_a_resume(pictures):
    paths = sorted(path for path in pictures.rglob("*.png") if path.name not in ("00.png", "01.png"))
    dataset = MapStyleDataset(DecodedElsewhere(paths), "module.py")
    whole = batches(dataset, dp=1)
    assert batches(dataset, dp=2) == whole
    assert batches(dataset, dp=2, first_step=3) == whole[3:]
    assert len({label for step in whole[:2] for label, _ in step}) == 8


RUN = """
import os, signal, sys
import numpy as np
from pathlib import Path
from trainworks.config.data import Data
from trainworks.worker.data.opening import open_dataset
from trainworks.worker.data.store import Store

folder, address, log, last = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
files = type(Store("/").fs)
opened = files.open
def counted(self, path, *arguments, **options):
    with open(log, "a") as file:
        file.write(path.rpartition("/")[2] + "\\n")
    return opened(self, path, *arguments, **options)
files.open = counted
dataset = open_dataset(folder, Data(source=address, image_size=16, shuffle_shards=1), augment=False)
order = dataset.order(1)
for sample in range(last):
    samples = np.array([sample])
    print(dataset.gather(order(samples), samples)["images"].sum(), flush=True)
if last < len(dataset):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_runs_and_a_killed_one_share_what_a_cache_fetched_from_a_shared_folder(pictures, tmp_path, monkeypatch):
    """A shared file system is named by `file://`, as a store whose shards every node copies once."""
    monkeypatch.setenv("TRAINWORKS_CACHE", str(tmp_path / "cache"))
    source = DataSource(source=str(pictures))
    with encoder(source) as real:
        total = sum(file.num_bytes for file in image_files(source)[1])
        monkeypatch.setattr(images, "_SHARD_BYTES", real.share * total / 4)
        card = make_image_shards(source, tmp_path / "shared", lambda done, total: None, real)
    address = f"file://{tmp_path}/shared"
    folder, _ = prepare(Data(source=address, image_size=16), tmp_path / "cards")
    log = tmp_path / "opened.txt"

    def start(last):
        program = [sys.executable, "-c", RUN, str(folder), address, str(log), str(last)]
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    both = [start(5), start(10)]
    killed, whole = (run.communicate()[0].split() for run in both)
    again = start(10).communicate()[0].split()
    assert both[0].returncode == -signal.SIGKILL
    assert again == whole and len(whole) == 10 and killed == whole[:5]
    fetched = [name for name in log.read_text().split() if name.startswith("images-")]
    assert sorted(set(fetched)) == sorted(card.shards) and len(card.shards) == 4
    assert len(fetched) <= 2 * len(card.shards)  # once, and once more what the kill interrupted; not three times
