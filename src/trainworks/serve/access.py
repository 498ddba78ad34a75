"""Who may do what: tokens with roles, and users whom a trusted proxy names.

Every request needs a token, on this machine, too: other users of the machine can connect to it as well.
"""

from __future__ import annotations

import enum
import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from trainworks.api.jobs import current_user
from trainworks.errors import ArgumentError
from trainworks.host.listening import SHORTEST_TOKEN, is_token, read_secret


class Role(enum.IntEnum):
    """What a visitor may do; each role may do what the ones below it may."""

    VIEWER = 1
    """Read everything."""
    SUBMITTER = 2
    """Submit jobs, and stop and resume their own."""
    ADMIN = 3
    """Stop all jobs that the user of the server may stop."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request."""

    role: Role
    user: str | None = None
    """Account that the proxy names, or the user of a server that has joined a shared page; None for the holder of any
    other token, who acts as the user of the server.
    """

    def at_most(self, roles: Sequence[str]) -> Visitor:
        """The same visitor with the lowest of these roles, if that is lower; an unknown role is that of a viewer.

        >>> Visitor(Role.ADMIN).at_most(["submitter"]).role.name, Visitor(Role.VIEWER).at_most(["admin"]).role.name
        ('SUBMITTER', 'VIEWER')
        """
        limits = [Role.__members__.get(one.upper(), Role.VIEWER) for one in roles]
        return replace(self, role=min(self.role, *limits, Role.ADMIN))


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProxyAccess(_Strict):
    """A proxy that signs users in, and proves itself by a token."""

    token: str
    header: str = "X-Forwarded-User"
    """Header with the name of the user."""
    admins: tuple[str, ...] = ()
    submitters: tuple[str, ...] = ()
    viewers: tuple[str, ...] | Literal["*"] = "*"
    """`*`: every user whom the proxy lets through."""

    def role_of(self, user: str) -> Role | None:
        """The role of a user; None without access."""
        if user in self.admins:
            return Role.ADMIN
        if user in self.submitters:
            return Role.SUBMITTER
        return Role.VIEWER if self.viewers == "*" or user in self.viewers else None


_account = lru_cache(maxsize=4096)(current_user)
"""A directory may take a second to name a user, and each request of a member needs the name."""
RoleName = Literal["viewer", "submitter", "admin"]


class TeamAccess(_Strict):
    """A shared page: it passes what a member asks to the server that this member runs, and does nothing itself."""

    folder: Path
    """Folder of the sockets of all members' servers, which belongs to the user of this server."""
    address: str | None = None
    """Where people open the page: `https://train.example/`; where it listens, by the first of `hosts`, when None."""
    members: Mapping[str | int, RoleName] = {"*": "submitter"}
    """Role of a user, by name or number; `*` stands for every user who is not named. It lowers what users may do by
    their own server, and never raises it.
    """

    def role_of(self, uid: int) -> Role | None:
        """The role of a user; None without access, and for root, as whom no page starts a job."""
        names = (_account(uid), uid, str(uid), "*")
        found = next((self.members[name] for name in names if name in self.members), None)
        return None if found is None or uid == 0 else Role[found.upper()]


class Access(_Strict):
    """The content of an access file."""

    tokens: Mapping[RoleName, str] = {}
    proxy: ProxyAccess | None = None
    team: TeamAccess | None = None
    hosts: tuple[str, ...] = ()
    """Names by which browsers reach the server, besides that of its machine: `train.example.org`, without a port."""

    @model_validator(mode="after")
    def _check(self) -> Access:
        secret = [*self.tokens.values(), *([self.proxy.token] if self.proxy else [])]
        if not secret and self.team is None:
            raise ValueError("it has neither `tokens` nor a `proxy` nor a `team`")
        if self.team is not None and not self.team.folder.is_absolute():
            raise ValueError(f"`team.folder` is not absolute: {self.team.folder}")
        if self.team is not None and self.tokens.keys() - {"viewer"}:
            raise ValueError("beside a `team` only a viewer has a token: its members have tokens of their own")
        if not all(map(is_token, secret)):
            raise ValueError(f"a token is shorter than {SHORTEST_TOKEN} printable ASCII characters")
        if len(set(secret)) < len(secret):
            raise ValueError("two tokens are equal")
        return self

    def visitor(self, token: str, user: str | None) -> Visitor | None:
        """The visitor with the token of a request; None without access. The `user` in the proxy's header is ignored
        unless the token is that of the proxy.
        """
        given = token.encode("utf-8", "replace")
        if self.proxy is not None and hmac.compare_digest(given, self.proxy.token.encode()):
            role = self.proxy.role_of(user) if user else None
            if role is not None and self.team is not None:
                role = Role.VIEWER  # until they sign in to the server of their own
            return None if role is None else Visitor(role, user)
        found = [name for name, one in self.tokens.items() if hmac.compare_digest(given, one.encode())]
        return Visitor(Role[found[0].upper()]) if found else None


class OwnAccess(Access):
    """Access of one user to their own server, by the token `admin`."""

    user: str

    def visitor(self, token: str, user: str | None) -> Visitor | None:
        """The visitor with the token of a request, who is this user; None without access."""
        found = super().visitor(token, user)
        return replace(found, user=self.user) if found else None


def new_access() -> Access:
    """Access by one new token of an administrator."""
    return Access(tokens={"admin": secrets.token_urlsafe(32)})


def read_access(file: Path) -> Access:
    """The access file, which only its owner may read.

    Raises:
        ArgumentError: it is missing, other users can read it, or its content is invalid.
    """
    text = read_secret(file, argument="access")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ArgumentError(f"cannot read `{file}`: it is not YAML", argument="access") from None
    try:
        return Access.model_validate(content)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, detail["loc"]))
        message = str(detail["msg"]).removeprefix("Value error, ")
        raise ArgumentError(
            f"`{file}` is invalid: {f'{where}: ' if where else ''}{message}",
            argument="access",
            hint='write, for example: tokens: {viewer: "...", submitter: "..."}',
        ) from None
