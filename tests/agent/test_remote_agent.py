"""Channels between nodes, the agent server and its clients, and the copy of a node's logs."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import processes, resolved_command
from trainworks import verbosity
from trainworks.agent import remote_agent
from trainworks.agent.allocation import Allocation
from trainworks.agent.channel import Channel, accept, connect
from trainworks.agent.launch import run_mark
from trainworks.agent.log_echo import LogEcho
from trainworks.agent.node_agents import NODE_LEAVES
from trainworks.agent.remote_agent import RETURNS, RemoteHosts
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host.network import listen
from trainworks.jobs.environment import FORWARDED_VARIABLES, agent_environment
from trainworks.jobs.state import Cause
from trainworks.record.exit_code import NODE_RETURNS
from trainworks.record.run_dir import RunDir


def both(ours: str, theirs: str) -> tuple[Channel | TrainworksError, Channel | TrainworksError]:
    """Both ends of a channel between nodes that know these tokens."""
    server, ends = listen(), []

    def answer() -> None:
        ends.append(outcome(lambda: accept(server.accept()[0], theirs)))

    thread = threading.Thread(target=answer)
    thread.start()
    asked = outcome(lambda: connect(*server.getsockname(), ours))
    thread.join()
    server.close()
    return asked, ends[0]


def outcome(attempt: Callable[[], Channel]) -> Any:
    try:
        return attempt()
    except TrainworksError as error:
        return error


def test_nodes_of_one_job_exchange_messages() -> None:
    asked, answered = both("secret", "secret")
    assert isinstance(asked, Channel) and isinstance(answered, Channel)
    asked.send({"start": ["a", "b\n"]})
    asked.send({"signal": 15})
    assert answered.receive() == {"start": ["a", "b\n"]}
    assert answered.receive() == {"signal": 15}
    asked.close()
    assert answered.receive() is None
    answered.close()


@pytest.mark.parametrize(("ours", "theirs"), [("secret", "other"), ("", "secret")])
def test_a_peer_without_the_token_gets_no_channel(ours: str, theirs: str) -> None:
    for end in both(ours, theirs):
        assert isinstance(end, EnvironmentProblem) and "does not belong to this job" in end.message


def test_an_echo_of_the_handshake_is_no_proof() -> None:
    server = listen()

    def echo() -> None:
        peer = server.accept()[0]
        while data := peer.recv(4096):
            peer.sendall(data)
        peer.close()

    threading.Thread(target=echo, daemon=True).start()
    with pytest.raises(EnvironmentProblem, match="does not belong to this job"):
        connect(*server.getsockname(), "secret")
    server.close()


def test_messages_that_arrive_together_are_received_one_by_one() -> None:
    left, right = socket.socketpair()
    sender, receiver = Channel(left), Channel(right)
    assert sender.send({"leaving": True}) and sender.send({"exit": 3})
    assert receiver.receive() == {"leaving": True}
    assert select.select([receiver.fileno()], [], [], 0)[0], "the second message is still announced"
    assert receiver.receive() == {"exit": 3}
    sender.close()
    assert receiver.receive() is None
    receiver.close()


def test_a_node_that_has_to_leave_tells_the_supervisor_that_it_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(remote_agent.os, "kill", lambda *sent: told.append(sent))
    left, right = socket.socketpair()
    assert Channel(left).send({"leaving": True})
    assert remote_agent._handle(Channel(right)) is None
    assert told == [(os.getppid(), NODE_LEAVES)]
    left.close()
    right.close()


DEEP = b"\0\0\xff\xff" + b"[" * 0xFFFF


@pytest.mark.parametrize(
    "data",
    [b"\0\0\0\3[1]", b"\0\0\0\2{}"[:5], b"\xff\xff\xff\xff{}", b"\0\0\0\4nope", b"GET / HTTP/1.1\r\n\r\n", DEEP],
    ids=["a list", "cut off", "too long", "not JSON", "HTTP", "deeply nested"],
)
def test_anything_but_a_message_is_the_end_of_a_channel(data: bytes) -> None:
    left, right = socket.socketpair()
    left.sendall(data)
    left.shutdown(socket.SHUT_WR)
    assert Channel(right).receive() is None
    left.close()
    right.close()


def test_all_variables_of_an_agent_are_forwarded(run_dir: RunDir) -> None:
    assert set(FORWARDED_VARIABLES) == {*agent_environment(processes()), *run_mark(run_dir), verbosity.VARIABLE}


def test_the_first_node_runs_its_own_agent() -> None:
    got = Allocation(job="7", nodes=("a", "b"), addresses=("10.0.0.1", "10.0.0.2"))
    hosts = RemoteHosts(got, Path("/etc/trainworks"))
    command = ["/usr/bin/python", "-P", "-m", "trainworks.agent.command_agent", "/runs/x", "$(y)"]
    assert hosts.command(0, command) == command
    remote = hosts.command(1, command)
    assert remote[3:6] == ["trainworks.agent.remote_agent", "/etc/trainworks", "10.0.0.2"]
    assert remote[6:] == ["trainworks.agent.command_agent", "/runs/x", "$(y)"]


def test_the_proxy_of_a_node_that_its_cluster_replaces_knows_it() -> None:
    got = Allocation(job="7", nodes=("a", "b", "c"), addresses=("a.job", "b.job", "c.job"))
    hosts = RemoteHosts(got, Path("/etc/trainworks"), {2})
    command = ["/usr/bin/python", "-P", "-m", "trainworks.agent.command_agent", "/runs/x"]
    assert hosts.command(1, command)[5:] == ["b.job", "trainworks.agent.command_agent", "/runs/x"]
    assert hosts.command(2, command)[5:] == ["c.job", RETURNS, "trainworks.agent.command_agent", "/runs/x"]
    assert hosts.lost_part(NODE_RETURNS, Path("log")) is Cause.NODE_LOST
    assert hosts.lost_part(-9, Path("log")) is Cause.AGENT_LOST


def test_a_peer_that_is_gone_before_it_speaks_is_not_a_stranger() -> None:
    server = listen()

    def hang_up() -> None:
        server.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    with pytest.raises(OSError):
        connect(*server.getsockname(), "secret")
    server.close()


def test_logs_of_a_node_are_copied_to_its_standard_output(run_dir: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir.write_resolved(resolved_command(processes=processes(nodes=2, processes_per_node=2)))
    run_dir.rank_log(2).write_text("of an earlier allocation\n")
    with LogEcho(run_dir, 1):
        for rank in (0, 2, 3):
            with run_dir.rank_log(rank).open("a") as log:
                log.write(f"one of {rank}\n 50%\r100%\ntwo of {rank}")
    said = capfd.readouterr().out
    assert [line for line in said.split("\n") if line.startswith("[2]")] == [
        "[2] one of 2",
        "[2]  50%\r100%",
        "[2] two of 2",
    ]
    assert "[3] two of 3\n" in said and "of an earlier allocation" not in said and "[0]" not in said
