"""Files of a run directory that belong to its record, in the order in which they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

RECORD = ("status.json", "resolved.json", "events.jsonl", "metrics.jsonl", "anchor.json", "plan_error.json")
"""Files that a job writes into its run directory; the state comes first, and so all that it speaks of with it."""
RECORD_FOLDERS = ("logs", "usage", "environment", "bench")
GROWING = (".jsonl", ".log")
"""Endings of files that only grow: what is new in them is sent. All other files are replaced, and sent as a whole."""
LOG_LIMIT_BYTES = 64 * 2**20
"""Most bytes of one log that are sent; the rest of it stays where it is."""


def record_files(folder: Path, without: Sequence[str] = ()) -> Iterator[Path]:
    """Files of the record in a run directory; the files and folders `without` are left out."""
    yield from (folder / name for name in RECORD if name not in without and (folder / name).is_file())
    for name in RECORD_FOLDERS:
        with suppress(FileNotFoundError):
            files = sorted((folder / name).iterdir()) if name not in without else []
            yield from (one for one in files if one.name[0] != "." and one.is_file() and not one.is_symlink())


def is_of_a_record(name: str) -> bool:
    """Whether a name from elsewhere is that of a file of a record, and leads nowhere else."""
    folder, slash, file = name.rpartition("/")
    return name in RECORD if not slash else folder in RECORD_FOLDERS and file[:1] not in ("", ".")
