"""Locations of this user's job store and of the dispatcher's files beside it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainworks.errors import EnvironmentProblem
from trainworks.files import closing_handle
from trainworks.host.folders import data_folder
from trainworks.host.users import this_host
from trainworks.jobs.database import sqlite_file
from trainworks.system import user_id


def store_folder() -> Path:
    """Folder of this machine's queue, created for this user alone.

    Raises:
        EnvironmentProblem: it cannot be made.
    """
    folder = data_folder("queue")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot make the folder of the job store, `{folder}`: {error.strerror}",
            hint="set TRAINWORKS_DATA to a folder where you can write",
        ) from None
    return folder


def store_url() -> str:
    """`$TRAINWORKS_STORE`, else a SQLite file in that folder.

    A relative file is one of the current folder, in words for processes with another one. A text that is not a URL
    stays as it is, to be refused.
    """
    given = os.environ.get("TRAINWORKS_STORE") or f"sqlite:///{store_folder() / 'jobs.db'}"
    file = sqlite_file(given)
    return given if file is None else f"sqlite:///{file.absolute()}"


def is_there_a_store() -> bool:
    """Whether a job was ever submitted; creates no file."""
    return bool(os.environ.get("TRAINWORKS_STORE")) or data_folder("queue", "jobs.db").exists()


def dispatcher_folder(url: str | None = None) -> Path:
    """Lock, socket and log of the dispatcher that serves a store for this user on this machine; `store_url` by default,
    also in the functions below.
    """
    identity = f"{url or store_url()}\0{user_id()}\0{this_host()}"
    folder = store_folder() / "dispatchers" / hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def dispatcher_lock() -> Path:
    """Lock file that the dispatcher holds."""
    return dispatcher_folder() / "dispatcher.lock"


def starting_lock(url: str | None = None) -> Path:
    """Lock file that a dispatcher holds from before its start until it listens."""
    return dispatcher_folder(url) / "dispatcher.starting"


def dispatcher_log(url: str | None = None) -> Path:
    """Log file of the dispatcher."""
    return dispatcher_folder(url) / "dispatcher.log"


@contextmanager
def dispatcher_address(url: str | None = None) -> Iterator[str]:
    """Socket the dispatcher listens on, in its folder: no other user can listen there instead.

    By way of an open folder, because the path of a socket must be short.
    """
    with closing_handle(os.open(dispatcher_folder(url), os.O_RDONLY | os.O_DIRECTORY)) as handle:
        yield f"/proc/self/fd/{handle}/wake-up"


def knock(url: str | None = None) -> bool:
    """Send a wake-up to the dispatcher; False if none runs."""
    kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK
    with socket.socket(socket.AF_UNIX, kind) as door, dispatcher_address(url) as there:
        try:
            door.sendto(b".", there)
        except BlockingIOError:  # its queue of messages is full, so it is awake
            return True
        except OSError:
            return False
    return True
