"""Hosts for the backend `ssh`: a real sshd on an address of loopback for each, with a ledger of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.backends.slurm.login_node import NEEDS_SSHD, SSHD, until
from tests.ports import free_port
from trainworks.agent.development.serving import Place
from trainworks.agent.development.ssh import sshd_config
from trainworks.backends.ssh.node import HOST
from trainworks.host import process
from trainworks.host.network import greeting
from trainworks.record.run_dir import RunDir

__all__ = ["NEEDS_SSHD", "SshSite"]


_OF_ALL_ACCOUNTS = """\
mount --bind "$0" /etc/passwd
if [ "$1" ]; then
    mount --bind "$2" /mnt
    mount -t tmpfs -o mode=755 none "$1"
    mkdir -p "$2"
    mount --bind /mnt "$2"
fi
shift 2
exec "$@"
"""
"""Gives a host its accounts, and opens the folder with the interpreter to them."""


class SshSite:
    """`box1`, `box2` and so on, which a configuration file of ssh knows; `ip` makes the address of each.

    Args:
        folder: of its own.
        count: of hosts.
        ip: address, of which the last number is filled in.
        inside: network namespace of the hosts; that of this process by default.
        accounts: home of every account that may log in, if others than this user may: the hosts have a shell for each.
        mark: variables of all jobs that run here; those of this test by default.
    """

    def __init__(
        self,
        folder: Path,
        count: int,
        ip: str = "127.0.0.{}",
        inside: str | None = None,
        *,
        accounts: Mapping[str, Path] | None = None,
        mark: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.names = [f"box{number}" for number in range(1, count + 1)]
        self.addresses = {name: ip.format(number) for number, name in enumerate(self.names, start=2)}
        self.config = folder / "ssh_config"
        self._inside = inside
        self._accounts = accounts or {}
        self._mark = mark or {"TRAINWORKS_DATA": os.environ["TRAINWORKS_DATA"]}
        self._port = free_port()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
        public = (folder / "key.pub").read_text(encoding="utf-8")
        known = [f"[{address}]:{self._port} {public}" for address in self.addresses.values()]
        (folder / "known").write_text("".join(known), encoding="utf-8")
        if accounts:
            (folder / "passwd").write_text("".join(_lines_of_accounts(accounts)), encoding="utf-8")
        own = f" IdentityFile {folder}/key\n IdentityAgent none\n UserKnownHostsFile {folder}/known\n"
        hosts = [f"Host {name}\n HostName {address}\n" for name, address in self.addresses.items()]
        self.config.write_text("".join(hosts) + f"Host *\n Port {self._port}\n StrictHostKeyChecking yes\n{own}")
        for name in self.names:
            self.start(name)
        if accounts:
            (folder / "key").chmod(0o644)  # ssh refuses an open key of its own user alone

    def start(self, name: str, *, hidden: Path | None = None) -> None:
        """Turn a host on; a folder is `hidden` from it."""
        if name in self._daemons and self._daemons[name].poll() is None:
            self.kill(name)
        home = RunDir(self.folder / name)
        home.dev_folder.mkdir(parents=True, exist_ok=True)
        if not (home.dev_folder / "host_key").exists():
            for key in ("host_key", "host_key.pub"):
                shutil.copy(self.folder / key.replace("host_key", "key"), home.dev_folder / key)
            shutil.copy(self.folder / "key.pub", home.dev_folder / "authorized_keys")
            if self._accounts:
                home.path.chmod(0o1777)  # all users have claims in its ledger
        users = " ".join(self._accounts) or psutil.Process().username()
        place = Place(home, self.addresses[name], self._port, users, home.path)
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env |= {"TRAINWORKS_LEDGER": str(home.path / "ledger")}
        if "TRAINWORKS_TEST_GPUS" in os.environ:  # of `tests.gpus`, those of each host
            env |= {"TRAINWORKS_TEST_GPUS": os.environ["TRAINWORKS_TEST_GPUS"], "TRAINWORKS_TEST_HOST": name}
        (home.path / "sshd_config").write_text(sshd_config(place, env).replace("ClientAliveInterval 60\n", ""))
        prefix = ["ip", "netns", "exec", self._inside] if self._inside else []
        if self._accounts:
            prefix += ["unshare", "--mount", "sh", "-ec", _OF_ALL_ACCOUNTS, str(self.folder / "passwd"), *_closed()]
        if hidden is not None:
            hidden.mkdir(exist_ok=True)
            line = 'mount -t tmpfs none "$0" && exec "$@"'
            prefix += ["unshare", "--mount", "sh", "-c", line, str(hidden)]
        command = [*prefix, str(SSHD), "-D", "-e", "-f", str(home.path / "sshd_config")]
        with (home.path / "log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, stderr=log)
        until(lambda: greeting(self.addresses[name], self._port).startswith(b"SSH-"))

    def sessions(self, name: str) -> list[psutil.Process]:
        """Processes of the connections to a host that are open."""
        return psutil.Process(self._daemons[name].pid).children()

    def processes(self, name: str) -> list[psutil.Process]:
        """All that runs on a host."""
        daemon = self._daemons[name]
        below = psutil.Process(daemon.pid).children(recursive=True) if daemon.poll() is None else []
        ledger = {"TRAINWORKS_LEDGER": str(self.folder / name / "ledger")}
        return list({*below, *process.processes_with(ledger), *process.processes_with({HOST: name, **self._mark})})

    def kill(self, name: str) -> None:
        """Turn a host off: everything there is gone, and nothing of it sees the end of another one."""
        everything = self.processes(name)
        self._daemons[name].kill()
        for end in (psutil.Process.suspend, psutil.Process.kill):
            for one in everything:
                with suppress(psutil.NoSuchProcess):
                    end(one)
        self._daemons[name].wait()

    def end(self) -> None:
        """Turn all hosts off."""
        for name in self.names:
            if self._daemons[name].poll() is None:
                self.kill(name)


def _closed() -> tuple[str, str]:
    """The folder closed to other users in which the interpreter lies, and the one below; empty if there is none."""
    parents = [*reversed(Path(sys.executable).resolve().parents)]
    closed = [folder for folder in parents if not folder.stat().st_mode & 0o001]
    return (str(closed[0]), str(parents[parents.index(closed[0]) + 1])) if closed else ("", "")


def _lines_of_accounts(homes: Mapping[str, Path]) -> Iterator[str]:
    """Lines of /etc/passwd: these accounts with a shell, and all others as they are."""
    for line in Path("/etc/passwd").read_text(encoding="utf-8").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        yield f"{name}:*:{uid}:{gid}::{homes[name]}:/bin/sh\n" if name in homes else f"{line}\n"
