"""A folder in which each user of a machine has a socket: one server reaches the own server of every user there.

    FOLDER/address            where people open the page; written by the owner of the folder
    FOLDER/1001/agent.sock    where the server of user 1001 listens

The folder belongs to the user of the shared page; as in /tmp, all users may make a name in it, and remove their own
alone. A name proves nothing, because any user may take any. What proves whose server answers is the owner of the inner
folder, and the user of the listening process, which the kernel knows and which is checked before a byte is sent.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainworks.api.jobs import current_user as user_name
from trainworks.errors import ArgumentError, EnvironmentProblem, NotOwnerError, UnreachableError
from trainworks.files import closing_handle, take_lock, write_atomic
from trainworks.host.folders import data_folder
from trainworks.host.listening import is_token, read_secret
from trainworks.system import check_linux, others_write, user_id

_SOCKET, _LOCK, _ADDRESS = "agent.sock", "agent.lock", "address"
_BACKLOG = 128
_MEMBER_TOKEN = re.compile(r"(0|[1-9][0-9]{0,9})\.([A-Za-z0-9_-]{43})")
_PEER = struct.Struct("3i")
"""Linux's `struct ucred`: process, user and group at the other end of a socket."""


@dataclass(frozen=True, slots=True)
class MemberToken:
    """A token of a user's own server, with the user in front: `1001.SECRET`."""

    uid: int
    secret: str

    def __str__(self) -> str:
        return f"{self.uid}.{self.secret}"

    def __repr__(self) -> str:
        return f"MemberToken({self.uid}, ...)"

    @classmethod
    def parse(cls, text: str) -> MemberToken | None:
        """The token that a text is; None for any other text.

        >>> MemberToken.parse("1001." + "x" * 43)
        MemberToken(1001, ...)
        >>> MemberToken.parse("1001/../1002." + "x" * 43) is None
        True
        """
        match = _MEMBER_TOKEN.fullmatch(text)
        return cls(int(match[1]), match[2]) if match else None

    @classmethod
    def own(cls) -> MemberToken:
        """The token of this user, which is made once and stays: a file that only this user may read.

        Raises:
            ArgumentError: other users can read the file, or it has no token.
        """
        file = data_folder("team", "token")
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (
            suppress(FileExistsError),
            os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out,
        ):
            out.write(secrets.token_urlsafe(32))
        secret = read_secret(file, argument="join").strip()
        token = cls.parse(f"{user_id()}.{secret}") if is_token(secret) else None
        if token is None:
            raise ArgumentError(f"`{file}` has no token", argument="join", hint=f"delete it for a new one: rm {file}")
        return token


