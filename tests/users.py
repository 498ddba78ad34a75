"""Other users of this machine, without accounts: processes under numbers that nobody has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

FIRST_UID = 61_001
_CLI = "import sys; from trainworks.cli.app import main; sys.exit(main())"


@dataclass(frozen=True)
class User:
    """A user with a home of their own, in a folder that all users share.

    Args:
        uid: user and group.
        home: theirs alone.
        env: variables of their commands, besides the home.
    """

    uid: int
    home: Path
    env: Mapping[str, str]

    def trainworks(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a command in their home."""
        return self.run([*self.program, *arguments], **env)

    @property
    def program(self) -> list[str]:
        """The command line of this checkout."""
        return [sys.executable, "-P", "-c", _CLI]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command in their home, and do not wait for it."""
        return subprocess.Popen(
            [*_as_user(self.uid), *self.program, *arguments],
            cwd=self.home,
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in their home, whose output can be read."""
        return self.popen_program([*self.program, *arguments], stdin=subprocess.DEVNULL)

    def popen_program(self, command: Sequence[str], *, stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
        """Start a program in their home, whose output can be read."""
        return subprocess.Popen(
            [*_as_user(self.uid), *command],
            cwd=self.home,
            env=self._environment(),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _environment(self, **env: str) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.home), **self.env, **env}

    def run(self, command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program in their home."""
        return subprocess.run(
            [*_as_user(self.uid), *command],
            cwd=self.home,
            env=self._environment(**env),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def ok(self, *arguments: str, **env: str) -> str:
        """What a command prints that has to succeed."""
        done = self.trainworks(*arguments, **env)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


def _as_user(uid: int) -> list[str]:
    """Become that user. Where the interpreter is closed to others, the user may read every file, and no more."""
    who = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    if uid == 0:
        return []
    return [*who, *(f"--{name}=-all,+dac_read_search" for name in ("inh-caps", "ambient-caps") if _is_closed())]


@cache
def _is_closed() -> bool:
    """Whether the interpreter lies where other users cannot read it; a shell in between has no rights of root left."""
    plain = ["setpriv", "--reuid", str(FIRST_UID), "--regid", str(FIRST_UID), "--clear-groups"]
    command = [*plain, "sh", "-c", '"$0" -c "import trainworks.host.process"', sys.executable]
    return subprocess.run(command, capture_output=True, check=False, cwd="/").returncode != 0


def require_root() -> None:
    """Skip, loudly, where no process can have another user."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("NOT TESTED: several users on one machine; needs root and setpriv (util-linux)")


@contextmanager
def common_folder() -> Iterator[Path]:
    """A folder that every user can write, as /tmp; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="trainworks-users-", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def users(folder: Path, count: int, env: Mapping[str, str], first_uid: int = FIRST_UID) -> list[User]:
    """Root, and so many others, each with a home in `folder`."""
    found = []
    for uid in [0, *range(first_uid, first_uid + count)]:
        home = folder / f"home-{uid}"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        found.append(User(uid, home, env))
    return found
