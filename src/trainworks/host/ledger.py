"""Ledger of this machine: cores and accelerators in use by jobs of all users and job stores, without a daemon.

Each job has one file in a folder that every user can write and in which no user can remove the files of others, as in
/tmp. The processes of the job keep a write lock on the file, so the kernel ends the claim with the last of them, even
after kill -9. A file without that lock is ignored, and only its owner can lock it for writing. The owner of the claim
is the owner of the file; everything else in it is checked, because any user can write such a file.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import secrets
import stat
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, final

from pydantic import Field, ValidationError

from trainworks.config.spec import Frozen, RunId
from trainworks.errors import EnvironmentProblem
from trainworks.files import closing_handle
from trainworks.host.clock import Clock, SystemClock
from trainworks.host.users import user_name
from trainworks.system import IS_LINUX, lock_file

if IS_LINUX:
    import fcntl

_LOG = logging.getLogger(__name__)

_PLACES = (Path("/run/lock"), Path("/dev/shm"))  # noqa: S108, files are opened as those of other users
"""Not /dev/shm first: systemd may empty it when a user logs out."""
_NAME = re.compile(r"trainworks-[0-9a-f]{32}\.claim")
_LARGEST = 16 * 1024
_MOST_FILES = 16_384
_MOST_PER_USER = 1024
_PATIENCE_S = 30.0
"""A claim takes milliseconds; a busy machine may stop the process that makes it for seconds."""
_POLL_S = 0.005
_FLOCK = "hhqqi4x"
"""`struct flock` of Linux."""


class Share(Frozen):
    """Resources of this machine claimed by one job."""

    run: RunId
    """Name of the run, for messages."""
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    """Hash of its run directory; see `claim_key`."""
    cores: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    devices: Annotated[tuple[Annotated[int, Field(ge=0, le=65535)], ...], Field(max_length=1024)] = ()
    """Accelerators, by CUDA's index."""
    team: Annotated[str, Field(max_length=253)] = ""
    """Team that the job names; the quotas of this machine decide whether its owner is a member."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A share in use, and its owner."""

    uid: int
    share: Share

    def __str__(self) -> str:
        return f"{user_name(self.uid)} ({self.share.run})"


Choose = Callable[[Sequence[Claim]], Share | None]
"""Selects the share to take, given all claims; None to take none."""


def claim_key(run_dir: str | Path) -> str:
    """Key of a run in the ledger, which hides its path from other users."""
    return hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:32]


def ledger_in(own: Path | None) -> MachineLedger:
    """The ledger in a folder, which is made, else in /run/lock or /dev/shm; without effect if neither exists."""
    if own is not None:
        return MachineLedger(_made(own))
    return MachineLedger(next((place for place in _PLACES if _is_common(place)), None))


def _made(folder: Path) -> Path:
    if not folder.exists():
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(0o1777)
    return folder


def _is_common(folder: Path) -> bool:
    """True if every user can create files in the folder, and only root can remove those of others."""
    try:
        facts = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == 0 and facts.st_mode & 0o1777 == 0o1777


@final
class MachineLedger:
    """Claims of all jobs of this machine; the folder is None if it has none for them."""

    def __init__(self, folder: Path | None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()

    @property
    def folder(self) -> Path | None:
        """Folder of the claims."""
        return self._folder

    def claims(self) -> list[Claim]:
        """Current claims in order of users and runs; unreadable or unlocked files are skipped."""
        found = [claim for path in self._files() if (claim := _read(path)) is not None]
        counts: Counter[int] = Counter()
        kept = []
        for claim in sorted(found, key=lambda one: (one.uid, one.share.run, one.share.key)):
            counts[claim.uid] += 1
            if counts[claim.uid] <= _MOST_PER_USER:
                kept.append(claim)
        return kept

    def claim(self, choose: Choose) -> int | None:
        """Take a share; no other claim is possible between the choice and the taking.

        Returns:
            An open file: the claim lasts until every process that inherits it has ended or closed it. None if `choose`
            takes none. If claims cannot be written, an open file without a claim: a full disk of the ledger does not
            prevent jobs from running.

        Raises:
            EnvironmentProblem: another process keeps the ledger locked.
        """
        if self._folder is None:
            return _nothing() if choose([]) is not None else None
        with self._locked():
            self._clean_up()
            share = choose(self.claims())
            _LOG.info("claim in %s: %s", self._folder, share or "none is free")
            if share is None:
                return None
            try:
                return _written(self._folder / f"trainworks-{secrets.token_hex(16)}.claim", share)
            except OSError as error:
                sys.stderr.write(f"cannot write to the ledger of this machine `{self._folder}`: {error.strerror}\n")
                return _nothing()

    def _files(self) -> Iterator[str]:
        if self._folder is None:
            return
        try:
            with os.scandir(self._folder) as entries:
                for number, entry in enumerate(one for one in entries if _NAME.fullmatch(one.name)):
                    if number == _MOST_FILES:
                        return
                    yield entry.path
        except OSError:
            return

    def _clean_up(self) -> None:
        """Remove this user's files of ended jobs; the caller must hold the lock."""
        for path in self._files():
            with suppress(OSError):
                if os.lstat(path).st_uid == os.getuid():
                    with opened(path) as handle:
                        is_locked = _has_writer(handle)
                    if not is_locked:
                        Path(path).unlink()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        assert self._folder is not None
        try:
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot open the ledger of this machine `{self._folder}`: {error.strerror}",
                hint="set TRAINWORKS_LEDGER to another folder",
            ) from None
        with closing_handle(handle):
            self._wait_for(handle)
            yield

    def _wait_for(self, handle: int) -> None:
        deadline = self._clock.now() + _PATIENCE_S
        while True:
            try:
                return lock_file(handle)
            except BlockingIOError:
                if self._clock.now() > deadline:
                    raise EnvironmentProblem(
                        f"another process keeps the ledger of this machine `{self._folder}` locked",
                        hint=f"find it: fuser -v {self._folder}",
                    ) from None
            self._clock.sleep(_POLL_S)


def _nothing() -> int:
    return os.open(os.devnull, os.O_RDONLY)


def _written(path: Path, share: Share) -> int:
    """Write a claim to a new file that this process locks; the file is complete or absent."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        content = share.model_dump_json(exclude_defaults=True).encode()  # as versions without teams read it
        if os.write(handle, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fchmod(handle, 0o644)
    except BaseException:
        os.close(handle)
        path.unlink(missing_ok=True)
        raise
    return handle


@contextmanager
def opened(path: str | Path) -> Iterator[int]:
    """Open a file that another user may have created, without following links or waiting for pipes."""
    with closing_handle(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)) as handle:
        yield handle


def _read(path: str) -> Claim | None:
    try:
        with opened(path) as handle:
            if not _has_writer(handle):
                return None
            facts, content = plain_content(handle)
            return Claim(facts.st_uid, Share.model_validate_json(content))
    except (OSError, ValidationError):
        return None


def plain_content(handle: int, largest: int = _LARGEST) -> tuple[os.stat_result, bytes]:
    """Facts and content of an open file that another user may have created.

    Raises:
        OSError: it is not a plain file, users other than its owner can write it, or it is too large.
    """
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o022 or facts.st_size > largest:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return facts, os.read(handle, largest)


def _has_writer(handle: int) -> bool:
    """True if a process holds a write lock on the file, which needs permission to write; takes no lock."""
    question = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, question)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
