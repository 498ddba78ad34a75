"""Copies of files between the memories of nodes, over a process group of the CPU."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.record.manifest import Damage

_CHUNK_BYTES = 16 << 20
"""Bytes of one message: what a copy takes of memory beside the files."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Checksum and size of a file, as its writer computed them."""

    crc32: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file that another rank sends, and what it has to be."""

    path: Path
    file: WrittenFile


def swap_files(
    outgoing: Sequence[Path], incoming: Sequence[Incoming], *, to: int, source: int, group: dist.ProcessGroup
) -> Damage | None:
    """Send files to one rank while receiving files from another, 16 MiB at a time.

    The other ranks make the matching calls. Files without content are made without a message.

    Args:
        outgoing: files of this rank, in the order in which `to` receives them.
        incoming: files of `source`, in the order in which it sends them; they are made new.
        to: rank that receives; unused without `outgoing`.
        source: rank that sends; unused without `incoming`.
        group: gloo group whose only traffic this is.

    Returns:
        The first file that could not be written, or differs from what its writer wrote; all messages are received
        nevertheless, so that the sender never waits.

    Raises:
        RuntimeError: the connection to a rank is lost.
    """
    damage: Damage | None = None
    for sent, received in zip_longest(outgoing, incoming):
        found = _swap_file(sent, received, to, source, group)
        damage = damage or found
    return damage


def _swap_file(
    sent: Path | None, received: Incoming | None, to: int, source: int, group: dist.ProcessGroup
) -> Damage | None:
    """Swap one file for another; either may be None."""
    size_out = sent.stat().st_size if sent else 0
    size_in = received.file.num_bytes if received else 0
    with ExitStack() as files:
        reader = files.enter_context(sent.open("rb")) if sent else None
        writer = files.enter_context(_Receiver(received)) if received else None
        for start in range(0, max(size_out, size_in), _CHUNK_BYTES):
            works = []
            if reader is not None and start < size_out:
                content = torch.frombuffer(bytearray(reader.read(_CHUNK_BYTES)), dtype=torch.uint8)
                works.append(dist.isend(content, to, group=group))
            chunk = torch.empty(max(0, min(_CHUNK_BYTES, size_in - start)), dtype=torch.uint8)
            if len(chunk):
                works.append(dist.irecv(chunk, source, group=group))
            for work in works:
                assert work is not None
                work.wait()
            if writer is not None and len(chunk):
                writer.take(chunk)
        return writer.damage() if writer is not None else None


class _Receiver:
    """Writes a file as its chunks arrive; after a failure it takes them all the same, and drops them."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming
        self._crc = 0
        self._file: BinaryIO | None = None
        self._problem: OSError | None = None

    def __enter__(self) -> _Receiver:
        try:
            self._file = self._incoming.path.open("wb", buffering=0)
        except OSError as error:
            self._problem = error
        return self

    def __exit__(self, *raised: object) -> None:
        if self._file is not None:
            self._file.close()

    def take(self, chunk: Tensor) -> None:
        """Append the bytes of a chunk, and count them into the checksum."""
        data = chunk.numpy().data
        self._crc = zlib.crc32(data, self._crc)
        if self._file is None or self._problem is not None:
            return
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:])
        except OSError as error:
            self._problem = error

    def damage(self) -> Damage | None:
        """What is wrong with the file, once all of it has arrived."""
        name = self._incoming.path.name
        if self._problem is not None:
            return Damage(name, f"cannot be written: {self._problem.strerror}")
        return None if self._crc == self._incoming.file.crc32 else Damage(name, "checksum differs after the copy")


@dataclass(frozen=True, slots=True)
class Transfer:
    """A file that one node sends to another."""

    name: str
    source: int
    target: int


def transfers(names: Sequence[str], held: Sequence[frozenset[str]]) -> list[Transfer] | str:
    """Copies after which every node has every file; the name of a file that no node has, if there is one.

    The order is the same on every rank. Each node handles its own copies one after the other in this order, so that no
    two wait for each other. Of several holders of a file, the targets take turns.

    >>> transfers(["a", "b"], [frozenset("a"), frozenset("ab")])
    [Transfer(name='b', source=1, target=0)]
    >>> transfers(["a", "b"], [frozenset("a"), frozenset("a")])
    'b'

    Args:
        names: of all files.
        held: names of the intact files that each node has.
    """
    found: list[Transfer] = []
    for name in names:
        holders = [node for node, names_there in enumerate(held) if name in names_there]
        if not holders:
            return name
        missing = [node for node, names_there in enumerate(held) if name not in names_there]
        found += [Transfer(name, holders[turn % len(holders)], node) for turn, node in enumerate(missing)]
    return found
