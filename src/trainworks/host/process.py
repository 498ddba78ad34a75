"""Child processes: run, spawn and detach. Forks, and the ends and states of processes, are in the modules beside it."""

from __future__ import annotations

import logging
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from trainworks.errors import EnvironmentProblem
from trainworks.host.process_end import (
    adopt_orphans,
    die_with,
    die_with_parent,
    end_by_signal,
    end_descendants,
    has_children,
    identity,
    is_running,
    kill,
    owner,
    processes_with,
    signal_name,
    state,
    sweep,
    variable_of,
    wait_for_end,
    when_ended,
)
from trainworks.masking import masked_command
from trainworks.system import IS_WINDOWS

__all__ = [
    "Child",
    "Output",
    "adopt_orphans",
    "attach",
    "detach",
    "die_with",
    "die_with_parent",
    "end_by_signal",
    "end_descendants",
    "ending_with_parent",
    "has_children",
    "identity",
    "is_running",
    "kill",
    "lines",
    "lines_of",
    "owner",
    "processes_with",
    "python_module",
    "python_program",
    "replace",
    "run",
    "signal_name",
    "spawn",
    "spawn_on",
    "state",
    "sweep",
    "variable_of",
    "wait_any",
    "wait_for_end",
    "when_ended",
]


_LOG = logging.getLogger(__name__)
_LOGGED_CHARACTERS = 2000
"""Characters of a command's output in the log."""
_END_WITH_PARENT = """\
import os, signal, sys
from trainworks.host.process import die_with_parent
die_with_parent(signal.SIGTERM)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, slots=True)
class Output:
    """Exit code and output of a finished command."""

    exit_code: int
    stdout: str
    stderr: str


class Child:
    """A child process that leads its own process group."""

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

    def end(self, grace_s: float) -> None:
        """Terminate the process group, and kill it if this process still runs after the grace; it is reaped."""
        self.signal_group(signal.SIGTERM)
        if self.wait(grace_s) is None:
            self.signal_group(signal.SIGKILL)
            self.wait()

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process group, if it still exists."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def python_module(module: str, *arguments: str, python: str | None = None) -> list[str]:
    """Argument vector that runs a module with this or another interpreter.

    Files of the current folder do not shadow it.
    """
    return [python or sys.executable, "-P", "-m", module, *arguments]


def python_program(source: str) -> list[str]:
    """Argument vector that runs a short program with this interpreter; append its arguments."""
    return [sys.executable, "-P", "-c", source]


def ending_with_parent(command: Sequence[str]) -> list[str]:
    """Arguments that start a program by its path, which the kernel ends when this process ends, even by SIGKILL."""
    return [*python_program(_END_WITH_PARENT), *command]


def run(
    command: Sequence[str],
    *,
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    pass_fds: Sequence[int] = (),
    keeps_stderr: bool = False,
) -> Output:
    """Run a command, without a shell, to its end and capture its output. Any exit code is returned.

    `env` is the whole environment; this process's own when None. The input is empty when None. The files `pass_fds`
    stay open in the command, except on Windows. With `keeps_stderr`, which Windows lacks, the command may leave a
    process behind that keeps its stderr open, which is not waited for.

    Raises:
        FileNotFoundError: the program does not exist.
        EnvironmentProblem: it took longer than `timeout_s` and was killed.
    """
    errors = tempfile.TemporaryFile() if keeps_stderr else None  # noqa: SIM115, closed below
    started_s = time.perf_counter()
    try:
        done = subprocess.run(
            list(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if errors is None else errors,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            env=env,
            check=False,
            input=stdin or "",
            pass_fds=() if IS_WINDOWS else pass_fds,
        )
        said = done.stderr
        if errors is not None:  # without its position, at which the other process may still write
            said = os.pread(errors.fileno(), os.fstat(errors.fileno()).st_size, 0).decode(errors="replace")
        output = Output(done.returncode, done.stdout, said)
        _log_end(command, output, time.perf_counter() - started_s)
        return output
    except subprocess.TimeoutExpired:
        _LOG.info("killed after %.2f s: %s", timeout_s, _Words(command))
        raise EnvironmentProblem(f"`{' '.join(command[:4])} ...` took longer than {timeout_s:g} s") from None
    finally:
        if errors is not None:
            errors.close()


class _Words:
    """A command in the log: made to a text only when it is printed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command

    def __str__(self) -> str:
        return masked_command(self._command)


def _log_end(command: Sequence[str], output: Output, seconds: float) -> None:
    _LOG.info("exit code %d after %.2f s: %s", output.exit_code, seconds, _Words(command))
    for name, text in (("stdout", output.stdout), ("stderr", output.stderr)):
        if text and _LOG.isEnabledFor(logging.DEBUG):
            _LOG.debug("%s: %s", name, text.strip()[:_LOGGED_CHARACTERS])


