"""Files of this machine and of stores (S3, GCS, HTTP ...) through fsspec, and a local cache of their shards."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError
from trainworks.files import closing_handle, naming_full_disk
from trainworks.host.clock import Clock, SystemClock
from trainworks.system import lock_file
from trainworks.units import format_bytes
from trainworks.worker.data.card import Shard

_READ_BYTES = 4 << 20
_TRIES = 2
_PATIENCE, _WAIT_S = 100, 0.1
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)


def extra(module: str, name: str) -> Any:
    """The module, which the extra `name` brings.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], name) from None


_S3_OPTIONS = {"config_kwargs": {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 1}}}
"""A store that does not answer is an error after seconds; what is worth another try is tried again by s3fs."""
_S3_TRIES = 3
_EXTRAS = {"s3fs": "s3", "aiohttp": "s3", "boto3": "s3"}


class Store:
    """A folder of a file system that fsspec knows, `s3://bucket/folder`, `/path` or another.

    The usual variables of the environment hold keys and endpoints; S3-compatible stores take their address from
    `AWS_ENDPOINT_URL`.

    Raises:
        MissingExtraError: the library for this kind of store is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        options: Mapping[str, Any] = _S3_OPTIONS if address.startswith("s3://") else {}
        try:
            self.fs, self.root = fsspec.core.url_to_fs(self.address, **options)
        except ImportError as error:
            raise _missing(error) from None
        if address.startswith("s3://"):
            self.fs.retries = _S3_TRIES

    def path(self, name: str) -> str:
        """The path of a file of the folder, as the file system wants it."""
        return posixpath.join(self.root, name) if name else self.root

    def exists(self, name: str) -> bool:
        """True if the file exists."""
        with naming_store(self.address):
            return bool(self.fs.exists(self.path(name)))

    def read(self, name: str) -> bytes:
        """A small file's content."""
        with naming_store(f"{self.address}/{name}"):
            content: bytes = self.fs.cat_file(self.path(name))
            return content

    def files(self) -> list[tuple[str, Mapping[str, Any]]]:
        """All files below the address, or those that it matches as a glob, sorted: path and what is known of each.

        Raises:
            UsageError: there are none.
        """
        with naming_store(self.address):
            if any(character in self.root for character in "*?["):
                found = self.fs.glob(self.root, detail=True)
            else:
                found = self.fs.find(self.root, detail=True)
        files = sorted((path, info) for path, info in found.items() if info["type"] == "file")
        if not files:
            raise UsageError(f"data source `{self.address}` names no files", hint="check bucket, folder and endpoint")
        return files


@contextmanager
def naming_store(address: str) -> Iterator[None]:
    """Turn what goes wrong with a store inside the block into an error that names the address.

    Raises:
        EnvironmentProblem: the store does not answer, refuses, or has no such thing.
    """
    try:
        yield
    except TrainworksError:
        raise
    except ImportError as error:
        raise _missing(error) from None
    except FileNotFoundError:
        raise EnvironmentProblem(f"`{address}` is not in the store", hint="check bucket, folder and endpoint") from None
    except PermissionError as error:
        raise EnvironmentProblem(f"the store refuses `{address}`: {error}", hint="check the store's keys") from None
    except Exception as error:  # every store has exceptions of its own
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise EnvironmentProblem(
            f"cannot read `{address}`: {reason}", hint="check that the store is up and reachable from this node"
        ) from None


def _missing(error: ImportError) -> TrainworksError:
    text = f"{error} {error.__cause__}"
    package = next((name for name in _EXTRAS if name in text), None)
    if package is not None:
        return MissingExtraError(package, _EXTRAS[package])
    return EnvironmentProblem(f"a library for this store is not installed: {error}", hint="pip install what it names")


class NoRoomError(EnvironmentProblem):
    """Shards in use leave no room in the cache."""


