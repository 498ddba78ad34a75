"""A pre-forked child, so that starting a job does not pay for the fork."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import final

from trainworks.host import process

_LARGEST = 2**16
"""Largest order in bytes."""

_MOST_HANDLES = 8

Order = Callable[[str, Sequence[int]], int]
"""Executes an order, given its text and file descriptors; returns the exit code."""


@final
class Spare:
    """A child forked in advance; it ends with this process if it gets no order.

    Args:
        begin: runs in the child, and returns the function that executes the order.
        new_session: detach the child from the terminal.
        close_fds: file descriptors that the child must close.
    """

    def __init__(self, begin: Callable[[], Order], *, new_session: bool = False, close_fds: Iterable[int] = ()) -> None:
        self._socket, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer:
            self._child = process.fork(
                lambda: _serve(peer, begin()),
                log=Path(os.devnull),
                new_session=new_session,
                close_fds=[*close_fds, self._socket.fileno()],
            )

    def waits(self) -> bool:
        """True if it can take an order."""
        return self._socket.fileno() >= 0 and self._child.exit_code() is None

    def order(self, text: str, handles: Sequence[int], *, log: Path) -> process.Forked:
        """Send the order to the child.

        Args:
            text: at most 64 kB.
            handles: file descriptors for the child, at least one; a locked file stays locked throughout.
            log: file that receives stdout and stderr.
        """
        with self._socket:
            socket.send_fds(self._socket, [json.dumps([str(log), text]).encode()], list(handles))
        return self._child

    def dismiss(self) -> None:
        """End a child that is not needed."""
        self._socket.close()


def _serve(server: socket.socket, order: Order) -> int:
    with server:
        message, handles, _, _ = socket.recv_fds(server, _LARGEST, _MOST_HANDLES)
    if not handles:  # the parent ended without an order
        return 0
    for handle in handles:
        os.set_inheritable(handle, False)
    log, text = json.loads(message)
    process.append_output(Path(log))
    return order(text, handles)
