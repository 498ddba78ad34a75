"""Forks of this process: one that works at once, one that waits for an order, one that outlives this process."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from trainworks.host.process import Child, sweep, wait_any, wait_for_end

_LARGEST = 2**16
"""Largest order in bytes."""

_MOST_HANDLES = 8

Order = Callable[[str, Sequence[int]], int]
"""Executes an order, given its text and file descriptors; returns the exit code."""


class Forked(Child):
    """A forked child; see `fork`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._exit_code: int | None = None

    @property
    def pid(self) -> int:
        """Process id, and process group id."""
        return self._pid

    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        if self._exit_code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._exit_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._exit_code

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; None if it still runs after `timeout_s`."""
        if self.exit_code() is None:
            wait_any([self], timeout_s)
        return self.exit_code()


def fork(
    work: Callable[[], int],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
    close_fds: Iterable[int] = (),
) -> Forked:
    """Run `work` in a fork of this process, with its output appended to `log`; its result is the exit code.

    A hundred times faster than a new interpreter. Only for a process without threads and without connections that the
    child could disturb. Open files stay open, locks included, but for `close_fds`. The child has the variables `env`,
    too, and leaves the terminal with `new_session`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as output:
        pid = os.fork()
        if pid:
            if not new_session:
                with suppress(OSError):  # the child does the same: the first one wins
                    os.setpgid(pid, pid)
            return Forked(pid)
        code = 1
        try:
            _reset_child(output.fileno(), new_session, close_fds)
            os.environ.update(env or {})
            code = work()
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _reset_child(output: int, new_session: bool, close_fds: Iterable[int]) -> None:
    """Give a forked child the process group, output and signal handlers of a new program."""
    if new_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _write_to(output)
    for handle in close_fds:
        os.close(handle)


def append_output(log: Path) -> None:
    """Append the further output of this process to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as output:
        _write_to(output.fileno())


def _write_to(output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)


@final
class Spare:
    """A child forked in advance, so that starting a job does not pay for the fork; see `fork`.

    `begin` runs in the child, and returns the function that executes the order. The child ends with this process if it
    gets no order.
    """

    def __init__(self, begin: Callable[[], Order], *, new_session: bool = False, close_fds: Iterable[int] = ()) -> None:
        self._socket, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with peer:
            self._child = fork(
                lambda: _serve(peer, begin()),
                log=Path(os.devnull),
                new_session=new_session,
                close_fds=[*close_fds, self._socket.fileno()],
            )

    def waits(self) -> bool:
        """True if it can take an order."""
        return self._socket.fileno() >= 0 and self._child.exit_code() is None

    def order(self, text: str, handles: Sequence[int], *, log: Path) -> Forked:
        """Send the order, at most 64 kB, to the child, whose output is appended to `log`.

        It also gets file descriptors, at least one; a locked file stays locked throughout.
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
    append_output(Path(log))
    return order(text, handles)


def leave_behind(work: Callable[[], object]) -> None:
    """Call `work` in a process without parent and output, which outlives the process tree of this one."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        work()
    finally:
        os._exit(0)


def leave_sweeper(variables: Mapping[str, str]) -> None:
    """Leave a process behind that waits for the end of this one, and kills what was started with these variables."""
    pid = os.getpid()

    def wait_and_sweep() -> None:
        wait_for_end(pid)
        sweep(variables)

    leave_behind(wait_and_sweep)
