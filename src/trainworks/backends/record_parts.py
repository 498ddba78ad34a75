"""The record of a run, brought from where its job writes it: what has changed since the last time, and no more.

`question` says what is known here, `answer` reads there what is new, and `write_answer` writes it here. A program there
is started for each question, on a login node by ssh or in a pod: `python -m trainworks.backends.record_parts QUESTION`
prints the answer in lines that no log cuts.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from trainworks.errors import UnreachableError
from trainworks.files import write_atomic
from trainworks.host.copies.record_files import GROWING, LOG_LIMIT_BYTES, is_of_a_record, record_files

if TYPE_CHECKING:
    from trainworks.record.run_dir import RunDir

_LINE = 8192
"""Characters of a line of a printed answer; a container runtime cuts lines of 16 KiB."""

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


def question(runs: Mapping[str, RunDir], most_bytes: int, without: Sequence[str] = ()) -> bytes:
    """What is known here of runs, by the path of their run directory there, and what else `send` takes."""
    known = {}
    for there, run_dir in runs.items():
        facts = {str(file.relative_to(run_dir.path)): file.stat() for file in record_files(run_dir.path)}
        known[there] = {name: (status.st_size, status.st_mtime_ns) for name, status in facts.items()}
    return json.dumps({"runs": known, "most_bytes": most_bytes, "without": without}).encode()


def answer(question: bytes) -> str:
    """What has changed in the records of runs, compressed and in base64."""
    asked = json.loads(question)
    found = send(asked["runs"], asked["most_bytes"], asked.get("without", ()))  # an older reader leaves it out
    return base64.b64encode(zlib.compress(json.dumps(found).encode(), 1)).decode("ascii")


def send(runs: Mapping[str, Known], most_bytes: int, without: Sequence[str] = ()) -> Found:
    """What has changed in the records of runs.

    `runs` has what is known of each run directory, by its path. From `most_bytes` on no further content is read. The
    files and folders `without` stay there.
    """
    left, is_whole = most_bytes, True
    found: dict[str, dict[str, FilePart]] = {}
    for path, known in runs.items():
        found[path] = {}
        for file in record_files(Path(path), without):
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


def write_answer(runs: Mapping[str, RunDir], said: str) -> bool:
    """Write what `answer` said into the run directories here; returns whether that was all that is there.

    Raises:
        UnreachableError: the answer is cut or damaged; nothing was written.
    """
    try:
        found: Found = json.loads(zlib.decompress(base64.b64decode(said, validate=True)))
    except (ValueError, zlib.error) as broken:
        raise UnreachableError(f"the record did not arrive completely: {broken}") from None
    for there, files in found["runs"].items():
        for name, part in files.items():
            if is_of_a_record(name):
                _write_part(runs[there].path / name, part)
    return found["is_whole"]


def _write_part(file: Path, part: FilePart) -> None:
    """Write what is new of a file, readable by as many as before; two processes may do so at the same time."""
    content, start = part["content"].encode("latin-1"), part["start"]
    file.parent.mkdir(exist_ok=True)
    if start == 0:
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
        write_atomic(file, content, durable=file.suffix == ".json", mode=mode)
    else:
        with file.open("r+b", buffering=0) as opened:
            if os.fstat(opened.fileno()).st_size < start:  # another process has replaced it
                return
            opened.seek(start)
            opened.write(content)
    os.utime(file, ns=(part["time"], part["time"]))


if __name__ == "__main__":
    said = answer(zlib.decompress(base64.b64decode(sys.argv[1])))
    sys.stdout.writelines(f"{said[start : start + _LINE]}\n" for start in range(0, len(said), _LINE))
