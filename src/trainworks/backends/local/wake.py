"""Wake the dispatcher of this machine's queue, or start it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from trainworks.backends.store_place import dispatcher_address, dispatcher_log, store_url
from trainworks.host import process

__all__ = ["knock", "wake"]


def wake() -> None:
    """Make the dispatcher read the store now; start one if none runs."""
    if not knock():
        process.detach(
            process.python_module("trainworks.backends.local.dispatcher_process"),
            log=dispatcher_log(),
            folder=Path("/"),
            env=os.environ | {"TRAINWORKS_STORE": store_url()},
        )


def knock() -> bool:
    """Send a wake-up to the dispatcher; False if none runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as door, dispatcher_address() as there:
        try:
            door.sendto(b".", there)
        except BlockingIOError:  # its queue of messages is full, so it is awake
            return True
        except OSError:
            return False
    return True
