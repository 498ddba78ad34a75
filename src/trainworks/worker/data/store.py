"""Files of this machine and of stores (S3, GCS, HTTP ...) through one interface: fsspec."""

from __future__ import annotations

import importlib
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from trainworks.errors import EnvironmentProblem, MissingExtraError, TrainworksError, UsageError


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
    """A folder of a file system that fsspec knows; the usual variables of the environment hold keys and endpoints.

    S3-compatible stores take their address from `AWS_ENDPOINT_URL`.

    Args:
        address: `s3://bucket/folder`, `/path`, ...

    Raises:
        MissingExtraError: the library for this kind of store is not installed.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        options: dict[str, Any] = _S3_OPTIONS if address.startswith("s3://") else {}
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

    def files(self) -> list[tuple[str, dict[str, Any]]]:
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
