"""What a login node does for a machine whose files it does not see: `... backends.slurm.login_side ACTION`.

`receive FOLDER SHA256` reads a packed run directory and puts it in place; `discard FOLDER` removes it, if its job was
refused. `send` reads which runs are wanted, and what is known of them, and prints what has changed since. All of it is
in base64. The module imports the standard library alone: every `ps` starts it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

RECORD = ("status.json", "resolved.json", "events.jsonl", "metrics.jsonl", "plan_error.json")
"""Files that a job writes into its run directory; the state comes first, and so all that it speaks of with it."""
RECORD_FOLDERS = ("logs", "usage", "environment", "bench")
GROWING = (".jsonl", ".log")
"""Endings of files that only grow: what is new in them is sent. All other files are replaced, and sent as a whole."""
LOG_LIMIT_BYTES = 64 * 2**20
"""Most bytes of one log that are sent; the rest of it stays on the cluster."""
CODE = "code"

Known = Mapping[str, tuple[int, int]]
"""Size in bytes and time of change in nanoseconds of each file that a reader has, by its name in the run directory."""


class FilePart(TypedDict):
    """What is new of a file."""

    start: int
    """Where the content begins in the file."""
    content: str
    """One character a byte."""
    time: int
    """Time of the change, in nanoseconds; 0 if more is to come."""


class Found(TypedDict):
    """What has changed in the records of runs."""

    runs: dict[str, dict[str, FilePart]]
    """Parts by path of the run directory and name of the file."""
    is_whole: bool
    """False if something is left to send."""


def main(action: str, *arguments: str) -> int:
    """Run an action; the problem goes to stderr as one line."""
    try:
        packed = base64.b64decode(sys.stdin.buffer.read(), validate=True)
        if action == "receive":
            receive(packed, Path(arguments[0]), arguments[1])
        elif action == "discard":
            discard(Path(arguments[0]))
        else:
            wanted = json.loads(packed)
            found = send(wanted["runs"], wanted["most_bytes"])
            sys.stdout.write(base64.b64encode(zlib.compress(json.dumps(found).encode(), 1)).decode("ascii"))
    except (OSError, ValueError, tarfile.TarError) as problem:
        sys.stderr.write(f"{' '.join(str(problem).split())}\n")
        return 1
    return 0


def receive(packed: bytes, folder: Path, digest: str) -> None:
    """Put a packed run directory in place: a new one as a whole, or the files of one that is there already.

    The copy of its code never changes, and stays. A folder of an earlier run with the same path, whose run directory
    was deleted, is renamed.

    Args:
        packed: a tar file, compressed by gzip.
        folder: the run directory.
        digest: SHA-256 of `packed` in hexadecimal.

    Raises:
        ValueError: `packed` is not complete; nothing has changed.
        OSError: the files cannot be written; a new run directory is not there.
    """
    if hashlib.sha256(packed).hexdigest() != digest:
        raise ValueError("the run directory did not arrive completely")
    folder.parent.mkdir(parents=True, exist_ok=True)
    prefix = _partial(folder)
    for left in [one for one in folder.parent.iterdir() if one.name.startswith(prefix)]:
        shutil.rmtree(left, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            archive.extractall(temporary, filter="data")
        _flush(temporary)
        if folder.exists() and (before := _created_at(folder)) != _created_at(temporary):  # of an earlier run
            folder.rename(folder.with_name(f"{folder.name}.of-{before}"))
        if folder.exists():
            code = temporary / CODE
            if code.is_dir() and not (folder / CODE).exists():
                code.rename(folder / CODE)
            for file in sorted(one for one in temporary.iterdir() if one.is_file()):
                file.replace(folder / file.name)
            _fsync(folder)
        else:
            temporary.rename(folder)
        _fsync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def discard(folder: Path) -> None:
    """Remove a run directory whose job has not begun; one that has events stays."""
    if folder.exists() and not (folder / "events.jsonl").exists():
        removed = Path(tempfile.mkdtemp(prefix=_partial(folder), dir=folder.parent))
        folder.rename(removed)
        shutil.rmtree(removed)


def _partial(folder: Path) -> str:
    """How the names of incomplete copies of a run directory begin."""
    return f".{folder.name}.partial-"


def _created_at(folder: Path) -> Any:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return json.loads((folder / "resolved.json").read_bytes())["created_at"]
    return None


def _flush(folder: Path) -> None:
    for path, _, names in os.walk(folder):
        for name in names:
            if not (file := Path(path) / name).is_symlink():
                _fsync(file)
        _fsync(Path(path))


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def send(runs: Mapping[str, Known], most_bytes: int) -> Found:
    """What has changed in the records of runs.

    Args:
        runs: what is known of each run directory, by its path.
        most_bytes: size from which on no further content is read.
    """
    left, is_whole = most_bytes, True
    found: dict[str, dict[str, FilePart]] = {}
    for path, known in runs.items():
        found[path] = {}
        for file in record_files(Path(path)):
            name = str(file.relative_to(path))
            if left <= 0:
                return {"runs": found, "is_whole": False}
            with suppress(FileNotFoundError):  # replaced or removed meanwhile
                part = _changed_part(file, tuple(known.get(name, (0, 0))), left)
                if part is not None:
                    is_whole = is_whole and part["time"] != 0
                    found[path][name] = part
                    left -= len(part["content"])
    return {"runs": found, "is_whole": is_whole}


def record_files(folder: Path) -> Iterator[Path]:
    """Files of the record in a run directory."""
    yield from (folder / name for name in RECORD if (folder / name).is_file())
    for name in RECORD_FOLDERS:
        with suppress(FileNotFoundError):
            files = sorted((folder / name).iterdir())
            yield from (one for one in files if one.name[0] != "." and one.is_file() and not one.is_symlink())


def _changed_part(file: Path, known: tuple[int, ...], most_bytes: int) -> FilePart | None:
    with file.open("rb") as opened:
        status = os.fstat(opened.fileno())
        size = min(status.st_size, LOG_LIMIT_BYTES) if file.suffix == ".log" else status.st_size
        known_size, known_time = known
        if (size, status.st_mtime_ns) == (known_size, known_time) or (size == known_size == LOG_LIMIT_BYTES):
            return None
        grows = file.suffix in GROWING
        start = known_size if grows and 0 < known_size < size else 0
        opened.seek(start)
        end = min(size, start + most_bytes) if grows else size
        content = opened.read(end - start)
    time = status.st_mtime_ns if start + len(content) >= size else 0
    return {"start": start, "content": content.decode("latin-1"), "time": time}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
