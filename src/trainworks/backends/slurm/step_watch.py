"""End an `srun` that waits for a slurmstepd that is gone.

For the output of its task, srun keeps a connection to the slurmstepd of its node until the step has ended. If that
slurmstepd is killed, or its node starts again before slurmctld counts it as down, the connection closes and nothing
else happens: neither srun nor slurmctld ends the step (observed with Slurm 22.05).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterable, Mapping
from typing import final

import psutil

from trainworks.backends.slurm.allocation import PATIENCE_S
from trainworks.backends.slurm.client import SlurmClient
from trainworks.errors import TrainworksError
from trainworks.host.clock import Clock

_LOOK_S = 5.0
_PROLOG = re.compile(r"^(Prolog(?:\[\d+\])?|PrologEpilogTimeout) *= *(.*?) *$", re.MULTILINE)
LONGEST_PROLOG_S = 3600.0
_NO_LIMIT = 65_534
"""Slurm's NO_VAL16, which stands for a limit that is not set."""
GRACE_S = 30.0
"""Longest time from the close of its connection to the end of an srun, which waits for the epilog of its task."""


@final
class StepWatch:
    """Finds processes of srun that have lost their connection for good.

    Args:
        first_s: longest time until the first connection of an srun, in seconds; see `first_connection_s`.
    """

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self._alone_since: dict[int, float] = {}
        self._met: set[int] = set()
        """Processes that have been seen with a connection."""

    def take(self, connected: Mapping[int, bool], now: float) -> list[int]:
        """Processes of srun without a connection for `GRACE_S`; for longer if none has been seen yet.

        Args:
            connected: by process id, whether an srun that runs has a connection.
            now: the time, in seconds.
        """
        self._met = {pid for pid, is_connected in connected.items() if is_connected or pid in self._met}
        self._alone_since = {
            pid: self._alone_since.get(pid, now) for pid, is_connected in connected.items() if not is_connected
        }
        return [
            pid
            for pid, since in self._alone_since.items()
            if now - since >= (GRACE_S if pid in self._met else self._first_s)
        ]


def first_connection_s(config: str) -> float:
    """Longest time from the start of an srun to its first connection, in seconds.

    A slurmstepd connects once the prolog of its node has ended, which Slurm lets run for `PrologEpilogTimeout`. A
    prolog without that limit gets an hour: an srun that waits for a slurmstepd that is gone would wait for ever.

    Args:
        config: text of `scontrol show config`, where several prologs are numbered (`Prolog[0]`).
    """
    settings = dict(_PROLOG.findall(config))
    if all(value in ("", "(null)") for name, value in settings.items() if name != "PrologEpilogTimeout"):
        return PATIENCE_S
    limit = settings.get("PrologEpilogTimeout", "")
    return PATIENCE_S + (int(limit) if limit.isdecimal() and int(limit) < _NO_LIMIT else LONGEST_PROLOG_S)


def start_step_watch(client: SlurmClient, clock: Clock) -> None:
    """Watch the children of this process that are srun, in a thread, as long as it runs."""
    threading.Thread(target=_watch, args=(client, clock), daemon=True).start()


def _watch(client: SlurmClient, clock: Clock) -> None:
    first_s = PATIENCE_S
    with contextlib.suppress(TrainworksError):
        first_s = first_connection_s(client.call_patiently(PATIENCE_S, clock, "scontrol", "show", "config"))
    watch = StepWatch(first_s)
    while True:
        clock.sleep(_LOOK_S)
        with contextlib.suppress(psutil.Error, OSError):
            sruns = [child.pid for child in psutil.Process().children() if child.name() == "srun"]
            for pid in watch.take(connected(sruns), clock.now()) if sruns else ():
                sys.stderr.write(f"srun {pid} has lost its slurmstepd: it is ended, its agent counts as lost\n")
                os.kill(pid, signal.SIGKILL)


def connected(pids: Iterable[int]) -> dict[int, bool]:
    """Whether each of these processes has an established TCP connection; those of other users cannot be seen."""
    found = {one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED}
    return {pid: pid in found for pid in pids}
