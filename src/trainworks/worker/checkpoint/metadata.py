"""metadata.json of a checkpoint: shape, type and place of every tensor, as JSON, so that reading it runs no code.

    {"format": "trainworks-checkpoint", "version": 1,
     "tensors": {NAME: {"dtype": "float32", "shape": [8, 4],
                        "chunks": [{"offset": [0, 0], "shape": [4, 4], "file": FILE, "start": 512, "bytes": 64}]}},
     "values": {NAME: {"file": FILE, "start": 0, "bytes": 96}},
     "paths": {NAME: ["optimizer", "state", 0]}}

`start` counts from the beginning of the file. A value is what is not a tensor. `paths` leads to each entry in the
nested state. The manifest holds the checksum of this file, as of all others.

Versions before it wrote `.metadata`, a pickle, which an unpickler for it alone reads.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import _get_layout

from trainworks.errors import EnvironmentProblem
from trainworks.record.manifest import METADATA

_FORMAT, _VERSION = "trainworks-checkpoint", 1
_DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}
LEGACY_METADATA = ".metadata"
_CLASSES = (
    "Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
    "TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING",
)  # fmt: skip
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(dcp_metadata.__name__, name): getattr(dcp_metadata, name) for name in _CLASSES},
    (_StorageInfo.__module__, _StorageInfo.__name__): _StorageInfo,
    ("torch", "Size"): torch.Size,
    (_get_layout.__module__, _get_layout.__name__): _get_layout,
    ("pathlib", "PosixPath"): PurePosixPath,
    **{("torch", name): value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
}


class UnreadableCheckpointError(EnvironmentProblem):
    """The files of a checkpoint have their sizes, and the state cannot be read from them."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes of a file of the checkpoint."""

    file: str
    start: int
    num_bytes: int

    def __post_init__(self) -> None:
        if Path(self.file).name != self.file or self.file in ("", "..") or min(self.start, self.num_bytes) < 0:
            raise UnreadableCheckpointError(f"no place in a checkpoint: `{self.file}` {self.start} {self.num_bytes}")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Checksum and size of a file, as its writer computed them."""

    crc32: int
    num_bytes: int


def encode(metadata: Metadata, places: Mapping[MetadataIndex, ByteRange]) -> bytes:
    """The content of metadata.json."""
    tensors, values = {}, {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            tensors[name] = {
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "shape": list(entry.size),
                "chunks": [
                    {"offset": list(each.offsets), "shape": list(each.sizes)}
                    | _place(places[MetadataIndex(name, each.offsets)])
                    for each in entry.chunks
                ],
            }
        else:
            values[name] = _place(places[MetadataIndex(name)])
    head = {"format": _FORMAT, "version": _VERSION}
    return json.dumps(head | {"tensors": tensors, "values": values, "paths": metadata.planner_data or {}}).encode()


def decode(content: bytes) -> Metadata:
    """Metadata as `torch.distributed.checkpoint` wants it, with a `ByteRange` for every index.

    Raises:
        UnreadableCheckpointError: the content is not what `encode` writes.
    """
    try:
        fields = json.loads(content)
        if (fields["format"], fields["version"]) != (_FORMAT, _VERSION):
            raise UnreadableCheckpointError(
                f"{METADATA} has version {fields['version']} of format `{fields['format']}`",
                hint="load it with the version of Trainworks that wrote it",
            )
        entries: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        places: dict[MetadataIndex, ByteRange] = {}
        for name, tensor in fields["tensors"].items():
            chunks = [(_size(each["offset"]), _size(each["shape"]), _read_place(each)) for each in tensor["chunks"]]
            places |= {MetadataIndex(name, offset): place for offset, _, place in chunks}
            entries[name] = TensorStorageMetadata(
                TensorProperties(dtype=_DTYPES[tensor["dtype"]]),
                _size(tensor["shape"]),
                [ChunkStorageMetadata(offset, shape) for offset, shape, _ in chunks],
            )
        for name, value in fields["values"].items():
            places[MetadataIndex(name)] = _read_place(value)
            entries[name] = BytesStorageMetadata()
        paths = {name: tuple(path) for name, path in fields["paths"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnreadableCheckpointError(f"{METADATA} cannot be read: {type(error).__name__}: {error}") from None
    return Metadata(entries, planner_data=paths, storage_data=places, storage_meta=StorageMeta())


def _place(place: ByteRange) -> dict[str, object]:
    return {"file": place.file, "start": place.start, "bytes": place.num_bytes}


def _read_place(fields: Mapping[str, Any]) -> ByteRange:
    return ByteRange(fields["file"], fields["start"], fields["bytes"])


def _size(numbers: list[int]) -> torch.Size:
    return torch.Size(numbers)


class LegacyReader(FileSystemReader):
    """Reads a checkpoint whose metadata is a pickle, without running code that the pickle names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metadata = _read(folder / LEGACY_METADATA)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata."""
        return self._metadata


def _read(path: Path) -> Metadata:
    with path.open("rb") as file:
        try:
            metadata = _Unpickler(file).load()
            assert isinstance(metadata, Metadata)
            for info in metadata.storage_data.values():
                ByteRange(info.relative_path, info.offset, info.length)
        except UnreadableCheckpointError:
            raise
        except Exception as error:  # a damaged pickle raises nearly everything
            problem = f"{type(error).__name__}: {error}"
            raise UnreadableCheckpointError(f"{LEGACY_METADATA} cannot be read: {problem}") from None
    metadata.storage_meta = dcp_metadata.StorageMeta()
    return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise UnreadableCheckpointError(
                f"{LEGACY_METADATA} names `{module}.{name}`, which no metadata of a checkpoint does: not opened",
                hint="load only checkpoints that you trust",
            )
        return _ALLOWED[module, name]
