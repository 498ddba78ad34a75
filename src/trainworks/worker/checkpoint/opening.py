"""Proves that a checkpoint opens: every tensor and value of it is made, one at a time, on this machine."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from trainworks.worker.checkpoint.metadata import UnreadableCheckpointError
from trainworks.worker.checkpoint.shards import reader_of
from trainworks.worker.checkpoint.values import LoadPlannerOfValues


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
