"""The tier of checkpoints in the shared memory of nodes, beside those on disk.

Each node holds the files of its own ranks and copies of those of the node before it in a ring, so that the loss of one
node loses no file. A checkpoint exists if one node has its manifest and every file is intact on some node; before
it is loaded, each node gets the files that it lacks.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import torch
import torch.distributed as dist
from torch import Tensor

from trainworks.errors import EnvironmentProblem
from trainworks.record.manifest import (
    MANIFEST,
    Damage,
    Manifest,
    check_file,
    delete_checkpoint,
    parse_manifest,
    write_manifest,
)
from trainworks.record.run_dir import RunDir
from trainworks.recover.memory_checkpoints import forget_ended, make_memory_folder
from trainworks.worker.checkpoint.failures import first_of_any_rank, gather_values
from trainworks.worker.checkpoint.metadata import WrittenFile

_CHUNK_BYTES = 16 << 20
"""Bytes of one message: what a copy takes of memory beside the files."""
Found = tuple[int, Path, Manifest | Damage]
"""Step, folder on this node, and manifest of a checkpoint that was complete once."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A file that another rank sends, and what it has to be."""

    path: Path
    file: WrittenFile


def swap_files(
    outgoing: Sequence[Path], incoming: Sequence[Incoming], *, to: int, source: int, group: dist.ProcessGroup
) -> Damage | None:
    """Send files to one rank while receiving files from another, 16 MiB at a time.

    The other ranks make the matching calls, in a gloo group whose only traffic this is. Files without content are made
    without a message, and incoming files anew. `to` is unused without `outgoing`, and `source` without `incoming`.

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
    two wait for each other. Of several holders of a file, the targets take turns. `held` names the intact files of each
    node.

    >>> transfers(["a", "b"], [frozenset("a"), frozenset("ab")])
    [Transfer(name='b', source=1, target=0)]
    >>> transfers(["a", "b"], [frozenset("a"), frozenset("a")])
    'b'
    """
    found: list[Transfer] = []
    for name in names:
        holders = [node for node, names_there in enumerate(held) if name in names_there]
        if not holders:
            return name
        missing = [node for node, names_there in enumerate(held) if name not in names_there]
        found += [Transfer(name, holders[turn % len(holders)], node) for turn, node in enumerate(missing)]
    return found


