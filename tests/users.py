"""Other users of this machine, without accounts: processes under numbers that nobody has."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import trainworks

_FIRST_UID = 61_001
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
        return self.run([sys.executable, "-P", "-c", _CLI, *arguments], **env)

    def run(self, command: Sequence[str], **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program in their home."""
        if os.getuid() == self.uid:
            identity = {}
        else:
            identity = {"user": self.uid, "group": self.uid, "extra_groups": []}
        return subprocess.run(
            list(command),
            cwd=self.home,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **self.env, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **identity,  # type: ignore[call-overload]
        )

    def ok(self, *arguments: str, **env: str) -> str:
        """What a command prints that has to succeed."""
        done = self.trainworks(*arguments, **env)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout


def require_root() -> None:
    """Skip, loudly, where no process can have another user, or other users cannot read this program."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: several users on one machine; needs root")
    probe = [sys.executable, "-c", f"open({trainworks.__file__!r})"]
    done = subprocess.run(probe, user=_FIRST_UID, group=_FIRST_UID, extra_groups=[], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("NOT TESTED: several users on one machine; other users cannot read this checkout")


@contextmanager
def common_folder() -> Iterator[Path]:
    """A folder that every user can write, as /tmp; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="trainworks-users-", dir="/tmp") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


def users(folder: Path, count: int, env: Mapping[str, str]) -> list[User]:
    """Root, and so many others, each with a home in `folder`."""
    found = []
    for uid in [0, *range(_FIRST_UID, _FIRST_UID + count)]:
        home = folder / f"home-{uid}"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
        found.append(User(uid, home, env))
    return found
