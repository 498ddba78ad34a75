"""A Python of Linux that lacks what Python lacks on Windows or macOS, and runs commands of Trainworks for real.

It refuses the modules, takes away the attributes, hides /proc and /sys, and gives another `sys.platform`. `os.name` and
the paths stay those of Linux, because `pathlib` cannot be turned. `run_on` starts it: a process, whose libraries keep
the branch of the system on which they really are.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import NamedTuple

_LIBRARIES_WITH_BRANCHES = """
    asyncio click ctypes logging.handlers multiprocessing.connection platform psutil rich.console select selectors
    sqlalchemy.dialects.sqlite tempfile typer urllib.request uuid webbrowser zoneinfo
"""
_READS_PROC = "/psutil/"
"""On the other system it asks the kernel in another way."""

_NOT_ON_MACOS: dict[ModuleType, str] = {
    os: """
        O_DIRECT POSIX_FADV_DONTNEED POSIX_FADV_SEQUENTIAL P_PIDFD RWF_NOWAIT copy_file_range getrandom memfd_create
        pidfd_open posix_fadvise posix_fallocate preadv2 sched_getaffinity sched_setaffinity splice waitid
    """,
    signal: "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK AF_PACKET SOCK_CLOEXEC SOCK_NONBLOCK SO_BINDTODEVICE SO_PEERCRED",
}
_NOT_ON_WINDOWS: dict[ModuleType, str] = {
    os: f"""
        {_NOT_ON_MACOS[os]} O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK WEXITED WNOWAIT chown chroot confstr ctermid
        fchdir fchmod fchown fdatasync fork forkpty fpathconf getegid geteuid getgid getgrouplist getgroups getloadavg
        getpgid getpgrp getpriority getsid getuid killpg lchown mkfifo mknod nice openpty pathconf pread preadv pwrite
        pwritev register_at_fork setegid seteuid setgid setgroups setpgid setpriority setregid setreuid setsid setuid
        statvfs sync sysconf tcgetpgrp ttyname uname wait wait3 wait4
    """,
    signal: f"""
        {_NOT_ON_MACOS[signal]} SIGALRM SIGCHLD SIGCONT SIGHUP SIGIO SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP SIGSYS
        SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU SIGXFSZ SIG_BLOCK SIG_SETMASK
        SIG_UNBLOCK alarm getitimer pause pthread_kill pthread_sigmask setitimer siginterrupt sigpending sigwait
    """,
    socket: f"{_NOT_ON_MACOS[socket]} AF_UNIX CMSG_LEN recv_fds send_fds",
}
_SYSTEMS: dict[str, tuple[str, str, dict[ModuleType, str]]] = {
    "windows": ("win32", "crypt fcntl grp posix pty pwd resource syslog termios tty", _NOT_ON_WINDOWS),
    "macos": ("darwin", "", _NOT_ON_MACOS),
}
_SIGKILL, _open, _statvfs = signal.SIGKILL, os.open, os.statvfs


class Done(NamedTuple):
    """A command that has ended."""

    command: str
    code: int
    out: str
    err: str


def run_on(system: str, commands: Sequence[Sequence[str]], folder: Path, **env: str) -> list[Done]:
    """Run commands one after the other in one process, in a folder, with data of their own."""
    places = {"TRAINWORKS_DATA": str(folder / "data"), "TRAINWORKS_CACHE": str(folder / "cache")}
    python = [sys.executable, "-X", "utf8=0", "-X", "warn_default_encoding", __file__, system]
    done = subprocess.run(
        python,
        input=json.dumps(commands),
        capture_output=True,
        encoding="utf-8",
        check=False,
        cwd=folder,
        env=os.environ | places | {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "USERNAME": "ada"} | env,
    )
    assert done.returncode == 0, done.stderr
    return [Done(*each) for each in json.loads(done.stdout.splitlines()[-1])]


class _Refusing(MetaPathFinder):
    """Says that some modules do not exist."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name in self._names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def _become(system: str) -> None:
    """Make this process one of another system, until its end."""
    for name in _LIBRARIES_WITH_BRANCHES.split():
        importlib.import_module(name)
    platform, refused, lacking = _SYSTEMS[system]
    for name in refused.split():
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, _Refusing(refused.split()))
    for module, names in lacking.items():
        for name in names.split():
            module.__dict__.pop(name, None)
    if system == "windows":
        sys.modules["msvcrt"] = _msvcrt()
        os.open = _open_files  # type: ignore[assignment]
        shutil.disk_usage = _disk_usage  # type: ignore[assignment]
        shutil._use_fd_functions = False  # type: ignore[attr-defined]
        subprocess.Popen.kill = lambda child: child.send_signal(_SIGKILL)  # type: ignore[method-assign]
    sys.platform = platform
    sys.addaudithook(_hide_linux)


def _msvcrt() -> ModuleType:
    """Locks of a file as `msvcrt.locking` takes them."""
    module = ModuleType("msvcrt")
    modes = {"LK_UNLCK": fcntl.LOCK_UN, "LK_LOCK": fcntl.LOCK_EX, "LK_NBLCK": fcntl.LOCK_EX | fcntl.LOCK_NB}
    module.__dict__.update({name: number for number, name in enumerate(modes)})

    def locking(handle: int, mode: int, num_bytes: int) -> None:
        try:
            fcntl.flock(handle, list(modes.values())[mode])
        except BlockingIOError:
            raise PermissionError(13, "Permission denied") from None

    module.__dict__["locking"] = locking
    return module


def _open_files(path: str | Path, flags: int, *mode: int, **named: int) -> int:
    """Windows opens no folder."""
    if Path(path).is_dir():
        raise PermissionError(13, "Permission denied", str(path))
    return _open(path, flags, *mode, **named)


def _disk_usage(path: str | Path) -> shutil._ntuple_diskusage:
    facts = _statvfs(path)
    total, free = facts.f_blocks * facts.f_frsize, facts.f_bavail * facts.f_frsize
    return shutil._ntuple_diskusage(total, total - free, free)


def _hide_linux(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/")):
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if _READS_PROC in frame.f_code.co_filename:
                return
            frame = frame.f_back
        raise FileNotFoundError(2, "No such file or directory", str(arguments[0]))


def _done(command: list[str]) -> Done:
    from trainworks.cli.app import main

    sys.argv, code = ["trainworks", *command], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception as error:  # a traceback of the program
            code = 70
            err.write(f"{type(error).__name__}: {error}")
    return Done(" ".join(command), code, out.getvalue(), err.getvalue())


if __name__ == "__main__":
    wanted = json.load(sys.stdin)
    _become(sys.argv[1])
    warnings.filterwarnings("error", category=EncodingWarning, module=r"trainworks(\.|$)")
    sys.stdout.write(json.dumps([_done(each) for each in wanted]))
