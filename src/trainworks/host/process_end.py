"""States and ends of processes that need not be children: identity, death with a parent, end of all descendants."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil


def identity(pid: int | None = None) -> tuple[int, float]:
    """Process id and start in seconds since boot; the pair is unique, while ids are reused. This process by default.

    Setting the clock does not change this time, unlike the creation time of psutil.
    """
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    return pid, ticks / os.sysconf("SC_CLK_TCK")


def owner(pid: int) -> int | None:
    """User id of a process; None if it is gone."""
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.NoSuchProcess:
        return None


def state(pid: int) -> str:
    """Kernel state of a process: R running, S sleeping, D uninterruptible, T stopped, Z zombie; X if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def is_running(pid: int, started_at: float) -> bool:
    """True if the process with this start still runs and is not a zombie."""
    try:
        return abs(identity(pid)[1] - started_at) < 0.1 and is_alive(psutil.Process(pid))
    except (OSError, psutil.NoSuchProcess):
        return False


def is_alive(process: psutil.Process) -> bool:
    """True if a process runs and is not a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def processes_with(variables: Mapping[str, str]) -> list[psutil.Process]:
    """All other processes that were started with these environment variables.

    A queue asks after every job: only of those whose environment has them does psutil find out more.
    """
    wanted = [f"\0{name}={value}\0".encode() for name, value in variables.items()]
    found = []
    for pid in psutil.pids():
        environment = _environment(pid)
        if pid != os.getpid() and all(one in environment for one in wanted):
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def _environment(pid: int) -> bytes:
    """Environment of a process as the kernel shows it, a zero around each variable; none of one that has ended."""
    text = b"\0"
    try:
        handle = os.open(f"/proc/{pid}/environ", os.O_RDONLY)
    except OSError:
        return text
    try:  # without context managers: they would take half of the time, hundreds of times for every job
        while part := os.read(handle, 8192):  # Python clears as much memory as it asks for
            text += part
    except OSError:  # it has ended meanwhile
        return b""
    finally:
        os.close(handle)
    return text


def sweep(variables: Mapping[str, str]) -> int:
    """Kill all other processes that were started with these environment variables, and those that they start meanwhile;
    returns their number.
    """
    killed = 0
    for _ in range(_SWEEPS):
        found = processes_with(variables)
        for one in found:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        if not found:
            break
        psutil.wait_procs(found, timeout=1)
        killed += len(found)
    return killed


def variable_of(processes: Iterable[psutil.Process], name: str) -> set[str]:
    """Values of an environment variable in these processes; unreadable ones are skipped."""
    found = set()
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found.add(one.environ().get(name))
    return {value for value in found if value is not None}


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TAKES_S = 5.0
_POLL_S = 0.01
_SWEEPS = 5


def die_with_parent(number: signal.Signals, parent_pid: int | None = None) -> None:
    """Let the kernel signal this process when its parent ends; at once if the expected parent is gone already."""
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def follow_parent(parent: int) -> None:
    """Start of a process of a pool: it ends with its parent, which alone hears an interruption."""
    die_with_parent(signal.SIGKILL, parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def die_with(pid: int) -> None:
    """Kill this process when process `pid` ends, which need not be its parent."""
    when_ended(pid, partial(os.kill, os.getpid(), signal.SIGKILL))


def when_ended(pid: int, act: Callable[[], None]) -> None:
    """Call `act` when process `pid` ends, which need not be a child; at once if it is gone.

    A thread waits on a pidfd, at no cost.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        act()
        return

    def wait_and_act() -> None:
        _wait_until_ended(handle)
        act()

    threading.Thread(target=wait_and_act, name=f"until-{pid}-ends", daemon=True).start()


def end_by_signal(number: int) -> None:
    """End this process by a signal, so that its parent sees the number."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def signal_name(number: int) -> str:
    """`SIGKILL`; `SIGRTMIN+5` for one of those that Python has no name for."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIGRTMIN{number - signal.SIGRTMIN:+d}"


def kill(pid: int) -> None:
    """Kill a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_for_end(pid: int) -> None:
    """Wait until a process ends, which need not be a child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    _wait_until_ended(handle)
    os.close(handle)


def _wait_until_ended(handle: int) -> None:
    """Wait for the process of a pidfd; `select` refuses handles from 1024 on."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that none escapes `end_descendants`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def has_children() -> bool:
    """Whether this process has children, ended ones included that it has not waited for; without, no descendants.

    The kernel says so at once; to find the descendants, psutil reads a file of every process of the machine.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def end_descendants(grace_s: float, *, spare: Iterable[int] = ()) -> int:
    """Terminate every descendant of this process and kill the rest after `grace_s`; returns the number of kills.

    Children in `spare` stay, with their descendants.
    """
    if not has_children():
        return 0
    spared = frozenset(spare)
    descendants = _descendants(spared)
    for process in descendants:
        _signal_quietly(process, signal.SIGTERM)
    _wait_until_gone(descendants, grace_s)
    stubborn = [process for process in _descendants(spared) if is_alive(process)]
    for process in stubborn:
        _signal_quietly(process, signal.SIGKILL)
    _wait_until_gone(stubborn, _KILL_TAKES_S)
    return len(stubborn)


def _descendants(spared: frozenset[int]) -> list[psutil.Process]:
    """All descendants of this process but the spared children and their descendants."""
    everyone = psutil.Process().children(recursive=True)
    kept = [one for one in everyone if one.pid in spared]
    kept += [below for one in kept for below in one.children(recursive=True)] if kept else []
    return [one for one in everyone if one not in kept]


def _wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> None:
    """Wait without reaping, so that the exit codes of children stay available."""
    deadline = time.monotonic() + timeout_s
    while any(is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _signal_quietly(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
