r"""Shards of encoded images.

A file is, all little-endian:  magic b"TWIMG1\0\0" | n: u64 | offsets: u64[n + 1], from the start of the file |
labels: u32[n], padded to 8 bytes | the encoded images, one after the other as they were found (JPEG, PNG, WebP).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trainworks.errors import EnvironmentProblem
from trainworks.worker.data.shards import Bytes

__all__ = ["ImageShard", "joined"]

_MAGIC = b"TWIMG1\0\0"


def joined(images: Sequence[bytes], labels: Sequence[int]) -> bytes:
    """The content of a shard."""
    label_bytes = np.asarray(labels, dtype="<u4").tobytes()
    label_bytes += b"\0" * (-len(label_bytes) % 8)
    begin = len(_MAGIC) + 8 + 8 * (len(images) + 1) + len(label_bytes)
    offsets = begin + np.cumsum([0, *(len(image) for image in images)], dtype="<u8")
    head = _MAGIC + np.uint64(len(images)).astype("<u8").tobytes()
    return b"".join([head, offsets.astype("<u8").tobytes(), label_bytes, *images])


class ImageShard:
    """A view of a shard's content.

    Raises:
        EnvironmentProblem: it is none.
    """

    def __init__(self, content: Bytes) -> None:
        if len(content) < 16 or content[:8].tobytes() != _MAGIC:
            raise EnvironmentProblem("not a shard of images", hint="trainworks data verify")
        count = int(content[8:16].view("<u8")[0])
        after = 16 + 8 * (count + 1)
        self._content = content
        self._offsets = content[16:after].view("<u8")
        self.labels: NDArray[np.uint32] = content[after : after + 4 * count].view("<u4")

    def __len__(self) -> int:
        return len(self.labels)

    def encoded(self, number: int) -> Bytes:
        """One image as it was found."""
        return self._content[int(self._offsets[number]) : int(self._offsets[number + 1])]
