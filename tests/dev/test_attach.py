"""Commands and ports in a running job, without a cluster; tests/backends has them on every backend."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import trainworks
from tests.fakes import resolved_command
from trainworks.agent.bridge import bridge
from trainworks.api.developing.attach import forward_port, run_in_job
from trainworks.backends.entering import entering_here
from trainworks.backends.kubernetes.output import kubectl_exec, kubectl_port_forward
from trainworks.backends.skypilot.backend import SkyPilotBackend
from trainworks.backends.slurm.backend import SlurmBackend
from trainworks.backends.slurm.client import SlurmClient
from trainworks.cli.runs.attach import port_forward_command
from trainworks.config.engines import Kubernetes, Slurm
from trainworks.config.run_file import Cluster
from trainworks.errors import UsageError
from trainworks.host import process
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

POD: dict[str, Any] = {"metadata": {"name": "lm-node-0-1"}, "status": {"phase": "Running"}}
POD["metadata"]["annotations"] = {"batch.kubernetes.io/job-completion-index": "1"}
SERVER = """\
import http.server, os
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
open("port.new", "w").write(str(server.server_port))
os.rename("port.new", "port")
server.serve_forever()
"""
PODS = Kubernetes(context="lab", namespace="ml")


def slurm(*nodes: str, **options: Any) -> SlurmBackend:
    """A job that holds `nodes`: one list each of its components, as squeue prints them, the last one first."""
    lines = "".join(f"{42 + component:<20}|{names:<4096}\n" for component, names in reversed(list(enumerate(nodes))))
    client = SlurmClient(options.get("login"), run=lambda *_, **__: process.Output(0, lines, ""), env={})
    return SlurmBackend(Slurm.model_validate(options), client=client, python="/opt/python")


def test_slurm_enters_by_a_step_that_shares_the_resources_of_the_job() -> None:
    words = slurm("gpu[07-08]").enter(RunDir(Path("/r/lm-1")), "42", ["nvidia-smi"], node=1)
    assert words[:2] == ["env", "srun"] and {"--jobid=42", "--overlap", "--nodelist=gpu08"} < set(words)
    assert words[-7:] == ["/opt/python", "-P", "-m", "trainworks.agent.enter", "/r/lm-1", "1", "nvidia-smi"]


def test_slurm_enters_the_component_that_has_the_node() -> None:
    words = slurm("gpu[07-08]", "cpu1").enter(RunDir(Path("/r/lm-1")), "42", ["true"], node=2)
    assert {"--het-group=1", "--nodelist=cpu1"} < set(words)


def test_slurm_enters_over_ssh_with_a_terminal_and_quotes_the_command() -> None:
    words = slurm("n1", login="ada@login1").enter(RunDir(Path("/r/lm-1")), "42", ["sh", "-c", "a; b"], terminal=True)
    assert words[:2] == ["ssh", "-t"] and words[-2] == "ada@login1"
    assert " --pty " in words[-1] and words[-1].endswith("/r/lm-1 0 sh -c 'a; b'")


@pytest.mark.parametrize(
    ("options", "message"), [({}, "no node 1"), ({"container": {"image": "a.sqsh"}}, "containers")]
)
def test_slurm_refuses_what_it_cannot_enter(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        slurm("n1", **options).enter(RunDir(Path("/r/lm-1")), "42", ["true"], node=1)


def test_kubernetes_enters_and_forwards_by_kubectl() -> None:
    words = kubectl_exec(PODS, [POD], "lm", ["-m", "x"], node=1, terminal=True)
    start = ["kubectl", "--context=lab", "--namespace=ml"]
    inside = ["python", "-P", "-m", "trainworks.agent.enter", "/runs/lm", "1", "python", "-P", "-m", "x"]
    assert words == [*start, "exec", "--stdin", "--tty", "lm-node-0-1", "--", *inside]
    forward = kubectl_port_forward(PODS, [POD], "8000:6006", node=1)
    assert forward == [*start, "port-forward", "--address=127.0.0.1", "pod/lm-node-0-1", "8000:6006"]
    with pytest.raises(UsageError, match="no pod of node 0"):
        kubectl_exec(PODS, [POD], "lm", ["true"], node=0, terminal=False)


def test_a_backend_that_cannot_says_so() -> None:
    backend = SkyPilotBackend.connect(Cluster(engine="skypilot"))
    with pytest.raises(UsageError, match="skypilot cannot run a command in a job"):
        backend.enter(RunDir(Path("/r/lm-1")), "1", ["true"])


def test_a_run_that_does_not_run_is_not_entered(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path, "t")
    run_dir.write_resolved(resolved_command(run_dir.run_id))
    with pytest.raises(UsageError, match="run t-1 is CREATED"):
        run_in_job(trainworks.find_run("t-1", tmp_path), ["true"])


def test_a_bridge_passes_the_end_of_each_side_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here, there = socket.socketpair()
        with here, there:
            work = threading.Thread(target=bridge, args=(server.getsockname()[1], there.fileno(), there.fileno()))
            work.start()
            connection, _ = server.accept()
            with connection:
                here.sendall(b"question")
                here.shutdown(socket.SHUT_WR)
                assert connection.makefile("rb").read() == b"question"
                connection.sendall(b"x" * 300_000)
            assert len(here.makefile("rb").read(300_000)) == 300_000
            work.join()


def test_a_port_of_a_job_is_reached_until_the_job_ends_and_its_commands_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hello.txt").write_text("hello")
    started = trainworks.run(["python3", "-c", SERVER], folder=tmp_path, wait=False)
    for _ in started.poll():
        if (tmp_path / "port").exists():
            break
    words = entering_here(started.run_dir, ["sh", "-c", "echo in; exec sleep 600"], 0)
    answers: list[bytes] = []

    def ask(port: int) -> None:
        def get() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/hello.txt") as answer:
                answers.append(answer.read())
            started.stop()

        threading.Thread(target=get).start()

    with subprocess.Popen(words, stdout=subprocess.PIPE) as inside:
        assert inside.stdout is not None and inside.stdout.readline() == b"in\n"
        assert forward_port(started, int((tmp_path / "port").read_text()), 0, on_ready=ask) == 0
    assert inside.returncode == -signal.SIGKILL
    started.wait()
    assert answers == [b"hello"]


@pytest.mark.parametrize("ports", ["0", "99:x", "70000", "1:2:3", "-1", ""])
def test_what_is_no_port_is_refused(ports: str) -> None:
    with pytest.raises(UsageError, match="is not a port"):
        port_forward_command("lm-1", ports)
