"""Atomic writes and appends of files, and temporary folders."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from trainworks.errors import DiskFullError
from trainworks.system import IS_WINDOWS, lock_file
from trainworks.units import format_bytes

_LOG = logging.getLogger(__name__)


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True, mode: int = 0o644) -> None:
    """Write a file so that a reader, or a power cut, leaves the old content or the new, never a part.

    A temporary file in the same folder is written, flushed to disk and renamed over `path`.

    Args:
        path: of the file.
        content: all of it.
        durable: False for a file that may be lost, or empty, after a power cut.
        mode: permissions of the file.

    Raises:
        DiskFullError: no space left; the old content is untouched and the temporary file is gone.
    """
    data = content.encode() if isinstance(content, str) else content
    with naming_full_disk(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            temporary.chmod(mode)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            fsync_folder(path.parent)


def append_text(path: Path, text: str, *, durable: bool = False) -> None:
    """Append whole lines in one write, so that concurrent writers of one machine never interleave.

    A line that an earlier writer left unfinished (killed, disk full) is closed first: it stays one bad line. A durable
    one is on the disk before this returns.

    Raises:
        DiskFullError: no space left.
    """
    with naming_full_disk(path), path.open("ab+", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            text = text if file.read(1) == b"\n" else "\n" + text
        data = text.encode()
        if file.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(file.fileno())


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable, or the bytes of a file; Windows keeps names by itself."""
    if IS_WINDOWS and folder.is_dir():
        return
    with closing_handle(os.open(folder, os.O_RDWR if IS_WINDOWS else os.O_RDONLY)) as handle:
        os.fsync(handle)


@contextmanager
def closing_handle(handle: int) -> Iterator[int]:
    """An open file of the system, such as a lock, that is closed at the end of the block."""
    try:
        yield handle
    finally:
        os.close(handle)


def take_lock(path: Path, *, shared: bool = False) -> int | None:
    """Lock `path` for this process and all that inherit the returned open file; None if it is locked.

    A shared lock keeps others from an exclusive one alone.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        lock_file(handle, shared=shared)
    except BlockingIOError:
        os.close(handle)
        _LOG.debug("another process has locked %s", path)
        return None
    _LOG.debug("locked %s", path)
    return handle


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Lock `path` inside the block, and wait before until it is free; no lock where this user cannot have one."""
    with ExitStack() as opened:
        with suppress(OSError):
            lock_file(opened.enter_context(path.open("ab")).fileno(), waits=True)
        yield


def readable_text(path: Path) -> str:
    """The text of a file of the kernel, without blanks around it; empty if it is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def size_of(file: Path) -> int:
    """Bytes of a file; 0 for one that does not exist."""
    return file.stat().st_size if file.exists() else 0


def bytes_in(folder: Path) -> int:
    """Size of all files below a folder; links are not followed, and a file that goes meanwhile does not count."""
    size = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):
                size += (Path(path) / name).lstat().st_size
    return size


def free_bytes(path: Path) -> int:
    """Space available to this user at `path`, or at its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, below the machine's temporary files without a parent; it is deleted at the end of the block.

    It may be renamed before.
    """
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Convert `ENOSPC` and `EDQUOT` inside the block to a DiskFullError with the path."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(
            f"no space left on device: {format_bytes(free_bytes(path))} free, writing `{path}`",
            hint="free space, lower `checkpoint.keep`, or point `checkpoint.to` at another disk",
        ) from None