class MemoryTier:
    """Where checkpoints in memory are, one each `every` steps; none when None, or if one rank cannot have it.

    `group` is that of the checkpointer. `place` is the number of this rank's node among all nodes of the job; nodes on
    one machine have a folder each. Every node has `ranks_per_node` ranks, numbered one after the other; all when None.
    """

    def __init__(
        self,
        run_dir: RunDir,
        every: int | None,
        group: dist.ProcessGroup,
        *,
        place: int = 0,
        ranks_per_node: int | None = None,
    ) -> None:
        self._rank, world_size = dist.get_rank(), dist.get_world_size()
        self._per_node = ranks_per_node or world_size
        self._nodes = world_size // self._per_node
        if every is not None and self._is_first:
            forget_ended()
        folder = None if every is None else make_memory_folder(run_dir, place)
        has_none = every is not None and first_of_any_rank(None if folder else True, group)
        self._place = None if folder is None or has_none else RunDir(folder)
        self._every = every
        self._group = group
        self.problem: str | None = None
        """Why this rank could not write to memory; the ranks agree at the next flush to stop."""

    def is_due(self, step: int) -> bool:
        """Whether a checkpoint of this step goes to memory."""
        return self._every is not None and step % self._every == 0 and self._place is not None

    def folder(self, step: int) -> Path:
        """Folder of a checkpoint on this node."""
        assert self._place is not None
        return self._place.checkpoint(step)

    def holds(self, folder: Path) -> bool:
        """Whether a checkpoint is in memory."""
        return self._place is not None and folder.parent == self._place.checkpoints

    def completes(self, folder: Path) -> bool:
        """Whether this rank completes and deletes the checkpoint: the first of its node in memory, rank 0 on disk."""
        return self._is_first if self.holds(folder) else self._rank == 0

    def copy_to_peer(self, folder: Path, written: Sequence[Mapping[str, WrittenFile]]) -> None:
        """Send this rank's files to the next node and take those of the node before; every rank calls this.

        Rank r sends to r + ranks per node and receives from r - ranks per node, modulo the number of ranks.
        `written` has the files of each rank by name.

        Raises:
            EnvironmentProblem: the copy of a file failed, on any rank.
        """
        if self._nodes == 1:
            return
        to, source = ((self._rank + step) % len(written) for step in (self._per_node, -self._per_node))
        damage = swap_files(
            [folder / name for name in written[self._rank]],
            [Incoming(folder / name, file) for name, file in written[source].items()],
            to=to,
            source=source,
            group=self._group,
        )
        if (failed := first_of_any_rank(damage, self._group)) is not None:
            raise EnvironmentProblem(f"cannot copy a checkpoint to the memory of the next node: {failed}")

    def await_record(self) -> None:
        """Wait until rank 0 allows completion, too: other nodes do not see what it has written to the record."""
        if self._nodes > 1:
            dist.barrier(self._group)

    def keep_only(self, step: int) -> None:
        """Delete all others: two are in memory only while one is written."""
        for other, folder in self._folders():
            if other != step:
                delete_checkpoint(folder)

    def found(self) -> list[Found]:
        """Every checkpoint that some node completed; every rank calls this. Incomplete ones are deleted."""
        if self._place is None:
            return []
        own = {step: _manifest(folder) for step, folder in self._folders()} if self._is_first else {}
        by_step: dict[int, list[Manifest]] = {}
        for each in gather_values(own, self._group):
            for step, manifest in each.items():
                by_step.setdefault(step, []).extend([manifest] if manifest else [])
        for step, manifests in by_step.items():
            if not manifests and self._is_first:
                delete_checkpoint(self.folder(step))
        return [  # a kill during a rollback leaves manifests that differ: the later one skips what it was for
            (step, self.folder(step), max(manifests, key=lambda manifest: manifest.samples_consumed))
            for step, manifests in by_step.items()
            if manifests
        ]

    def restore(self, manifest: Manifest, folder: Path) -> Damage | None:
        """Give every node all files of a checkpoint, each from a node where it is intact; every rank calls this.

        Returns:
            A file that no node has or that could not be copied, the same on every rank.
        """
        names = sorted(manifest.files)
        share = names[self._rank % self._per_node :: self._per_node]
        intact = gather_values({name for name in share if check_file(folder, manifest, name) is None}, self._group)
        held = [
            frozenset[str]().union(*intact[node * self._per_node : (node + 1) * self._per_node])
            for node in range(self._nodes)
        ]
        planned = transfers(names, held)
        if isinstance(planned, str):
            return Damage(planned, "no node has an intact copy")
        damage: Damage | None = None
        if self._is_first:
            folder.mkdir(parents=True, exist_ok=True)
            node = self._rank // self._per_node
            for each in planned:
                file = WrittenFile(manifest.checksums[each.name], manifest.files[each.name])
                if node == each.source:
                    swap_files([folder / each.name], [], to=each.target * self._per_node, source=-1, group=self._group)
                elif node == each.target:
                    incoming = [Incoming(folder / each.name, file)]
                    peer = each.source * self._per_node
                    damage = swap_files([], incoming, to=-1, source=peer, group=self._group) or damage
            if damage is None and _manifest(folder) != manifest:
                write_manifest(folder, manifest)
        return first_of_any_rank(damage, self._group)

    def forget(self) -> None:
        """Free the memory of this node: the run is over, or all of it is on disk."""
        if self._place is not None and self._is_first:
            shutil.rmtree(self._place.path, ignore_errors=True)

    @property
    def _is_first(self) -> bool:
        return self._rank % self._per_node == 0

    def _folders(self) -> list[tuple[int, Path]]:
        return [] if self._place is None else self._place.checkpoint_folders()


def _manifest(folder: Path) -> Manifest | None:
    """The manifest of a checkpoint of which this node may have some files only; None if it was not completed here."""
    try:
        manifest = parse_manifest((folder / MANIFEST).read_bytes())
    except OSError:
        return None
    return manifest if isinstance(manifest, Manifest) else None
