"""`users` and `directory` of the stack file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainworks.config.spec import FieldError, Spec
from trainworks.config.stack_parts.words import AccountName, PublicKey

DistinguishedName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]*=[^\x00-\x1f{}]*[^\x00-\x1f{}\s]$", max_length=512)
]
"""Place of an entry in a directory: `ou=people,dc=example,dc=org`."""
Server = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]{1,5})?$", max_length=253)]
Certificates = Annotated[
    str, StringConstraints(pattern=r"^(-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n]+-----END CERTIFICATE-----\n?)+$")
]


class StackUser(Spec):
    """A user of the cluster, with the same number on all nodes."""

    name: AccountName
    uid: Annotated[int, Field(ge=1000, le=60000)] | None = None
    """Without it, the user is one of `directory`, which has the number and the keys."""
    account: AccountName | None = None
    """Account that the jobs are charged to; with `slurm`, each user needs one."""
    keys: tuple[PublicKey, ...] = ()
    administers: bool = False
    """True makes the user a coordinator of the account in Slurm, who may add members and set their limits."""

    @model_validator(mode="after")
    def _keys_in_one_place(self) -> StackUser:
        if self.uid is None and self.keys:
            hint = "remove `keys`, or give the user a `uid` of the stack"
            raise FieldError(f"without a `uid`, the keys of `{self.name}` are those of the directory", hint=hint)
        return self


class Directory(Spec):
    """Users and their ssh keys from a directory, which every node asks through sssd, over TLS alone."""

    kind: Literal["ldap"] = "ldap"
    servers: Annotated[tuple[Server, ...], Field(min_length=1)]
    """Hosts by the names of their certificates, `ldap1.example.org` or with a port; the first that answers is asked."""
    base: DistinguishedName
    """Entry that users and groups are below."""
    tls: Literal["ldaps", "starttls"] = "ldaps"
    """TLS from the first byte, at port 636, or asked for at port 389; a server without it is not talked to."""
    ca: Certificates | None = None
    """Certificate of the authority that signed those of the servers, as PEM; by default those of the distribution."""
    bind: DistinguishedName | None = None
    """Entry that nodes log in as, with the password in `secrets/directory.password` of the project; anonymous by
    default."""
    ldap_schema: Literal["rfc2307", "rfc2307bis", "ad"] = "rfc2307"
    """How groups name their members: by login (`memberUid`), by entry (`member`), or as Active Directory does."""
    groups: tuple[AccountName, ...] = ()
    """Groups whose members may log in; all users when left out."""
    check: AccountName | None = None
    """User that `verify` looks up on each node, beside those of `users`."""
