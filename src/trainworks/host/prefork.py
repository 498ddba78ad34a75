"""A copy of this process that waits for its order: a fork takes milliseconds, and this one was made before."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import final

from trainworks.host import process

__all__ = ["Order", "Spare"]

_LARGEST = 2**16
"""Bytes of an order."""

_MOST_HANDLES = 8

Order = Callable[[str, Sequence[int]], int]
"""What is done with the text and the file descriptors of an order; the result is the exit code."""


@final
class Spare:
    """A copy that was made before it is needed; it ends with this process if it never gets its order.

    Args:
        begin: runs in the copy, and returns what will be done with the order.
        new_session: detach the copy from the terminal.
        close_fds: file descriptors that the copy must not keep.
    """

    def __init__(self, begin: Callable[[], Order], *, new_session: bool = False, close_fds: Iterable[int] = ()) -> None:
        self._door, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there:
            self._child = process.fork(
                lambda: _obey(there, begin()),
                log=Path(os.devnull),
                new_session=new_session,
                close_fds=[*close_fds, self._door.fileno()],
            )

    def waits(self) -> bool:
        """Whether it can be given its order."""
        return self._door.fileno() >= 0 and self._child.exit_code() is None

    def order(self, text: str, handles: Sequence[int], *, log: Path) -> process.Forked:
        """Have the copy do its work.

        Args:
            text: at most 64 kB.
            handles: file descriptors that the copy gets, at least one; a locked file stays locked without a gap.
            log: file that receives stdout and stderr.
        """
        with self._door:
            socket.send_fds(self._door, [json.dumps([str(log), text]).encode()], list(handles))
        return self._child

    def dismiss(self) -> None:
        """End a copy that is not needed."""
        self._door.close()


def _obey(door: socket.socket, order: Order) -> int:
    with door:
        message, handles, _, _ = socket.recv_fds(door, _LARGEST, _MOST_HANDLES)
    if not handles:  # whoever might have given one is gone
        return 0
    for handle in handles:
        os.set_inheritable(handle, False)
    log, text = json.loads(message)
    process.append_output(Path(log))
    return order(text, handles)
