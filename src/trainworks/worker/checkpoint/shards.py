"""Files of a checkpoint: one safetensors file per rank, and metadata.json.

They plug into `torch.distributed.checkpoint`, which decides which rank writes which part of which tensor. A value that
is not a tensor is saved only if it can be loaded without running code.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import warnings
import zlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future
from torch.serialization import safe_globals

from trainworks.errors import UsageError
from trainworks.record.manifest import METADATA
from trainworks.worker.checkpoint.metadata import (
    ByteRange,
    LegacyReader,
    UnreadableCheckpointError,
    WrittenFile,
    decode,
    encode,
)

_Extents = dict[MetadataIndex, tuple[int, int]]
"""Start and size in bytes."""
_ALIGNED = 8
"""Bytes; the header of a safetensors file is padded to a multiple, so that its data can be mapped."""
_SAFETENSORS_DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
    torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_NUMPY: list[Any] = [
    np.ndarray,
    np.dtype,
    np.empty(0).__reduce__()[0],
    np.float64(0).__reduce__()[0],
    *{type(np.dtype(kind)) for kind in "?bBhHiIlLqQefd"},
]
"""Arrays and numbers of numpy, such as the state of its generators."""


def reader_of(folder: Path) -> StorageReader:
    """Reads a checkpoint of this version, or of one that wrote its metadata as a pickle.

    Raises:
        UnreadableCheckpointError: its metadata cannot be read.
        OSError: it has none.
    """
    return ShardReader(folder) if (folder / METADATA).exists() else LegacyReader(folder)


class ShardWriter(StorageWriter):
    """Writes the part of this rank, and on rank 0 the metadata; `durable` flushes the files to the disk."""

    def __init__(self, folder: Path, *, durable: bool = True) -> None:
        super().__init__()
        self._folder = folder
        self._durable = durable
        self.written: dict[str, WrittenFile] = {}
        """What this rank wrote, by file name; checksums are computed from the bytes in memory."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a save."""
        self.written = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """No rank has a special part."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the folder."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Number the ranks."""
        for rank, plan in enumerate(plans):
            object.__setattr__(plan, "storage_data", f"rank-{rank}.safetensors")
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write all of this rank's items to one file."""
        done: Future[list[WriteResult]] = Future()
        done.set_result(self._write_items(plan, planner) if plan.items else [])
        return done

    def _write_items(self, plan: SavePlan, planner: SavePlanner) -> list[WriteResult]:
        name: str = plan.storage_data
        values = {item.index: _content_of(planner, item) for item in plan.items if item.type == WriteItemType.BYTE_IO}
        header, starts = _header(plan.items, values)
        places = {index: ByteRange(name, len(header) + start, size) for index, (start, size) in starts.items()}
        with (self._folder / name).open("wb") as file:
            crc, size = _append(file, header, 0), len(header)
            for item in plan.items:
                content = values[item.index] if item.index in values else _content_of(planner, item)
                if len(content) != places[item.index].num_bytes:
                    raise AssertionError(f"{item.index}: {len(content)} bytes instead of {places[item.index]}")
                crc, size = _append(file, content, crc), size + len(content)
            self._flush(file)
        self.written[name] = WrittenFile(crc, size)
        return [WriteResult(item.index, places[item.index].num_bytes, places[item.index]) for item in plan.items]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata; rank 0 alone is asked to."""
        content = encode(metadata, {each.index: each.storage_data for written in results for each in written})
        with (self._folder / METADATA).open("wb") as file:
            self.written[METADATA] = WrittenFile(_append(file, content, 0), len(content))
            self._flush(file)

    def _flush(self, file: BinaryIO) -> None:
        file.flush()
        if self._durable:
            os.fsync(file.fileno())

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any folder will do."""
        return True


