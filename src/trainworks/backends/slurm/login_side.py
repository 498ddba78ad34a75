"""What a login node does for a machine whose files it does not see: `... backends.slurm.login_side ACTION`.

`receive FOLDER SHA256` reads a packed run directory and puts it in place; `discard FOLDER` removes it, if its job was
refused. `send` reads a question of `record_parts`, and prints the answer. All of it is in base64. Every `ps` starts
this module, which imports little.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainworks.backends import record_parts

CODE = "code"


def main(action: str, *arguments: str) -> int:
    """Run an action; the problem goes to stderr as one line."""
    try:
        packed = base64.b64decode(sys.stdin.buffer.read(), validate=True)
        if action == "receive":
            receive(packed, Path(arguments[0]), arguments[1])
        elif action == "discard":
            discard(Path(arguments[0]))
        else:
            sys.stdout.write(record_parts.answer(packed))
    except (OSError, ValueError, tarfile.TarError) as problem:
        sys.stderr.write(f"{' '.join(str(problem).split())}\n")
        return 1
    return 0


def receive(packed: bytes, folder: Path, digest: str) -> None:
    """Put a packed run directory in place: a new one as a whole, or the files of one that is there already.

    The copy of its code never changes, and stays. A folder of an earlier run with the same path, whose run directory
    was deleted, is renamed. `packed` is a tar file, compressed by gzip, and `digest` its SHA-256 in hexadecimal.

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


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