class ShardCache:
    """A folder of shards, least recently used first out: complete or absent, verified, one copy for all ranks.

        <folder>/<shard>          complete and verified: it was renamed to this name
                 .<shard>.part    being downloaded; has its final size from the start, so that it counts
                 <shard>.lock     shared by readers of the shard, exclusive for its download or removal
                 cache.lock       held to make room

    The locks are the kernel's (flock): a killed process holds none. All processes of the node, and all datasets, share
    the folder, which holds at most `limit_bytes`, downloads in progress included. On a file system that several nodes
    mount, and whose locks hold on all of them, they share it, too: a store then gives each shard once.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Clock | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._clock = clock or SystemClock()

    def hold(self, name: str, shard: Shard, store: Store, remote_name: str) -> tuple[Path, int]:
        """The file of a shard, downloaded if missing, and a lock that keeps it until closed.

        Raises:
            EnvironmentProblem: the store does not answer, its file is not what the card says, or what is in use
                leaves no room.
            DiskFullError: no space on the disk.
        """
        path, patience = self._folder / name, _PATIENCE
        while True:
            lock = self._lock(name, shared=True, waits=True)  # waits for a running download
            if path.exists():
                os.utime(path)
                return path, lock
            os.close(lock)
            try:
                self.fetch_ahead(name, shard, store, remote_name)
            except NoRoomError:  # downloads of others, which cannot be removed, are in use when they are finished
                patience -= 1
                if not patience:
                    raise
                self._clock.sleep(_WAIT_S)

    def fetch_ahead(self, name: str, shard: Shard, store: Store, remote_name: str) -> None:
        """Download a shard, unless it is present or being downloaded.

        It never waits for the exclusive lock: another rank may have downloaded the shard meanwhile, and hold it for as
        long as it trains.
        """
        if not (self._folder / name).exists():
            with contextlib.suppress(BlockingIOError):
                self._fetch(name, shard, store, remote_name)

    def _fetch(self, name: str, shard: Shard, store: Store, remote_name: str) -> None:
        path, part = self._folder / name, self._folder / f".{name}.part"
        with self._locked(name), naming_full_disk(path):
            if path.exists():
                return
            self._reserve(part, shard.num_bytes)
            try:
                _download(store, remote_name, part, shard)
                with self._locked("cache", waits=True):  # so that who counts sees it under one name
                    _name_once(part, path)
            except BaseException:
                with self._locked("cache", waits=True):  # nor may it vanish during the count
                    part.unlink(missing_ok=True)
                raise

    def _reserve(self, part: Path, num_bytes: int) -> None:
        """An empty file of the final size, after what was used longest ago has made room for it."""
        with self._locked("cache", waits=True):
            files = sorted((file.stat().st_mtime_ns, file) for file in self._folder.iterdir() if file.suffix != ".lock")
            held = sum(file.stat().st_size for _, file in files)
            for _, file in files:
                if held + num_bytes <= self._limit_bytes:
                    break
                held -= self._removed_bytes(file)
            if held + num_bytes > self._limit_bytes:
                raise NoRoomError(
                    f"no room for a shard of {format_bytes(num_bytes)}: {format_bytes(held)} of "
                    f"{format_bytes(self._limit_bytes)} in `{self._folder}` are in use",
                    hint="raise `data.cache`, or lower `data.shuffle_shards`",
                )
            with part.open("wb") as reserved:
                reserved.truncate(num_bytes)

    def _removed_bytes(self, file: Path) -> int:
        """Remove a file and return its size; 0 if it is in use."""
        try:
            with self._locked(file.name.removeprefix(".").removesuffix(".part")):
                size = file.stat().st_size
                file.unlink()
                return size
        except (BlockingIOError, FileNotFoundError):
            return 0

    @contextlib.contextmanager
    def _locked(self, name: str, *, waits: bool = False) -> Iterator[None]:
        with closing_handle(self._lock(name, waits=waits)):
            yield

    def _lock(self, name: str, *, shared: bool = False, waits: bool = False) -> int:
        handle = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock_file(handle, shared=shared, waits=waits)
        except BaseException as error:
            os.close(handle)
            if isinstance(error, OSError) and error.errno in _NO_LOCKS:
                hint = "mount it with locks (Lustre: `flock`), or set TRAINWORKS_CACHE to a folder of a local disk"
                raise EnvironmentProblem(f"the file system of `{self._folder}` has no locks", hint=hint) from None
            raise
        return handle


def _name_once(part: Path, path: Path) -> None:
    """Give the finished part its name, and keep what another node named meanwhile.

    A client of NFS may remember for a minute that the name did not exist. To replace the file would take it from under
    the other node's readers, whom the server then gives ESTALE.
    """
    try:
        path.hardlink_to(part)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        part.replace(path)
        return
    part.unlink()


def _download(store: Store, name: str, to: Path, shard: Shard) -> None:
    """Download a file of the store to `to` and verify it against the card; retry once."""
    address = f"{store.address}/{name}"
    for _ in range(_TRIES):
        digest = hashlib.sha256()
        with (
            naming_store(address),
            store.fs.open(store.path(name), "rb", block_size=_READ_BYTES) as remote,
            to.open("r+b") as file,
        ):
            while chunk := remote.read(_READ_BYTES):
                digest.update(chunk)
                with naming_full_disk(to):
                    file.write(chunk)
            file.truncate()
            os.fsync(file.fileno())  # its name says that it was verified, after a power cut too
        if digest.hexdigest() == shard.sha256:
            return
    raise EnvironmentProblem(
        f"`{address}` is damaged: its SHA-256 is {digest.hexdigest()[:12]}..., the card says {shard.sha256[:12]}...",
        hint="put the shard there again; `trainworks data verify` names every damaged one",
    )
