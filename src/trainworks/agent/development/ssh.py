"""An ssh server for one user, without privileges: own host key, own list of keys, no passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from trainworks.agent.development.serving import Place, find_program, write_private
from trainworks.errors import EnvironmentProblem
from trainworks.host import process
from trainworks.host.network import greeting
from trainworks.host.process_tree import children_of
from trainworks.record.dev_environment import DevServer

KEYS_VARIABLE = "TRAINWORKS_DEV_KEYS"
"""Environment variable with the public keys that may log in, one on each line."""
PACKAGE = "openssh-server"
_PRIVILEGE_SEPARATION = Path("/run/sshd")
_OWN_TO_A_LOGIN = re.compile(
    r"(HOME|USER|LOGNAME|SHELL|MAIL|TERM|PWD|OLDPWD|SHLVL|_|DISPLAY|SSH_.*|TRAINWORKS_DEV_KEYS)"
)
_NOT_LOGGED_IN = ("[preauth]", "[accepted]", "[net]")
"""Endings in the process titles of sshd's children before a user has logged in."""


class SshServing:
    """`sshd` of a user, in the foreground, at `place`.

    Public `keys` may log in; sessions have the variables `env` of the job.

    Raises:
        EnvironmentProblem: sshd is not installed, or the list of keys is empty.
    """

    name = "sshd"

    def __init__(self, place: Place, keys: str, env: Mapping[str, str]) -> None:
        program = find_program("sshd", PACKAGE)
        if not keys.strip():
            raise EnvironmentProblem(f"no public key may log in: {KEYS_VARIABLE} is empty")
        self._place = place
        self._host_key = self._make_host_key()
        write_private(place.folder / "authorized_keys", keys.strip() + "\n")
        write_private(place.folder / "sshd_config", sshd_config(place, env))
        if os.geteuid() == 0:  # sshd of root insists on it, and the service that would create it may not run here
            _PRIVILEGE_SEPARATION.mkdir(mode=0o755, exist_ok=True)
        command = [program, "-D", "-e", "-f", str(place.folder / "sshd_config")]
        self.child = process.spawn(process.ending_with_parent(command), log=place.log)

    def _make_host_key(self) -> str:
        """Keep the key of an earlier start of the run: its users have pinned it."""
        key = self._place.folder / "host_key"
        public = key.with_suffix(".pub")
        if not (key.exists() and public.exists()):
            key.unlink(missing_ok=True)
            keygen = find_program("ssh-keygen", "openssh-client")
            made = process.run([keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], timeout_s=30.0)
            if made.exit_code != 0:
                raise EnvironmentProblem(f"cannot make a host key: {(made.stderr or made.stdout).strip()}")
        return " ".join(public.read_text(encoding="utf-8").split()[:2])

    def answers(self) -> bool:
        """Return true once the server greets as an ssh server."""
        return greeting(self._place.address, self._place.port).startswith(b"SSH-")

    def in_use(self) -> int:
        """Number of connections that have logged in."""
        return sum(_is_logged_in(title) for title in children_of(self.child.pid).values())

    def describe(self) -> DevServer:
        """Address, user and host key."""
        return self._place.describe("ssh", host_key=self._host_key)


def _is_logged_in(title: str) -> bool:
    """Whether a child of sshd serves a user; `sshd: ada [priv]` supervises a login that may still be going on."""
    return "[priv]" not in title and not title.endswith(_NOT_LOGGED_IN) and title.startswith("sshd")


def sshd_config(place: Place, env: Mapping[str, str]) -> str:
    """The configuration of the server.

    Sessions get the variables of the job, so that CUDA_VISIBLE_DEVICES and `srun` work in them. A dead connection
    ends after three minutes, so that it does not count as use.
    """
    folder = place.folder.absolute()
    lines = [
        f"ListenAddress {place.address}",
        f"Port {place.port}",
        f"HostKey {_quoted(str(folder / 'host_key'))}",
        f"AuthorizedKeysFile {_quoted(str(folder / 'authorized_keys').replace('%', '%%'))}",
        f"AllowUsers {place.user}",
        "AuthenticationMethods publickey",
        "PubkeyAuthentication yes",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "UsePAM no",
        "StrictModes no",  # the keys lie in a folder that only this user can open, maybe below a shared one
        "PermitUserRC no",
        "X11Forwarding no",
        "PrintMotd no",
        "PidFile none",
        "LoginGraceTime 20",
        "ClientAliveInterval 60",
        "ClientAliveCountMax 3",
        "Subsystem sftp internal-sftp",
    ]
    variables = [_quoted(f"{name}={value}") for name, value in sorted(env.items()) if _can_be_set(name, value)]
    if variables:
        lines.append(f"SetEnv {' '.join(variables)}")  # of several such lines, sshd reads the first alone
    return "\n".join(lines) + "\n"


def _can_be_set(name: str, value: str) -> bool:
    is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
    return is_name and value.isprintable() and _OWN_TO_A_LOGIN.fullmatch(name) is None


def _quoted(text: str) -> str:
    r"""One word of sshd's configuration.

    >>> print(_quoted('a "b" c'))
    "a \"b\" c"
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
