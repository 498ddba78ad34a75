"""Hosts for the backend `ssh`: a real sshd on an address of loopback for each, with a ledger of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
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


class SshSite:
    """`box1`, `box2` and so on, which a configuration file of ssh knows; `ip` makes the address of each."""

    def __init__(self, folder: Path, count: int, ip: str = "127.0.0.{}", inside: str | None = None) -> None:
        self.folder = folder
        self.names = [f"box{number}" for number in range(1, count + 1)]
        self.addresses = {name: ip.format(number) for number, name in enumerate(self.names, start=2)}
        self.config = folder / "ssh_config"
        self._inside = inside
        self._port = free_port()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        Path("/run/sshd").mkdir(exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / "key"], check=True)
        own = f" IdentityFile {folder}/key\n IdentityAgent none\n UserKnownHostsFile {folder}/known\n"
        hosts = [f"Host {name}\n HostName {address}\n" for name, address in self.addresses.items()]
        self.config.write_text("".join(hosts) + f"Host *\n Port {self._port}\n StrictHostKeyChecking no\n{own}")
        for name in self.names:
            self.start(name)

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
        place = Place(home, self.addresses[name], self._port, psutil.Process().username(), home.path)
        env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        env |= {"TRAINWORKS_LEDGER": str(home.path / "ledger")}
        if "TRAINWORKS_TEST_GPUS" in os.environ:  # of `tests.gpus`, those of each host
            env |= {"TRAINWORKS_TEST_GPUS": os.environ["TRAINWORKS_TEST_GPUS"], "TRAINWORKS_TEST_HOST": name}
        (home.path / "sshd_config").write_text(sshd_config(place, env).replace("ClientAliveInterval 60\n", ""))
        prefix = ["ip", "netns", "exec", self._inside] if self._inside else []
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
        jobs = {HOST: name, "TRAINWORKS_DATA": os.environ["TRAINWORKS_DATA"]}  # of this test
        return list({*below, *process.processes_with(ledger), *process.processes_with(jobs)})

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