def _printing(command: Sequence[str]) -> subprocess.Popen[str]:
    """A command whose output is read line by line, outside the foreground group of the terminal."""
    return subprocess.Popen(
        list(command),
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        encoding="utf-8",
        errors="replace",
        process_group=0,
    )


def lines(command: Sequence[str]) -> Iterator[str]:
    """Lines of a command's stdout as they come; closing the iterator ends the command.

    It is not in the foreground group of the terminal, so Ctrl-C reaches this process only. Its stderr is not captured.
    """
    process = _printing(command)
    _LOG.info("process %d reads: %s", process.pid, _Words(command))
    assert process.stdout is not None
    try:
        yield from process.stdout
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def lines_of(commands: Mapping[str, Sequence[str]]) -> Generator[tuple[str, str], None, None]:
    """Lines of several commands as they come, each with the name of its command; closing the iterator ends them all.

    As with `lines`, none is in the foreground group of the terminal, and their stderr is not captured.
    """
    found = queue.SimpleQueue[tuple[str, str | None]]()

    def read(name: str, each: Iterator[str]) -> None:
        for line in each:
            found.put((name, line))
        found.put((name, None))

    with ExitStack() as open_ones:
        for name, command in commands.items():
            process = _printing(command)
            assert process.stdout is not None
            reader = threading.Thread(target=read, args=(name, process.stdout), daemon=True)
            open_ones.enter_context(process.stdout)
            open_ones.callback(reader.join)  # it ends with the last process that could write
            open_ones.callback(process.wait)
            open_ones.callback(os.killpg, process.pid, signal.SIGKILL)
            reader.start()
        left = len(commands)
        while left:
            name, line = found.get()
            if line is None:
                left -= 1
            else:
                yield name, line


def attach(command: Sequence[str]) -> int:
    """Run a command with the terminal and the streams of this process; returns its exit code as a shell reports it.

    Ctrl-C is the command's: this process ignores it meanwhile.

    Raises:
        FileNotFoundError: the program does not exist.
    """
    sys.stdout.flush()
    _LOG.info("in the terminal: %s", _Words(command))
    before = signal.signal(signal.SIGINT, lambda *_: None)  # not SIG_IGN, which the command would inherit
    try:
        code = subprocess.run(list(command), check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


def spawn_on(connection: socket.socket, command: Sequence[str], *, errors: Path | None = None) -> Child:
    """Start a command whose input and output are a connected socket; its errors are appended to a file, or go to stderr
    of this process.

    Raises:
        FileNotFoundError: the program does not exist.
    """
    door = connection.fileno()
    with nullcontext() if errors is None else errors.open("ab") as said:
        return Child(subprocess.Popen(list(command), stdin=door, stdout=door, stderr=said, process_group=0))


def spawn(
    command: Sequence[str],
    *,
    log: Path | None,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
    new_session: bool = False,
    pass_fds: Iterable[int] = (),
) -> Child:
    """Start a process, without a shell, whose output is appended to `log`, or is that of this process when None.

    `env` is the whole environment; it and the working folder are this process's own when None. With `new_session` the
    process survives the shell. The files `pass_fds` stay open in it.
    """
    with nullcontext() if log is None else log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=None if log is None else subprocess.STDOUT,
            env=env,
            cwd=folder,
            start_new_session=new_session,
            process_group=None if new_session else 0,
            pass_fds=tuple(pass_fds),
        )
    _LOG.info("process %d started, output in %s: %s", process.pid, log or "that of this one", _Words(command))
    return Child(process)


def detach(
    command: Sequence[str],
    *,
    log: Path,
    folder: Path,
    env: Mapping[str, str] | None = None,
    pass_fds: Iterable[int] = (),
) -> None:
    """Start a process that is not a child of this one and survives it; its output is appended to `log`.

    The command is passed to a shell as arguments, not as text. `env` is the whole environment; this process's own when
    None. The files `pass_fds` stay open in the process.
    """
    _LOG.info("detached, output in %s: %s", log, _Words(command))
    script = '"$@" < /dev/null >> "$0" 2>&1 &'
    subprocess.run(
        ["/bin/sh", "-c", script, str(log), *command],
        cwd=folder,
        env=env,
        start_new_session=True,
        check=True,
        pass_fds=tuple(pass_fds),
    )


def wait_any(children: Iterable[Child], timeout_s: float | None) -> None:
    """Wait until one of these processes has ended, or `timeout_s` is over, without reaping any."""
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


def replace(command: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by another program, which is searched on the path, under the same process id and with the
    whole environment `env`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    _LOG.info("becomes: %s", _Words(command))
    os.execvpe(command[0], list(command), dict(env))  # noqa: S606
