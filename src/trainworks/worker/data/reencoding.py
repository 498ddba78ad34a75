"""Images encoded anew as WebP or JPEG, in several processes, and what that gains, measured on a sample.

An image is turned by its EXIF tag, shrunk and converted to RGB as training would convert it: CMYK becomes RGB, grey of
16 bits becomes grey of 8, transparency and colour profiles are dropped. JPEG keeps grey images grey.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import numpy as np

from trainworks.config.data import Reencoding
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.host.process_end import follow_parent
from trainworks.worker.data.card import ReencodingGain
from trainworks.worker.data.images import ImageFile, decode_crop, naming_image, read_image, upright
from trainworks.worker.data.store import extra

_SAMPLE = 32
_ROUNDS = 3
_CHUNK = 8
"""Images that a process takes at once."""
_SHARPNESS = 2
"""A JPEG is decoded at no less than this multiple of the size to which it is then filtered."""


def shrunk(content: bytes, name: str, how: Reencoding) -> Any:
    """The image of Pillow that is stored, before it is encoded: grey or RGB.

    Raises:
        EnvironmentProblem: it cannot be decoded.
    """
    image_module = extra("PIL.Image", "images")
    with naming_image(name), image_module.open(io.BytesIO(content)) as image:
        if how.size is not None:
            image.draft("RGB", (_SHARPNESS * how.size, _SHARPNESS * how.size))
        image.load()
        turned = upright(image)
        plain = turned if turned.mode == "L" and how.format == "jpeg" else turned.convert("RGB")
        if how.size is None or min(plain.size) <= how.size:
            return plain
        scale = how.size / min(plain.size)
        return plain.resize([round(side * scale) for side in plain.size], image_module.Resampling.LANCZOS)


def encoded_image(image: Any, name: str, how: Reencoding) -> bytes:
    """An image of Pillow in the stored format.

    Raises:
        EnvironmentProblem: the format does not take it; a WebP has at most 16,383 pixels per side.
    """
    stored = io.BytesIO()
    with naming_image(name, verb=f"store as {how.format}"):
        image.save(
            stored, how.format.upper(), quality=how.quality, **({"optimize": True} if how.format == "jpeg" else {})
        )
    return stored.getvalue()


def encode_file(file: ImageFile, how: Reencoding) -> bytes | str:
    """The stored form of an image, or why it has none; a file that cannot be read ends the preparation."""
    content = read_image(file)
    try:
        return encoded_image(shrunk(content, file.path, how), file.path, how)
    except EnvironmentProblem as problem:
        return problem.message


class Reencoder:
    """Encodes images in a pool of processes; what it gives depends on the images and settings alone.

    Raises:
        UsageError: no image of the sample can be decoded.
        EnvironmentProblem: an image cannot be read.
    """

    def __init__(self, files: Sequence[ImageFile], how: Reencoding, *, image_size: int, processes: int) -> None:
        self.gain, self.share = _measured(files, how, image_size)
        self._pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=follow_parent,
            initargs=(os.getpid(),),
        )

    def encoded(self, files: Sequence[ImageFile]) -> Iterator[bytes | str]:
        """The stored form of each image in order, or why it cannot be decoded.

        Raises:
            EnvironmentProblem: a file cannot be read, or a process was killed.
        """
        try:
            yield from self._pool.map(partial(encode_file, how=self.gain.how), files, chunksize=_CHUNK)
        except BrokenProcessPool:
            raise EnvironmentProblem(
                "a process that encodes images was killed, perhaps for want of memory",
                hint="ask again, with fewer `--processes`: finished shards are kept",
            ) from None

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _measured(files: Sequence[ImageFile], how: Reencoding, image_size: int) -> tuple[ReencodingGain, float]:
    """Gain of a sample that is spread over all classes, and bytes after over bytes before."""
    places = np.unique(np.linspace(0, len(files) - 1, _SAMPLE).astype(int))
    before: list[bytes] = []
    after: list[bytes] = []
    squares = values = 0.0
    for file in (files[place] for place in places):
        content = read_image(file)
        try:
            image = shrunk(content, file.path, how)
            stored = encoded_image(image, file.path, how)
        except EnvironmentProblem:
            continue  # counted and named when all images are encoded
        before.append(content)
        after.append(stored)
        wanted, found = (np.asarray(each.convert("RGB"), np.float32) for each in (image, shrunk(stored, "", how)))
        squares += float(((wanted - found) ** 2).sum(dtype=np.float64))
        values += wanted.size
    if not after:
        raise UsageError(
            f"none of the {len(places)} images of a sample can be decoded", place=files[int(places[0])].path
        )
    old, new = _images_per_s(before, image_size), _images_per_s(after, image_size)
    gain = ReencodingGain(
        how=how,
        source_bytes=0,
        sample=len(after),
        image_size=image_size,
        source_images_per_s=old,
        images_per_s=new,
        psnr_db=10 * math.log10(255**2 * values / squares) if squares else None,
    )
    return gain, sum(map(len, after)) / sum(map(len, before))


def _images_per_s(images: Sequence[bytes], image_size: int) -> float:
    """Images that one core decodes and crops as training does, per second of this thread's processor time."""
    seconds = []
    for _ in range(_ROUNDS):
        begun = time.thread_time()
        for number, content in enumerate(images):
            decode_crop(content, "of the sample", image_size, (0, number))
        seconds.append(time.thread_time() - begun)
    return len(images) / min(seconds)
