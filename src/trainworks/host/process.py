"""Processes that end when they should: no orphan outlives whoever started it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import psutil

from trainworks.errors import EnvironmentProblem

__all__ = [
    "Child",
    "Forked",
    "Output",
    "adopt_orphans",
    "append_output",
    "detach",
    "die_with",
    "die_with_parent",
    "end_by_signal",
    "end_descendants",
    "fork",
    "identity",
    "is_running",
    "kill",
    "leave_behind",
    "lines",
    "owner",
    "processes_with",
    "python_module",
    "python_program",
    "replace",
    "run",
    "spawn",
    "state",
    "wait_any",
    "wait_for_end",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_KILL_TAKES_S = 5.0
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Output:
    """What a finished command left."""

    exit_code: int
    stdout: str
    stderr: str


class Child:
    """A process that this one started, at the head of its own process group."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id, and process group id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs; the negative signal number if a signal ended it."""
        return self._process.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for the end; None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process and everything in its group; nothing happens if all are gone."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass


class Forked(Child):
    """A copy of this process; see `fork`."""

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


def python_module(module: str, *arguments: str) -> list[str]:
    """Argument vector that runs a module of ours with this interpreter; no file of the current folder shadows it."""
    return [sys.executable, "-P", "-m", module, *arguments]


def python_program(source: str) -> list[str]:
    """Argument vector that runs a short program with this interpreter; what follows are its arguments."""
    return [sys.executable, "-P", "-c", source]


def run(
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
) -> Output:
    """Run a command to its end and capture what it prints; its exit code is the caller's to judge.

    Args:
        command: argument vector; no shell in between.
        timeout_s: longest time; none when None.
        env: the whole environment; this process's own when None.
        stdin: text that it reads; nothing when None.
        pass_fds: open files that it inherits.

    Raises:
        FileNotFoundError: there is no such program.
        EnvironmentProblem: it took longer than `timeout_s`, and was killed.
    """
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=env,
            check=False,
            input=stdin or "",
            pass_fds=pass_fds,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentProblem(f"`{' '.join(command[:4])} ...` took longer than {timeout_s:.0f} s") from None
    return Output(done.returncode, done.stdout, done.stderr)


def lines(command: Sequence[str]) -> Iterator[str]:
    """What a command prints on stdout, line by line as it comes; whoever stops listening ends the command.

    It is not in the terminal's foreground group: Ctrl-C reaches it through us. What it says on stderr is seen at once.
    """
    process = subprocess.Popen(
        list(command), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, process_group=0
    )
    assert process.stdout is not None
    try:
        yield from process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def spawn(
    command: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    new_session: bool = False,
    pass_fds: Iterable[int] = (),
) -> Child:
    """Start a process whose output is appended to `log`.

    Args:
        command: argument vector; no shell in between.
        log: file that receives stdout and stderr.
        env: the whole environment; this process's own when None.
        folder: working folder; this process's own when None.
        new_session: detach from the terminal, so that the process survives the shell.
        pass_fds: file descriptors that stay open in the child.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=new_session,
            process_group=None if new_session else 0,
            pass_fds=tuple(pass_fds),
        )
    return Child(process)


def detach(command: Sequence[str], *, log: Path, folder: Path, env: Mapping[str, str] | None = None) -> None:
    """Start a process that is nobody's child: it survives us, and we need not wait for it.

    Args:
        command: argument vector; the shell in between gets it as arguments, not as text.
        log: file that receives stdout and stderr.
        folder: working folder.
        env: the whole environment; this process's own when None.
    """
    script = '"$@" < /dev/null >> "$0" 2>&1 &'
    subprocess.run(
        ["/bin/sh", "-c", script, str(log), *command], cwd=folder, env=env, start_new_session=True, check=True
    )


def fork(
    work: Callable[[], int],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    new_session: bool = False,
    close_fds: Iterable[int] = (),
) -> Forked:
    """Run `work` in a copy of this process, whose output is appended to `log`; its result is the exit code.

    A hundred times faster than a new interpreter. For a process without threads, that has no connection open which its
    copy could disturb. What is open stays open, locks included.

    Args:
        work: runs in the copy, which ends with it.
        log: file that receives stdout and stderr.
        env: variables that the copy has besides.
        new_session: detach from the terminal.
        close_fds: file descriptors that the copy must not keep.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as output:
        pid = os.fork()
        if pid:
            if not new_session:
                with suppress(OSError):  # the copy does the same: whoever comes first
                    os.setpgid(pid, pid)
            return Forked(pid)
        code = 1
        try:
            _become_own(output.fileno(), new_session, close_fds)
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


def _become_own(output: int, new_session: bool, close_fds: Iterable[int]) -> None:
    """What a new program has from the start: a group, output, and signals that nobody handles."""
    if new_session:
        os.setsid()
    else:
        os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    _write_to(output)
    for handle in close_fds:
        os.close(handle)


