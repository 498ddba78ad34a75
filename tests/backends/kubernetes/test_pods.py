"""What pods say to each other, and to whoever reads their logs."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import processes, resolved_command
from trainworks.agent.launch import run_mark
from trainworks.backends.kubernetes.call import OF_THE_AGENT
from trainworks.backends.kubernetes.echo import Echo
from trainworks.backends.kubernetes.hosts import Met, PodHosts
from trainworks.backends.kubernetes.pod import leave_words, pod_of
from trainworks.backends.kubernetes.wire import Connection, accept, connect
from trainworks.errors import EnvironmentProblem, TrainworksError
from trainworks.host.network import listen
from trainworks.jobs.environment import agent_environment
from trainworks.record.run_dir import RunDir

ENV = {
    "JOB_COMPLETION_INDEX": "1",
    "POD_IP": "10.0.0.7",
    "NODE_NAME": "node3",
    "TRAINWORKS_NODES": "4",
    "TRAINWORKS_CORES": "15",
    "TRAINWORKS_ACCELERATORS": "8",
    "TRAINWORKS_PODS": "demo-node-0-%d.demo",
}


def both(ours: str, theirs: str) -> tuple[Connection | TrainworksError, Connection | TrainworksError]:
    """The two ends of a connection between pods that know these tokens."""
    server, found = listen(), []

    def answer() -> None:
        found.append(outcome(lambda: accept(server.accept()[0], theirs)))

    thread = threading.Thread(target=answer)
    thread.start()
    asked = outcome(lambda: connect(*server.getsockname(), ours))
    thread.join()
    server.close()
    return asked, found[0]


def outcome(attempt: Callable[[], Connection]) -> Any:
    try:
        return attempt()
    except TrainworksError as error:
        return error


def test_pods_of_one_job_understand_each_other() -> None:
    asked, answered = both("secret", "secret")
    assert isinstance(asked, Connection) and isinstance(answered, Connection)
    asked.send({"start": ["a", "b\n"]})
    asked.send({"signal": 15})
    assert answered.receive() == {"start": ["a", "b\n"]}
    assert answered.receive() == {"signal": 15}
    asked.close()
    assert answered.receive() is None
    answered.close()


@pytest.mark.parametrize(("ours", "theirs"), [("secret", "other"), ("", "secret")])
def test_a_stranger_gets_no_connection(ours: str, theirs: str) -> None:
    for end in both(ours, theirs):
        assert isinstance(end, EnvironmentProblem) and "does not belong to this job" in end.message


def test_an_answer_that_is_only_an_echo_proves_nothing() -> None:
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


def test_messages_that_come_together_are_received_together() -> None:
    left, right = socket.socketpair()
    left.sendall(b'{"leaving": true}\n{"exit": 3}\n{"ha')
    assert list(Connection(right).received()) == [{"leaving": True}, {"exit": 3}]
    left.close()
    right.close()


def test_nonsense_is_the_end_of_a_connection() -> None:
    left, right = socket.socketpair()
    left.sendall(b"[1]\n")
    assert Connection(right).receive() is None
    left.close()
    right.close()


def test_a_pod_knows_itself_from_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    pod = pod_of(ENV, tmp_path)
    assert (pod.index, pod.num_nodes, pod.name_of(0)) == (1, 4, "demo-node-0-0.demo")
    assert "secret" not in repr(pod) and "secret" not in pod.job


def test_outside_of_a_pod_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot read") as missing:
        pod_of(ENV, tmp_path)
    with pytest.raises(EnvironmentProblem, match="'POD_IP' is not set"):
        pod_of({name: value for name, value in ENV.items() if name != "POD_IP"}, tmp_path)
    assert str(tmp_path) in missing.value.message


def test_whatever_an_agent_is_given_travels(run_dir: RunDir) -> None:
    assert set(OF_THE_AGENT) == set(agent_environment(processes()) | run_mark(run_dir))


def test_the_first_pod_runs_its_own_agent() -> None:
    hosts = PodHosts(Met(addresses=("10.0.0.1", "10.0.0.2"), nodes=("a", "b")), Path("/etc/trainworks"))
    command = ["/usr/bin/python", "-P", "-m", "trainworks.agent.command_agent", "/runs/x", "$(y)"]
    assert hosts.command(0, command) == command
    remote = hosts.command(1, command)
    assert remote[3:6] == ["trainworks.backends.kubernetes.call", "/etc/trainworks", "10.0.0.2"]
    assert remote[6:] == ["trainworks.agent.command_agent", "/runs/x", "$(y)"]


def test_what_ranks_of_a_node_write_is_on_the_pod_s_output(run_dir: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    run_dir.write_resolved(resolved_command(processes=processes(nodes=2, processes_per_node=2)))
    run_dir.rank_log(2).write_text("of an earlier turn\n")
    with Echo(run_dir, 1):
        for rank in (0, 2, 3):
            with run_dir.rank_log(rank).open("a") as log:
                log.write(f"one of {rank}\n 50%\r100%\ntwo of {rank}")
    said = capfd.readouterr().out
    assert [line for line in said.split("\n") if line.startswith("[2]")] == [
        "[2] one of 2",
        "[2]  50%\r100%",
        "[2] two of 2",
    ]
    assert "[3] two of 3\n" in said and "of an earlier turn" not in said and "[0]" not in said


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f4a5", "\0"])
def test_last_words_fit_in_what_kubernetes_keeps(tmp_path: Path, letter: str) -> None:
    leave_words("FAILED", message=letter * 5000, path=tmp_path / "words", rank=3)
    written = (tmp_path / "words").read_bytes()
    assert len(written) <= 4096 and json.loads(written)["rank"] == 3


def test_last_words_that_cannot_be_written_are_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_words("FAILED", message="x", path=tmp_path)
    assert "cannot write" in capsys.readouterr().err
