"""The dispatcher's process: `python -m trainworks.backends.local.dispatcher_process LOCK`. One per store, user and
machine. LOCK is the open file of `starting_lock`, which keeps others from starting a second one meanwhile.

It goes when nothing is left.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trainworks.backends.local.dispatcher import Dispatcher
from trainworks.backends.local.fair_share import FairShare
from trainworks.backends.local.launcher import Launcher
from trainworks.backends.local.machine import local_nodes
from trainworks.backends.local.quotas import machine_ledger
from trainworks.backends.ownership import is_private
from trainworks.backends.store_place import (
    dispatcher_address,
    dispatcher_folder,
    dispatcher_lock,
    knock,
    store_folder,
    store_url,
)
from trainworks.errors import EnvironmentProblem
from trainworks.files import take_lock
from trainworks.host import process
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.probe import probe_host
from trainworks.jobs.store import JobStore, open_store

_LINGERS_S = 10.0
"""After the last job has ended, for the next one to start at once."""
_QUIET_S = 0.05
_LOOK_S = 0.25
"""Between two looks, where nothing happens: states of running jobs, time limits."""
_STORE_RETRY_S = 1.0
_STORE_AWAY_S = 3600.0
"""How long a store may be away before the dispatcher gives up; the next dispatcher continues."""
_TAKES_OVER_S = 60.0
"""How long a new dispatcher waits for one that is about to go, which may have looked at the queue for the last time."""


Queue = Callable[[JobStore, Clock, Sequence[int]], tuple[Dispatcher, Launcher]]
"""Makes the dispatcher of a store; no job may keep the open files."""


def main(starting: int) -> int:
    """The dispatcher of this machine's queue; see `serve_queue`."""

    def queue(store: JobStore, clock: Clock, own_fds: Sequence[int]) -> tuple[Dispatcher, Launcher]:
        machine, ledger = local_nodes(probe_host(store_folder())), machine_ledger()
        launcher = Launcher(clock, own_fds, ledger, shared=not is_private(store.url))
        fair_share = FairShare(store, machine, clock, ledger.folder, str(dispatcher_folder()))
        return Dispatcher(store, machine, launcher, clock, fair_share), launcher

    return serve_queue(starting, queue)


def serve_queue(starting: int, queue: Queue) -> int:
    """Serve the queue until it is empty. The lock in the open file `starting` is released once this process listens."""
    clock, is_starting = SystemClock(), contextlib.ExitStack()
    is_starting.callback(os.close, starting)
    if (lock := _take_over(clock)) is None:
        return 0  # there is one
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    process.adopt_orphans()
    gc.freeze()  # what is there now is shared with every copy of this process, and not to be looked through in any
    store = open_store(store_url(), keep_connection=True)
    while True:
        with _listening() as door:
            is_starting.close()
            dispatcher, launcher = queue(store, clock, [lock, door.fileno()])
            _serve(store, dispatcher, launcher, door, clock)
        if store.is_replaced():  # by a rebuilt one: jobs that run are in the new one, or go on by themselves
            store.close()
            store = open_store(store_url(), keep_connection=True)
            continue
        dispatcher.look()  # from now on whoever submits starts another one; whoever did before is seen here
        if dispatcher.is_idle:
            store.close()
            return 0


@contextmanager
def _listening() -> Iterator[socket.socket]:
    """The socket at which this dispatcher is woken up; a file that a killed one left is replaced."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as door, dispatcher_address() as here:
        Path(here).unlink(missing_ok=True)
        door.bind(here)
        try:
            yield door
        finally:
            Path(here).unlink(missing_ok=True)


def _serve(store: JobStore, dispatcher: Dispatcher, launcher: Launcher, door: socket.socket, clock: Clock) -> None:
    busy_at = clock.now()
    while clock.now() - busy_at < _LINGERS_S and not store.is_replaced():
        _look(dispatcher, clock)
        if not dispatcher.is_idle:
            busy_at = clock.now()
        # until a wake-up, the end of a supervisor, or a timeout; when it is quiet, prepare for the next job
        poll = select.poll()
        poll.register(door, select.POLLIN)
        with contextlib.ExitStack() as opened:
            for supervised in dispatcher.running:
                with contextlib.suppress(ProcessLookupError):
                    handle = os.pidfd_open(supervised.pid)
                    opened.callback(os.close, handle)
                    poll.register(handle, select.POLLIN)
            if not poll.poll(_QUIET_S * 1000):
                launcher.prepare()
                poll.poll((_LOOK_S - _QUIET_S) * 1000)
        with contextlib.suppress(BlockingIOError):
            while door.recv(64):
                pass


def _look(dispatcher: Dispatcher, clock: Clock) -> None:
    """One look; while the store is away jobs run on, and what waits can wait."""
    gives_up_at = clock.now() + _STORE_AWAY_S
    said = ""
    while True:
        try:
            return dispatcher.look()
        except EnvironmentProblem as away:
            if clock.now() > gives_up_at:
                raise
            if str(away) != said:
                said = str(away)
                sys.stderr.write(f"{said}\n")
        clock.sleep(_STORE_RETRY_S)


def _take_over(clock: Clock) -> int | None:
    deadline = clock.now() + _TAKES_OVER_S
    while (lock := take_lock(dispatcher_lock())) is None:
        if knock() or clock.now() > deadline:
            return None
        clock.sleep(0.02)
    return lock


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