@dataclass(frozen=True, slots=True)
class TeamFolder:
    """The folder that the users of a machine share for one page."""

    path: Path
    argument: str = "join"
    """What names it, for errors."""

    @property
    def command(self) -> str:
        """The command with which a user joins."""
        return f"trainworks serve --join {shlex.quote(str(self.path))}"

    def check(self) -> os.stat_result:
        """The facts of the folder, in which no user can remove or replace what another one made.

        Raises:
            ArgumentError: it is missing, a link, or open to all without the sticky bit.
            EnvironmentProblem: this machine does not run Linux.
        """
        check_linux("a page for a team")
        make = f"make it as the user of the shared page: mkdir -m 1777 {self.path}"
        try:
            facts = self.path.lstat()
        except OSError as error:
            message = f"cannot use the folder `{self.path}`: {error.strerror}"
            raise ArgumentError(message, argument=self.argument, hint=make) from None
        if not stat.S_ISDIR(facts.st_mode):
            raise ArgumentError(f"`{self.path}` is a link or a file, not a folder", argument=self.argument, hint=make)
        if others_write(facts) and not facts.st_mode & stat.S_ISVTX:
            message = f"every user can remove what others make in `{self.path}`"
            raise ArgumentError(message, argument=self.argument, hint=f"chmod +t {self.path}")
        return facts

    def publish(self, address: str) -> None:
        """Write down where people open the page; only for the owner of the folder.

        Raises:
            ArgumentError: as `check`; or the folder belongs to another user, who could send people elsewhere.
            EnvironmentProblem: the file cannot be written.
        """
        owner = self.check().st_uid
        if owner != user_id():
            raise ArgumentError(
                f"`{self.path}` belongs to {user_name(owner)}, and the shared page runs as {user_name()}",
                argument=self.argument,
                hint=f"chown {user_name()} {self.path}",
            )
        try:
            write_atomic(self.path / _ADDRESS, f"{address}\n")
        except OSError as error:
            raise EnvironmentProblem(f"cannot write `{self.path / _ADDRESS}`: {error.strerror}") from None

    def address(self) -> str | None:
        """Where people open the page, as the owner of the folder wrote it; None before the first start of the page."""
        owner = self.check().st_uid
        try:
            handle = os.open(self.path / _ADDRESS, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            facts = os.fstat(handle)
            if facts.st_uid != owner or not stat.S_ISREG(facts.st_mode):  # another user's lure
                return None
            text = file.read(2000).decode("ascii", "replace").strip()
        return text if re.fullmatch(r"https?://[!-~]+/", text) else None

    def listen(self) -> socket.socket:
        """The socket of this user, which listens; one process at a time has it, until it ends.

        Raises:
            ArgumentError: as `check`.
            EnvironmentProblem: the user is root, or has a server there already, or the folder cannot be written.
            NotOwnerError: another user has taken the name.
        """
        self.check()
        if user_id() == 0:
            raise EnvironmentProblem("a page for a team runs no jobs of root", hint="join as a user without privileges")
        own = self.path / str(user_id())
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.mkdir(mode=0o711, exist_ok=True)
            with self._folder_of(user_id()) as place:
                place.chmod(0o711)
                if take_lock(place / _LOCK) is None:  # and held until the process ends
                    hint = f"end it first, it has locked {own / _LOCK}"
                    raise EnvironmentProblem(f"a server of {user_name()} has joined `{self.path}` already", hint=hint)
                (place / _SOCKET).unlink(missing_ok=True)
                listening.bind(str(place / _SOCKET))
                (place / _SOCKET).chmod(0o666)
                listening.listen(_BACKLOG)
        except BaseException as error:
            listening.close()
            if not isinstance(error, OSError):
                raise
            raise EnvironmentProblem(f"cannot listen in `{own}`: {error.strerror}") from None
        return listening

    def connect(self, uid: int) -> socket.socket:
        """A connection to the server of a user, without blocking; this user runs it for sure.

        Raises:
            UnreachableError: none runs there, or it is busy.
            NotOwnerError: another user has taken the name, or listens there.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with self._folder_of(uid) as place:
                connection.connect(str(place / _SOCKET))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            if (listener := _PEER.unpack(peer)[1]) != uid:
                raise NotOwnerError(f"{user_name(listener)} listens in the place of {user_name(uid)}: nothing was sent")
        except BaseException as error:
            connection.close()
            if not isinstance(error, OSError):
                raise
            if isinstance(error, BlockingIOError):
                raise UnreachableError(f"the server of {user_name(uid)} is busy", hint="try again") from None
            hint = f"run as {user_name(uid)} on {socket.gethostname()}: {self.command}"
            raise UnreachableError(f"no server of {user_name(uid)} runs", hint=hint) from None
        return connection

    @contextmanager
    def _folder_of(self, uid: int) -> Iterator[Path]:
        """The inner folder of a user, as a short path that stays with it if its name is given to another."""
        with closing_handle(os.open(self.path / str(uid), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)) as handle:
            facts = os.fstat(handle)
            if facts.st_uid != uid or others_write(facts):
                whose = "is open to other users" if facts.st_uid == uid else f"belongs to {user_name(facts.st_uid)}"
                raise NotOwnerError(
                    f"`{self.path / str(uid)}`, the place of {user_name(uid)}, {whose}",
                    hint=f"let the owner of `{self.path}` remove it: rm -r {self.path / str(uid)}",
                )
            yield Path(f"/proc/self/fd/{handle}")
