"""Wake the dispatcher of this machine's queue, or start it."""

from __future__ import annotations

import os
from pathlib import Path

from trainworks.backends.store_place import dispatcher_log, knock, starting_lock, store_url
from trainworks.files import closing_handle, take_lock
from trainworks.host.clock import SystemClock

_PATIENCE_S = 1.0
"""A dispatcher that another process is starting reads the store once it listens: to wait longer adds nothing."""
_POLL_S = 0.02


def wake(url: str | None = None, module: str = "trainworks.backends.local.dispatcher_process") -> None:
    """Make the dispatcher read its store now; start one if none runs and none is being started.

    `url` is that of the store, `store_url` by default; `module` is the program of its dispatcher.
    """
    clock = SystemClock()
    gives_up_at = clock.now() + _PATIENCE_S
    while not knock(url):
        if (starting := take_lock(starting_lock(url))) is not None:
            from trainworks.host import process  # noqa: PLC0415, where a dispatcher runs, a knock is enough

            with closing_handle(starting):  # the dispatcher has its own copy, until it listens
                process.detach(
                    process.python_module(module, str(starting)),
                    log=dispatcher_log(url),
                    folder=Path("/"),
                    env=os.environ | {"TRAINWORKS_STORE": url or store_url()},
                    pass_fds=[starting],
                )
            return
        if clock.now() > gives_up_at:
            return
        clock.sleep(_POLL_S)
