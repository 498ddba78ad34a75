"""What differs between operating systems: locks of files, numbers of users, and signals.

Ranks, the queue of this machine and Slurm's commands need Linux. All that plans, submits over the network and reads
records runs on macOS and Windows as well.
"""

from __future__ import annotations

import enum
import errno
import getpass
import os
import signal
import stat
import sys
import zlib

from trainworks.errors import EnvironmentProblem

if sys.platform == "win32":
    import msvcrt

    def _lock_first_byte(handle: int, *, waits: bool) -> None:
        os.lseek(handle, 0, os.SEEK_SET)
        while True:
            try:
                msvcrt.locking(handle, msvcrt.LK_LOCK if waits else msvcrt.LK_NBLCK, 1)
                break
            except PermissionError as error:  # of LK_NBLCK
                raise BlockingIOError(error.errno, error.strerror) from None
            except OSError as error:
                if error.errno != errno.EDEADLOCK:  # LK_LOCK has tried for 10 s
                    raise

else:
    import fcntl

IS_LINUX = sys.platform == "linux"
IS_WINDOWS = sys.platform == "win32"


class LinuxSignal(enum.IntEnum):
    """Signals by their numbers on Linux, which the nodes run, wherever scripts are written and records are read."""

    SIGHUP = 1
    SIGINT = 2
    SIGKILL = 9
    SIGUSR1 = 10
    SIGUSR2 = 12
    SIGTERM = 15
    SIGSTOP = 19
    SIGPWR = 30


REQUESTS_TO_END = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a program to end: the second when its terminal closes, which Windows tells in another way."""

_FIRST_OF_WINDOWS = 2**32
"""User ids of other systems have 32 bits."""


def check_linux(what: str, *, otherwise: str | None = None) -> None:
    """Refuse what needs Linux on another operating system.

    Args:
        what: subject of the sentence, as `the queue of this machine`.
        otherwise: a next step that needs no Linux, for the hint.

    Raises:
        EnvironmentProblem: this is macOS or Windows.
    """
    if IS_LINUX:
        return
    linux = "run it in WSL: wsl --install" if IS_WINDOWS else "run it in a container or a virtual machine of Linux"
    hint = f"{otherwise}, or {linux}" if otherwise else linux
    name = {"win32": "Windows", "darwin": "macOS"}.get(sys.platform, sys.platform)
    raise EnvironmentProblem(f"{what} needs Linux, and this is {name}", hint=hint)


def lock_file(handle: int, *, shared: bool = False, waits: bool = False) -> None:
    """Lock an open file for this process, and on other systems than Windows for all that inherit the handle.

    The lock ends when the last of them has closed it, or is killed. On Windows every lock is exclusive, and keeps other
    processes from reading the first byte of the file.

    Args:
        handle: of the file, open for writing.
        shared: keep others from an exclusive lock alone.
        waits: wait until the lock is free.

    Raises:
        BlockingIOError: another process has the lock, and `waits` is false.
        OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        _lock_first_byte(handle, waits=waits)
    else:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if waits else fcntl.LOCK_NB))


def user_id() -> int:
    """Number of the user of this process.

    Windows has none: there it is made of the name, in a range that no other system uses.
    """
    if sys.platform == "win32":
        return _FIRST_OF_WINDOWS + zlib.crc32(getpass.getuser().lower().encode())
    return os.getuid()


def owner_id(facts: os.stat_result) -> int:
    """Number of the owner of a file; on Windows, whose access lists `stat` does not show, this user's."""
    return user_id() if IS_WINDOWS else facts.st_uid


def others_write(facts: os.stat_result) -> bool:
    """Whether the mode of a file lets other users write it; false on Windows, where access lists decide."""
    return not IS_WINDOWS and bool(facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
