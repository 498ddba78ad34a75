"""Errors of failed allocations: which they are, and how much memory they asked for."""

from __future__ import annotations

import errno
import re

import torch

from trainworks.units import parse_bytes

_WORDS = re.compile(r"can't allocate memory|out of memory|bad_alloc|ALLOC_FAILED|Cannot allocate memory")
_REQUESTED = re.compile(r"[Tt]ried to allocate (\d+(?:\.\d+)? (?:[KMGT]iB|bytes))")


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed, in any library."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and _WORDS.search(str(error)) is not None


def requested_bytes(error: BaseException) -> int | None:
    """Bytes named in the error of torch's allocators: `20.00 GiB` on accelerators, `12884901888 bytes` on CPUs."""
    found = _REQUESTED.search(str(error))
    return None if found is None else parse_bytes(found[1].replace(" bytes", " B"))
