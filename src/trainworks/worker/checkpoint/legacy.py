"""Checkpoints of versions before metadata.json: `.metadata` is a pickle, and is read by an unpickler for it alone."""

from __future__ import annotations

import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.filesystem import FileSystemReader, _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata
from torch.serialization import _get_layout

from trainworks.worker.checkpoint.metadata import ByteRange, UnreadableCheckpointError

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
