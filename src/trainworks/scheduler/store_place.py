"""Where the job store of this user is, and what lies beside it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trainworks.host.folders import data_folder

__all__ = ["dispatcher_address", "dispatcher_lock", "dispatcher_log", "is_there_a_store", "store_folder", "store_url"]


def store_folder() -> Path:
    """The folder of the queue of this machine; made if need be, for this user alone."""
    folder = data_folder("queue")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def store_url() -> str:
    """`$TRAINWORKS_STORE`, else a SQLite file in that folder."""
    return os.environ.get("TRAINWORKS_STORE") or f"sqlite:///{store_folder() / 'jobs.db'}"


def is_there_a_store() -> bool:
    """Whether anything was ever submitted; looking makes no file."""
    return bool(os.environ.get("TRAINWORKS_STORE")) or data_folder("queue", "jobs.db").exists()


def dispatcher_lock() -> Path:
    """Held by the dispatcher."""
    return store_folder() / "dispatcher.lock"


def dispatcher_log() -> Path:
    """What the dispatcher has to say."""
    return store_folder() / "dispatcher.log"


def dispatcher_address() -> str:
    """Where a dispatcher listens for a knock: a name of the kernel's that is gone when the dispatcher is."""
    return f"\0trainworks-{hashlib.sha256(str(store_folder().resolve()).encode()).hexdigest()[:32]}"
