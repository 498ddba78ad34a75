"""Storage as training uses it: a checkpoint is written, shards are read, files are opened.

`fio` measures what it can where it is installed, with the same jobs as the reader and writer here. A cached file is
dropped from the page cache of this machine before it is read; a cache of a storage server or of a drive is not.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trainworks import __version__
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.files import closing_handle, free_bytes, naming_full_disk, temporary_folder
from trainworks.host import process
from trainworks.measure.bench.measurement import Measurement, Quantity
from trainworks.measure.bench.readers.output import ToolOutput
from trainworks.measure.bench.readers.registry import read_output

_BYTES, _FULL_BYTES = 512 << 20, 16 << 30
_FREE_SHARE = 0.25
_SECONDS, _FULL_SECONDS = 2.0, 30.0
_FILES, _FULL_FILES = 1000, 20_000
_SMALL_FILE_BYTES = 4096
_TIMEOUT_S = 3600.0
_TOOL = f"trainworks {__version__}"


@dataclass(frozen=True, slots=True)
class StorageJob:
    """One access pattern on the file of a benchmark."""

    name: str
    access: Literal["write", "read", "randread"]
    block_bytes: int
    quantity: Quantity
    direct: bool = False
    """Past the page cache, with O_DIRECT."""


JOBS = (
    StorageJob("checkpoint", "write", 1 << 20, Quantity.STORAGE_WRITE),
    StorageJob("shards", "read", 1 << 20, Quantity.STORAGE_READ),
    StorageJob("random", "randread", 4096, Quantity.STORAGE_OPERATIONS, direct=True),
)
"""A checkpoint is written through the page cache and flushed; shards are read in order, samples at random."""


def measure_storage(path: Path, *, full: bool, built_in: bool = False) -> list[Measurement]:
    """Write, read and open files in a folder of their own below `path`, which is removed again.

    The file has 512 MiB, or 16 GiB with `full`. The reader and writer here measure where `fio` is not installed, or
    with `built_in`.

    Raises:
        UsageError: `path` is not a folder that can be written.
        EnvironmentProblem: not enough free space, or `fio` fails.
    """
    if not path.is_dir() or not os.access(path, os.W_OK):
        raise UsageError(f"`{path}` is not a folder that can be written", hint="name a folder with `--path`")
    size = _FULL_BYTES if full else _BYTES
    if size > _FREE_SHARE * free_bytes(path):
        raise EnvironmentProblem(f"`{path}` has not enough free space for a file of {size >> 20} MiB and a reserve")
    with naming_full_disk(path), temporary_folder(".trainworks-bench-", path) as folder:
        measure_job = _with_fio if shutil.which("fio") and not built_in else _with_own
        seconds = _FULL_SECONDS if full else _SECONDS
        figures = [measure_job(job, folder / "file", size, seconds, str(path)) for job in JOBS]
        return figures + _metadata(folder, str(path), _FULL_FILES if full else _FILES)


def fio_arguments(job: StorageJob, file: Path, size: int, seconds: float) -> list[str]:
    """The job for `fio`, which drops the file from the page cache before it reads (`invalidate`)."""
    arguments = [
        f"--name={job.name}",
        f"--filename={file}",
        f"--rw={job.access}",
        f"--bs={job.block_bytes}",
        f"--size={size}",
        "--ioengine=psync",
        f"--direct={int(job.direct)}",
        "--invalidate=1",
        "--output-format=json",
    ]
    if job.access == "write":
        return [*arguments, "--end_fsync=1"]
    return [*arguments, *([f"--runtime={seconds:g}", "--time_based"] if job.access == "randread" else [])]


def _with_fio(job: StorageJob, file: Path, size: int, seconds: float, subject: str) -> Measurement:
    cache = "bypassed" if job.direct else "flushed" if job.access == "write" else _drop(file)
    done = process.run(["fio", *fio_arguments(job, file, size, seconds)], timeout_s=_TIMEOUT_S)
    if done.exit_code:
        raise EnvironmentProblem(f"fio failed: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
    found = read_output(ToolOutput("output of fio", done.stdout))
    figure = next(each for each in found if each.quantity is job.quantity)
    return _measurement(job, figure.value, subject, figure.tool.replace("-", " "), cache)


def _measurement(job: StorageJob, value: float, subject: str, tool: str, cache: str) -> Measurement:
    conditions: dict[str, str | float] = {"operation": job.name, "block": job.block_bytes, "depth": 1, "cache": cache}
    return Measurement(job.quantity, value, subject, tool, conditions)


def _with_own(job: StorageJob, file: Path, size: int, seconds: float, subject: str) -> Measurement:
    with mmap.mmap(-1, job.block_bytes) as block:  # at the start of a page, as O_DIRECT needs it
        block.write(_random(0).randbytes(job.block_bytes))  # no file system can compress it
        if job.access == "write":
            return _measurement(job, size / _write(file, size, block), subject, _TOOL, "flushed")
        if job.access == "read":
            cache = _drop(file)
            return _measurement(job, size / _read(file, block), subject, _TOOL, cache)
        try:
            rate, cache = _random_reads(file, size, block, seconds, os.O_DIRECT), "bypassed"
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            cache = _drop(file)
            rate = _random_reads(file, size, block, seconds, 0)
    return _measurement(job, rate, subject, _TOOL, cache)


def _random(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311, an order of reads


def _write(file: Path, size: int, block: mmap.mmap) -> float:
    """Seconds until all blocks are on the disk."""
    with closing_handle(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)) as handle:
        started = time.perf_counter()
        for offset in range(0, size, len(block)):
            os.pwrite(handle, block, offset)
        os.fsync(handle)
        return time.perf_counter() - started


def _read(file: Path, block: mmap.mmap) -> float:
    with file.open("rb", buffering=0) as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        started = time.perf_counter()
        while opened.readinto(block):
            pass
        return time.perf_counter() - started


def _random_reads(file: Path, size: int, block: mmap.mmap, seconds: float, flags: int) -> float:
    """Reads per second, one at a time."""
    order, reads, blocks = _random(1), 0, size // len(block)
    with closing_handle(os.open(file, os.O_RDONLY | flags)) as handle:
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            os.preadv(handle, [block], order.randrange(blocks) * len(block))
            reads += 1
        return reads / (time.perf_counter() - started)


def _drop(file: Path) -> str:
    """Drop a flushed file from the page cache, and say whether that worked; a file in memory cannot be dropped."""
    with file.open("rb", buffering=0) as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        try:
            return "not dropped" if os.preadv(opened.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT) else "dropped"
        except BlockingIOError:
            return "dropped"
        except OSError:  # a file system that cannot say what is cached
            return "unknown"


def _metadata(folder: Path, subject: str, count: int) -> list[Measurement]:
    """Small files a second: made with their content, opened and read, and removed."""
    small = folder / "small"
    small.mkdir()
    files, content = [small / f"{index:06d}" for index in range(count)], bytes(_SMALL_FILE_BYTES)
    steps: dict[str, Callable[[Path], object]] = {
        "create": lambda file: file.write_bytes(content),
        "open": Path.read_bytes,
        "remove": Path.unlink,
    }
    found = []
    for operation, step in steps.items():
        if operation == "open":
            _random(2).shuffle(files)
        started = time.perf_counter()
        for file in files:
            step(file)
        rate = count / (time.perf_counter() - started)
        about: dict[str, str | float] = {
            "operation": operation,
            "files": count,
            "file_bytes": _SMALL_FILE_BYTES,
            "cache": "not dropped",
        }
        found.append(Measurement(Quantity.METADATA_OPERATIONS, rate, subject, _TOOL, about))
    return found