class ShardReader(StorageReader):
    """Reads what `ShardWriter` wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._metadata = decode((folder / METADATA).read_bytes())
        self._places: dict[MetadataIndex, ByteRange] = {}
        self._parts: dict[MetadataIndex, tuple[torch.dtype, torch.Size]] = {}
        """Type and shape of every stored part of a tensor."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata."""
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Take the places of all parts."""
        self._places = metadata.storage_data
        self._parts = {
            MetadataIndex(name, chunk.offsets): (entry.properties.dtype, chunk.sizes)
            for name, entry in metadata.state_dict_metadata.items()
            if isinstance(entry, TensorStorageMetadata)
            for chunk in entry.chunks
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Read in the order of the files."""
        places = self._places
        plan.items.sort(key=lambda item: (places[item.storage_index].file, places[item.storage_index].start))
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Each rank reads by itself."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the parts that this rank needs."""
        file: BinaryIO | None = None
        try:
            for item in plan.items:
                place = self._places[item.storage_index]
                if file is None or Path(file.name).name != place.file:
                    if file is not None:
                        file.close()
                    file = (self._folder / place.file).open("rb", buffering=0)
                self._fill(item, planner, _content(file, place))
        finally:
            if file is not None:
                file.close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fill(self, item: ReadItem, planner: LoadPlanner, content: bytearray) -> None:
        if item.type == LoadItemType.BYTE_IO:
            planner.load_bytes(item, io.BytesIO(content))
            return
        dtype, shape = self._parts[item.storage_index]
        part = (torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)).reshape(shape)
        for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            part = part.narrow(dim, offset, length)
        target = planner.resolve_tensor(item).detach()
        if target.size() != part.size():
            raise ValueError(
                f"shape {tuple(part.size())} of `{item.dest_index.fqn}`, {tuple(target.size())} in the model"
            )
        target.copy_(part)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Any folder will do."""
        return True


def _content(file: BinaryIO, place: ByteRange) -> bytearray:
    """The bytes of one place, or an error if the file ends before."""
    content = bytearray(place.num_bytes)
    view, position = memoryview(content), 0
    file.seek(place.start)
    while position < place.num_bytes:
        read = file.readinto(view[position:])  # type: ignore[attr-defined]
        if not read:
            raise UnreadableCheckpointError(f"{place.file} ends at {place.start + position:,} bytes")
        position += read
    return content


def _header(items: list[WriteItem], values: dict[MetadataIndex, memoryview]) -> tuple[bytes, _Extents]:
    """The header of a safetensors file that holds these items in this order, and start and size of each in its data.

    A value that is not a tensor is a vector of bytes there.
    """
    entries: dict[str, Mapping[str, object]] = {"__metadata__": {"format": "pt"}}
    starts: _Extents = {}
    end = 0
    for item in items:
        name = item.index.fqn
        if (value := values.get(item.index)) is not None:
            dtype, shape, size = "U8", [len(value)], len(value)
        else:
            assert item.tensor_data is not None
            properties, shape = item.tensor_data.properties, list(item.tensor_data.chunk.sizes)
            dtype = _safetensors_dtype(name, properties.dtype)
            size = prod(shape) * properties.dtype.itemsize
        if name in entries:  # two parts of one tensor
            name = f"{name}@{','.join(map(str, item.index.offset or ()))}"
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        starts[item.index] = (end, size)
        end += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text, starts


def _safetensors_dtype(name: str, dtype: torch.dtype) -> str:
    if dtype not in _SAFETENSORS_DTYPES:
        raise UsageError(
            f"cannot save `{name}`: no checkpoint holds tensors of {dtype}", hint="store it as another type"
        )
    return _SAFETENSORS_DTYPES[dtype]


def _content_of(planner: SavePlanner, item: WriteItem) -> memoryview:
    value = planner.resolve_data(item)
    if isinstance(value, io.BytesIO):
        return value.getbuffer()
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _append(file: BinaryIO, content: bytes | memoryview, crc: int) -> int:
    """Write, and return the checksum of the file so far."""
    file.write(content)
    return zlib.crc32(content, crc)


class SavePlannerOfValues(DefaultSavePlanner):
    """Refuses, at the save, what `LoadPlannerOfValues` would refuse at the load."""

    def transform_object(self, write_item: WriteItem, object: Any) -> Any:  # noqa: A002 as torch names it
        """The bytes of a value; tensors as they are."""
        written = super().transform_object(write_item, object)
        if write_item.type == WriteItemType.BYTE_IO:
            _check_plain(written, f"`{write_item.index.fqn}`, a {type(object).__qualname__}")
        return written


class LoadPlannerOfValues(DefaultLoadPlanner):
    """Loads values with torch's unpickler for tensors and plain values."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value into the state."""
        name = read_item.dest_index.fqn
        try:
            loaded = _load(value)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise UnreadableCheckpointError(f"`{name}` is not a plain value: {str(error).splitlines()[0]}") from None
        set_element(self.original_state_dict, self.mappings[name], loaded)


def packed(value: object, name: str) -> bytes:
    """A value, also one with tensors, as one entry of a checkpoint; `name` is that of errors.

    Raises:
        UsageError: loading it could run code.
    """
    content = io.BytesIO()
    torch.save(value, content)
    _check_plain(content, name)
    return content.getvalue()


def unpacked(content: bytes) -> Any:
    """The value of an entry that `packed` made."""
    return _load(io.BytesIO(content))


def _check_plain(content: io.BytesIO, name: str) -> None:
    try:
        _load(io.BytesIO(content.getbuffer()))
    except pickle.UnpicklingError:
        raise UsageError(
            f"cannot save {name}: loading it could run code",
            hint="keep tensors, numbers, text, and lists and dicts of them in `state_dict`",
        ) from None


def _load(content: io.BytesIO) -> Any:
    with safe_globals(_NUMPY):
        return torch.load(content, map_location="cpu", weights_only=True)


def open_checkpoint(folder: Path) -> int:
    """Load everything in a checkpoint, without its model; returns the number of entries.

    Raises:
        EnvironmentProblem: something cannot be loaded.
        OSError: a file cannot be read.
    """
    metadata = reader_of(folder).read_metadata()
    for name, entry in metadata.state_dict_metadata.items():
        value = None
        if isinstance(entry, TensorStorageMetadata):
            value = torch.empty(entry.size, dtype=entry.properties.dtype)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it warns that there is no process group
                dcp.load({name: value}, storage_reader=reader_of(folder), planner=LoadPlannerOfValues(), no_dist=True)
        except CheckpointException as error:
            raise UnreadableCheckpointError(f"`{name}` cannot be loaded: {error}") from None
    return len(metadata.state_dict_metadata)