def append_output(log: Path) -> None:
    """Append what this process writes from now on to `log`."""
    sys.stdout.flush()
    sys.stderr.flush()
    with log.open("ab") as output:
        _write_to(output.fileno())


def _write_to(output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)


def wait_any(children: Iterable[Child], timeout_s: float | None) -> None:
    """Wait until one of these processes has ended, or `timeout_s` is over. None is reaped here."""
    poll = select.poll()
    handles = []
    try:
        for child in children:
            try:
                handles.append(os.pidfd_open(child.pid))
            except ProcessLookupError:
                return
            poll.register(handles[-1], select.POLLIN)
        poll.poll(None if timeout_s is None else timeout_s * 1000)
    finally:
        for handle in handles:
            os.close(handle)


def die_with_parent(number: signal.Signals, parent_pid: int | None = None) -> None:
    """Ask the kernel to signal this process when its parent ends; at once if the parent is already gone.

    Args:
        number: the signal to receive.
        parent_pid: who the parent should be, so that one that died before this call is noticed.
    """
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if parent_pid is not None and os.getppid() != parent_pid:
        os.kill(os.getpid(), number)


def die_with(pid: int) -> None:
    """Kill this process, at once, when process `pid` ends; for a process that is not its parent.

    A thread waits on a pidfd, which costs nothing until then.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        os.kill(os.getpid(), signal.SIGKILL)
        return

    def wait_and_die() -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_and_die, name="die-with-agent", daemon=True).start()


def replace(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Become another program, under the same process id.

    Args:
        command: argument vector; the program is looked for on the path.
        env: the whole environment.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvpe(command[0], list(command), dict(env))  # noqa: S606


def leave_behind(work: Callable[[], object]) -> None:
    """Do something in a process without parent and output: whoever ends the tree of this one does not find it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(nowhere, stream)
        work()
    finally:
        os._exit(0)


def end_by_signal(number: int) -> None:
    """End this process by a signal, so that its parent sees which one."""
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def wait_for_end(pid: int) -> None:
    """Wait until a process ends that need not be a child; at once if it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [])
    os.close(handle)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes `end_descendants`."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def end_descendants(grace_s: float) -> int:
    """Terminate every descendant of this process, kill what is left after `grace_s`; returns how many were killed."""
    descendants = psutil.Process().children(recursive=True)
    for process in descendants:
        _signal_quietly(process, signal.SIGTERM)
    _wait_until_gone(descendants, grace_s)
    stubborn = [process for process in psutil.Process().children(recursive=True) if _is_alive(process)]
    for process in stubborn:
        _signal_quietly(process, signal.SIGKILL)
    _wait_until_gone(stubborn, _KILL_TAKES_S)
    return len(stubborn)


def processes_with(variables: Mapping[str, str]) -> list[psutil.Process]:
    """All processes, but for this one, that were started with these environment variables."""
    found = (one for one in psutil.process_iter() if one.pid != os.getpid())
    return [one for one in found if _is_alive(one) and _has(one, variables)]


def variable_of(processes: Iterable[psutil.Process], name: str) -> set[str]:
    """The values that a variable of the environment has in these processes; those that may not be read are left out."""
    found = set()
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            found.add(one.environ().get(name))
    return {value for value in found if value is not None}


def _has(one: psutil.Process, variables: Mapping[str, str]) -> bool:
    try:
        return variables.items() <= one.environ().items()
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _wait_until_gone(processes: list[psutil.Process], timeout_s: float) -> None:
    """Wait without reaping: the exit codes of our own children are for whoever started them."""
    deadline = time.monotonic() + timeout_s
    while any(_is_alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal_quietly(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass


def kill(pid: int) -> None:
    """End a process at once; nothing happens if it is gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def identity(pid: int | None = None) -> tuple[int, float]:
    """Process id and start, in seconds since boot; the pair is unique, the id alone is reused. This process when None.

    The kernel's own count: a clock that is set does not change it, as it does psutil's creation time.
    """
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    ticks = int(stat.rpartition(")")[2].split()[19])
    return pid, ticks / os.sysconf("SC_CLK_TCK")


def owner(pid: int) -> int | None:
    """User whose process that is; None if it is gone."""
    try:
        return int(psutil.Process(pid).uids().real)
    except psutil.NoSuchProcess:
        return None


def state(pid: int) -> str:
    """How the kernel has a process: R running, S sleeping, D uninterruptible, T stopped, Z zombie; X if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "X"
    return stat.rpartition(")")[2].split()[0]


def is_running(pid: int, started_at: float) -> bool:
    """Whether that very process still runs; a zombie does not."""
    try:
        return abs(identity(pid)[1] - started_at) < 0.1 and _is_alive(psutil.Process(pid))
    except (OSError, psutil.NoSuchProcess):
        return False
