"""`--array`: one run file, a job for each index."""

from __future__ import annotations

import re
from dataclasses import replace

from trainworks.cli.launch import Wanted
from trainworks.errors import UsageError

__all__ = ["array_of"]

_MOST = 10_000


def array_of(asked: Wanted, text: str) -> list[Wanted]:
    """The jobs of an array; each is a job like any other, and its command finds its index in its environment.

    TRAINWORKS_ARRAY_INDEX and SLURM_ARRAY_TASK_ID are the index; ..._SIZE and SLURM_ARRAY_TASK_COUNT are how many.

    Args:
        asked: a command.
        text: `8` for 0 to 7, or `3-10`.

    Raises:
        UsageError: it is no such text, or the run is a workload.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    first = int(found[1] or 0) if found else 0
    indexes = range(first, int(found[2]) + (1 if found[1] else 0)) if found else range(0)
    if not 0 < len(indexes) <= _MOST:
        raise UsageError(f"`--array {text}` is no array of 1 to {_MOST:,} jobs", hint="write `--array 8`, or `3-10`")
    if asked.run_file.run is None:
        raise UsageError("a workload has no use for an index", hint="`--array` is for a command")
    return [_member(asked, index, len(indexes)) for index in indexes]


def _member(asked: Wanted, index: int, size: int) -> Wanted:
    own = {
        "TRAINWORKS_ARRAY_INDEX": str(index),
        "TRAINWORKS_ARRAY_SIZE": str(size),
        "SLURM_ARRAY_TASK_ID": str(index),
        "SLURM_ARRAY_TASK_COUNT": str(size),
    }
    return replace(asked, run_file=asked.run_file.model_copy(update={"envs": {**asked.run_file.envs, **own}}))
