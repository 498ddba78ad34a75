"""Processor time per image: Trainworks' decoder of images and NVIDIA DALI's on the processor.

    pip install nvidia-dali-cuda120
    python benchmarks/image_decoding.py FOLDER --rounds 7

FOLDER has one folder of JPEG files per class. Both shrink the shorter side to 256 pixels, take a random crop of 224 and
mirror half of the crops, with one thread; they take turns, and a ratio is formed within a round. DALI gets its files by
`external_source`, as the guide on your own model feeds it: then the samples stay those of the run. DALI runs here as it
does where there is no GPU. The difference of both on the same centre crop stands beside them: it says whether they make
the same picture.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainworks.config.data import DataSource
from trainworks.worker.data.images import decode_crop, image_files

SIZE, SHORTER = 224, 256

Decode = Callable[[list[bytes]], list[NDArray[np.uint8]]]


def trainworks(random: bool) -> Decode:
    """The decoder of a training run, on one thread."""

    def decode(images: list[bytes]) -> list[NDArray[np.uint8]]:
        keys = [(0, number) if random else None for number in range(len(images))]
        size = SIZE if random else SHORTER  # without a crop at random the shorter side becomes the size at once
        return [decode_crop(image, "image", size, key) for image, key in zip(images, keys, strict=True)]

    return decode


def dali(random: bool, batch: int) -> Decode:
    """A pipeline of DALI that does the same."""
    size = SIZE if random else SHORTER
    module: Any = importlib.import_module("nvidia.dali")
    fn, types = module.fn, module.types

    def steps() -> Any:
        encoded = fn.external_source(name="encoded", no_copy=True)
        images = fn.decoders.image(encoded, device="cpu", output_type=types.RGB)
        images = fn.resize(images, resize_shorter=SHORTER, interp_type=types.INTERP_TRIANGULAR)
        if random:
            place = {f"crop_pos_{axis}": fn.random.uniform(range=(0.0, 1.0)) for axis in "xy"}
            return fn.flip(fn.crop(images, crop=(size, size), **place), horizontal=fn.random.coin_flip())
        return fn.crop(images, crop=(size, size))

    pipeline = module.pipeline_def(batch_size=batch, num_threads=1, device_id=None, prefetch_queue_depth=1)(steps)()
    pipeline.build()

    def decode(images: list[bytes]) -> list[NDArray[np.uint8]]:
        pipeline.feed_input("encoded", [np.frombuffer(image, np.uint8) for image in images])
        (pixels,) = pipeline.run()
        return list(pixels.as_array())

    return decode


def main() -> None:
    """Measure, and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=64, help="images of one call")
    wanted = parser.parse_args()
    files = [Path(file.path) for file in image_files(DataSource(source=str(wanted.folder)))[1]]
    images = [files[number % len(files)].read_bytes() for number in range(wanted.batch)]
    contenders = {"trainworks": trainworks(random=True), "dali": dali(random=True, batch=wanted.batch)}
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    for decode in contenders.values():
        decode(images)  # buffers are allocated
    for number in range(wanted.rounds):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            before = time.process_time()
            contenders[name](images)
            spent[name].append(time.process_time() - before)
    for name, seconds in spent.items():
        print(f"{name:10} {wanted.batch / statistics.median(seconds):7.0f} images/s of a core")
    ratios = [ours / theirs for ours, theirs in zip(spent["trainworks"], spent["dali"], strict=True)]
    print(f"time of trainworks over dali: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    pairs = zip(trainworks(random=False)(images), dali(random=False, batch=wanted.batch)(images), strict=True)
    apart = np.mean([np.abs(ours.astype(int) - theirs).mean() for ours, theirs in pairs])
    print(f"mean difference of a pixel of the same crop: {apart:.2f} of 255")


if __name__ == "__main__":
    main()
