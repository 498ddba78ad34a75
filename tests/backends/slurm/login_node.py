"""A login node: a real sshd on loopback, with programs that a test writes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port
from trainworks.agent.development.serving import Place
from trainworks.agent.development.ssh import sshd_config
from trainworks.backends.slurm.client import SlurmClient
from trainworks.host.network import greeting
from trainworks.record.run_dir import RunDir

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
NEEDS_SSHD = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None,
    reason="NOT TESTED: ssh to a login node with a real sshd; apt-get install openssh-server",
)


class LoginNode:
    """An sshd whose users find a `squeue` that says its arguments; the connections that it accepted are in its log."""

    def __init__(self, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.folder, self.port = folder, free_port()
        keys = RunDir(folder).dev_folder
        keys.mkdir()
        (folder / "bin").mkdir()
        (folder / "runtime").mkdir(mode=0o700)
        self.program("squeue", 'echo "asked: $*"; echo "a warning" >&2')
        self.program("sbatch", f"cat >> {folder}/scripts; exit 255")
        for file in (keys / "host_key", folder / "key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file], check=True)
        shutil.copy(folder / "key.pub", keys / "authorized_keys")
        self.configure("")
        self.program("ssh", f'exec {shutil.which("ssh")} -F {folder}/ssh_config "$@"')
        user = psutil.Process().username()
        place = Place(RunDir(folder), "127.0.0.1", self.port, user, folder)
        path = f"{folder}/bin:{(env or os.environ)['PATH']}"
        (folder / "sshd_config").write_text(sshd_config(place, dict(env or {}) | {"PATH": path}))
        self.env = {"PATH": path, "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder / "runtime")}
        Path("/run/sshd").mkdir(exist_ok=True)
        self.start()

    def program(self, name: str, line: str) -> None:
        (self.folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (self.folder / "bin" / name).chmod(0o755)

    def configure(self, line: str) -> None:
        """Write the user's ssh configuration."""
        own = f"Port {self.port}\n IdentityFile {self.folder}/key\n IdentityAgent none\n HostName 127.0.0.1\n"
        known = f"UserKnownHostsFile {self.folder}/known\n StrictHostKeyChecking no\n"
        (self.folder / "ssh_config").write_text(f"Host login1\n {line}\n {own} {known}")

    def start(self) -> None:
        assert SSHD is not None
        with (self.folder / "log").open("ab") as log:
            self.daemon = subprocess.Popen([SSHD, "-D", "-e", "-f", self.folder / "sshd_config"], stderr=log)
        until(lambda: greeting("127.0.0.1", self.port).startswith(b"SSH-"))

    def client(self) -> SlurmClient:
        """A client as each command makes one."""
        return SlurmClient("login1", env=self.env)

    def logins(self) -> int:
        return (self.folder / "log").read_text().count("Accepted publickey")

    def masters(self) -> list[psutil.Process]:
        """Processes of this user that hold a connection open."""
        found = psutil.process_iter(["cmdline"])
        return [one for one in found if str(self.folder / "runtime") in " ".join(one.info["cmdline"] or ())]

    def kill_masters(self) -> None:
        for master in self.masters():
            with suppress(psutil.NoSuchProcess):
                master.kill()

    def sockets(self) -> list[Path]:
        return [file for file in (self.folder / "runtime").rglob("*") if file.is_socket()]

    def end(self) -> None:
        self.kill_masters()
        self.daemon.terminate()
        self.daemon.wait()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def login(short_folder: Path) -> Iterator[LoginNode]:
    """A login node that ends with the test."""
    node = LoginNode(short_folder)
    yield node
    node.end()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder in which the path of a socket fits."""
    with tempfile.TemporaryDirectory(prefix="tw", dir="/tmp") as folder:
        yield Path(folder)
