"""Slurm on a login node: one ssh connection for many calls, against a real sshd on loopback."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.backends.slurm.login_node import NEEDS_SSHD, LoginNode, login, short_folder, until
from trainworks.backends.slurm import client
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient, SlurmRefusedError
from trainworks.config.engines import Slurm
from trainworks.errors import UnreachableError
from trainworks.host import process

__all__ = ["login", "short_folder"]
pytestmark = NEEDS_SSHD


def test_many_calls_of_many_commands_open_one_connection(login: LoginNode) -> None:
    said = [login.client().call("squeue", "--me", "it's $HOME") for _ in range(5)]
    assert set(said) == {"asked: --me it's $HOME\n"}
    assert login.logins() == 1
    (folder,) = (login.folder / "runtime").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_killed_connection_with_its_socket_left_behind_breaks_no_call(login: LoginNode) -> None:
    login.client().call("squeue")
    login.kill_masters()
    until(lambda: not login.masters())
    assert login.sockets(), "the socket stays when its process is killed"
    assert login.client().call("squeue", "-a") == "asked: -a\n"
    assert login.logins() == 2


def test_a_connection_that_hangs_is_replaced_by_a_new_one(login: LoginNode) -> None:
    login.client().call("squeue")
    (hung,) = login.masters()
    hung.send_signal(signal.SIGSTOP)
    (hung_socket,) = login.sockets()

    def run(command: list[str], *, timeout_s: float, **options: Any) -> process.Output:
        limit_s = timeout_s if hung_socket.exists() else 60.0  # the new connection is as slow as this machine is busy
        return process.run(command, timeout_s=limit_s, **options)

    assert SlurmClient("login1", run=run, env=login.env).within(1.0).call("squeue", "-a") == "asked: -a\n"
    assert login.logins() == 2


def test_a_script_is_never_sent_twice(login: LoginNode) -> None:
    login.client().call("squeue")
    with pytest.raises(UnreachableError):
        login.client().submit("#!/bin/sh\n")
    assert (login.folder / "scripts").read_text() == "#!/bin/sh\n"


def test_nothing_is_left_after_the_time_that_a_connection_persists(
    login: LoginNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PERSIST_S", 1)
    login.program("squeue", f"find {login.folder}/runtime -type s")
    assert login.client().call("squeue").strip(), "the connection has a socket while a command runs"
    until(lambda: not login.masters())
    assert not login.sockets()


def test_nodes_take_one_command_of_ssh_and_are_those_that_the_programs_say_here(login: LoginNode) -> None:
    login.program("sinfo", "printf 'n1|mixed|1/3/0/4|64|(null)|(null)|a 100 %% bad\\nfan\\n'; echo odd >&2")
    login.program("squeue", "echo '7|N/A|n1'")
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
    """The limits are read, and not waited for: a login on a busy machine is slow in any case."""
    monkeypatch.setattr(SlurmBackend, "patience_s", 7.0)
    login.program("squeue", "true")
    login.program("sacct", "true")
    limits: list[tuple[float, bool]] = []

    def run(command: list[str], *, timeout_s: float, **options: Any) -> process.Output:
        if "squeue" in command[-1]:
            limits.append((timeout_s, "ConnectTimeout=7" in command))
        return process.run(command, timeout_s=60.0, **options)

    for _ in range(2):
        client = SlurmClient("login1", run=run, env=login.env)
        assert SlurmBackend(Slurm(), client=client).hurried().poll(["7"]) == {}
    assert limits == [(10.0, True), (7.0, True)]
    assert login.logins() == 1


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
