"""Slurm on a login node: one ssh connection for many calls, against a real sshd on loopback."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainworks.agent.development.serving import Place
from trainworks.agent.development.ssh import sshd_config
from trainworks.backends.slurm import shared_ssh
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.config.engines import Slurm
from trainworks.errors import UnreachableError
from trainworks.host import process
from trainworks.host.network import greeting
from trainworks.record.run_dir import RunDir

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None,
    reason="NOT TESTED: ssh to a login node with a real sshd; apt-get install openssh-server",
)


class LoginNode:
    """An sshd whose users find a `squeue` that says its arguments; the connections that it accepted are in its log."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
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
        path = f"{folder}/bin:{os.environ['PATH']}"
        (folder / "sshd_config").write_text(sshd_config(place, {"PATH": path}))
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

    def sockets(self) -> list[Path]:
        return [file for file in (self.folder / "runtime").rglob("*") if file.is_socket()]

    def end(self) -> None:
        for master in self.masters():
            master.kill()
        self.daemon.terminate()
        self.daemon.wait()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
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


def test_many_calls_of_many_commands_open_one_connection(login: LoginNode) -> None:
    said = [login.client().call("squeue", "--me", "it's $HOME") for _ in range(5)]
    assert set(said) == {"asked: --me it's $HOME\n"}
    assert login.logins() == 1
    (folder,) = (login.folder / "runtime").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_killed_connection_with_its_socket_left_behind_breaks_no_call(login: LoginNode) -> None:
    login.client().call("squeue")
    for master in login.masters():
        master.kill()
    until(lambda: not login.masters())
    assert login.sockets(), "the socket stays when its process is killed"
    assert login.client().call("squeue", "-a") == "asked: -a\n"
    assert login.logins() == 2


def test_a_connection_that_hangs_is_replaced_by_a_new_one(login: LoginNode) -> None:
    login.client().call("squeue")
    (hung,) = login.masters()
    hung.send_signal(signal.SIGSTOP)
    assert login.client().within(3.0).call("squeue", "-a") == "asked: -a\n"
    assert login.logins() == 2


def test_a_script_is_never_sent_twice(login: LoginNode) -> None:
    login.client().call("squeue")
    with pytest.raises(UnreachableError):
        login.client().submit("#!/bin/sh\n")
    assert (login.folder / "scripts").read_text() == "#!/bin/sh\n"


def test_nothing_is_left_after_the_time_that_a_connection_persists(
    login: LoginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_ssh, "PERSIST_S", 1)
    login.client().call("squeue")
    assert login.masters() and login.sockets()
    until(lambda: not login.masters())
    assert not login.sockets()


def test_nodes_take_one_command_of_ssh_and_are_those_that_the_programs_say_here(login: LoginNode) -> None:
    login.program("sinfo", "printf 'n1|mixed|1/3/0/4|64|(null)|(null)|a 100 %% bad\\nfan\\n'; echo odd >&2")
    login.program("squeue", "echo '7|n1'")
    login.program("scontrol", "echo 'slurm_load_topo error: not there' >&2; exit 1")
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> process.Output:
        commands.append(command)
        return process.run(command, **options)

    there = SlurmBackend(Slurm(login="login1"), client=SlurmClient("login1", run=run, env=login.env)).nodes()
    assert [words[1] for words in commands] == ["-G", "-o"]
    assert there == SlurmBackend(Slurm(), client=SlurmClient(env=login.env)).nodes()
    assert (there[0].name, there[0].jobs) == ("n1", ("7",))


def test_of_several_programs_each_fails_on_its_own(login: LoginNode) -> None:
    login.program("scontrol", "echo 'scontrol: error: not yours' >&2; exit 1")
    login.program("sacct", "exit 127")
    one, other, gone = login.client().calls(("squeue", "-a"), ("scontrol", "show", "topology"), ("sacct",))
    assert one() == "asked: -a\n"
    with pytest.raises(SlurmRefusedError, match=r"^not yours$"):
        other()
    with pytest.raises(UnreachableError, match="Slurm is not there"):
        gone()


def test_a_list_waits_for_a_slow_login_but_not_on_an_open_connection(
    login: LoginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SlurmBackend, "patience_s", 1.2)
    login.program("squeue", "true")
    login.program("sacct", "true")
    slow = f'case "$*" in *squeue*) sleep 2;; esac; exec {shutil.which("ssh")} -F {login.folder}/ssh_config "$@"'
    login.program("ssh", slow)
    assert SlurmBackend(Slurm(), client=login.client()).hurried().poll(["7"]) == {}
    assert login.logins() == 1
    with pytest.raises(UnreachableError, match="took longer than"):
        SlurmBackend(Slurm(), client=login.client()).hurried().poll(["7"])


def test_a_control_path_of_the_user_is_the_one_that_holds(login: LoginNode) -> None:
    login.configure(f"ControlPath {login.folder}/own\n ControlMaster no")
    for _ in range(2):
        login.client().call("squeue")
    assert login.logins() == 2 and not login.sockets()


def test_a_folder_that_others_can_open_holds_no_socket(login: LoginNode) -> None:
    (login.folder / "runtime" / f"trainworks-ssh-{os.getuid()}").mkdir()
    (login.folder / "runtime" / f"trainworks-ssh-{os.getuid()}").chmod(0o755)
    assert login.client().call("squeue") == "asked: \n"
    assert not login.sockets()


def test_a_login_node_without_a_server_is_named(login: LoginNode) -> None:
    login.daemon.terminate()
    login.daemon.wait()
    with pytest.raises(UnreachableError, match=r"`login1` does not answer: .*refused"):
        login.client().call("squeue")
