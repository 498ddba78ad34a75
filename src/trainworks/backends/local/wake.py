"""Wake the dispatcher of this machine's queue, or start it."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.backends.store_place import dispatcher_log, knock, store_url
from trainworks.host import process


def wake() -> None:
    """Make the dispatcher read the store now; start one if none runs."""
    if not knock():
        process.detach(
            process.python_module("trainworks.backends.local.dispatcher_process"),
            log=dispatcher_log(),
            folder=Path("/"),
            env=os.environ | {"TRAINWORKS_STORE": store_url()},
        )
