"""`trainworks dev`: a real sshd and a double of JupyterLab, as jobs of this machine's queue."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from trainworks.api.developing.dev import dev, dev_access, public_keys
from trainworks.api.run_handle import Run
from trainworks.cli.app import app
from trainworks.errors import RunFailedError
from trainworks.host import process
from trainworks.host.process_tree import children_of

JUPYTER = """\
#!{python}
# As much of JupyterLab as is asked for: a token, and the state of its kernels, which a file says.
import http.server, json, os, sys
from pathlib import Path

options = dict(word.removeprefix("--ServerApp.").split("=", 1) for word in sys.argv if word.startswith("--ServerApp."))

class Lab(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers["Authorization"] == "token " + os.environ["JUPYTER_TOKEN"]
        state = "busy" if Path("{busy}").exists() else "idle"
        body = json.dumps([dict(id="1", execution_state=state)]).encode()
        self.send_response(200 if allowed else 403)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        pass

http.server.HTTPServer((options["ip"], int(options["port"])), Lab).serve_forever()
"""
needs_sshd = pytest.mark.skipif(
    shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None or shutil.which("ssh") is None,
    reason="NOT TESTED: `trainworks dev` with a real sshd; apt-get install openssh-server",
)


@pytest.fixture(scope="module", autouse=True)
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A queue of these tests' own."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRAINWORKS_DATA", str(tmp_path_factory.mktemp("queue")))
        patched.setenv("TRAINWORKS_LEDGER", str(tmp_path_factory.mktemp("ledger")))
        yield


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key pair of the user; returns the private one."""
    return key_pair(tmp_path / "key")


def key_pair(path: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ada's key", "-f", path], check=True)
    return path


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start an environment; it is ended with the test."""
    started: list[Run] = []

    def begin(**options: object) -> Run:
        started.append(dev(cpus="0.5", folder=tmp_path / "runs", **options))
        return started[-1]

    yield begin
    for run in started:
        if not run.state.is_final:
            run.stop(at_once=True)
            run.wait()


def ssh(config: Path, alias: str, *command: str, key: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a command says over ssh that asks for nothing."""
    own = ["-o", f"IdentityFile={key}", "-o", "IdentitiesOnly=yes"] if key else []
    options = ["-F", str(config), "-o", "BatchMode=yes", "-o", "IdentityAgent=none", *own]
    return subprocess.run(["ssh", *options, alias, *command], capture_output=True, text=True, timeout=60, check=False)


@contextmanager
def session(config: Path, alias: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command over ssh that does not end by itself; its connection ends with the block."""
    command = ["ssh", "-F", config, "-o", "BatchMode=yes", alias, "sleep 300"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as client:
        try:
            yield client
        finally:
            client.terminate()


def sshd_of(run: Run) -> int:
    """Process id of the server, by its title: sshd writes it over the environment."""
    config = str(run.run_dir.dev_folder.absolute() / "sshd_config")
    found = ((one.pid, " ".join(one.info["cmdline"] or ())) for one in psutil.process_iter(["cmdline"]))
    return next(pid for pid, title in found if config in title and "listener" in title)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_sshd
def test_a_user_logs_in_with_the_key_alone_and_a_killed_sshd_fails_the_job(start, key: Path, tmp_path: Path) -> None:
    keys, identity = public_keys(key)
    run = start(keys=keys)
    access = dev_access(run, identity=identity)
    said = ssh(access.ssh_config_file, access.alias, "echo $TRAINWORKS_RUN_DIR; exit 7")
    assert (said.stdout.strip(), said.returncode) == (str(run.path.resolve()), 7)

    plain = dev_access(run)  # without the key of the user
    stranger = ssh(plain.ssh_config_file, plain.alias, "true", key=key_pair(tmp_path / "other"))
    assert stranger.returncode == 255 and "Permission denied (publickey)" in stranger.stderr

    wrong = tmp_path / "wrong_known_hosts"
    wrong.write_text(f"{access.alias} {key_pair(tmp_path / 'third').with_suffix('.pub').read_text()}")
    config = tmp_path / "config"
    config.write_text(access.ssh_config.replace(str(run.run_dir.dev_folder.absolute() / "known_hosts"), str(wrong)))
    assert "Host key verification failed" in ssh(config, access.alias, "true").stderr

    assert stat.S_IMODE(run.run_dir.dev_folder.stat().st_mode) == 0o700
    os.kill(sshd_of(run), signal.SIGKILL)
    assert run.wait() == "FAILED"
    assert (run.status.cause, run.status.message) == ("environment", "sshd was killed by SIGKILL")


@needs_sshd
def test_stop_ends_the_sessions_and_leaves_no_process(start, key: Path) -> None:
    keys, identity = public_keys(key)
    run = start(keys=keys, idle="never")
    access = dev_access(run, identity=identity)
    left = ssh(access.ssh_config_file, access.alias, "setsid sleep 300 > /dev/null 2>&1 < /dev/null & echo $!")
    pid = int(left.stdout)
    with session(access.ssh_config_file, access.alias) as client:
        until(lambda: run.run_dir.read_dev_use().open == 1)
        run.stop()
        assert run.wait() == "STOPPED"
        assert client.wait(60) == 255
    until(lambda: process.processes_with({"TRAINWORKS_RUN_DIR": str(run.path.resolve())}) == [])
    until(lambda: process.state(pid) in "XZ")


@needs_sshd
def test_an_open_session_is_use_until_it_ends(start, key: Path) -> None:
    """A busy kernel of JupyterLab shows below what use means for the idle policy."""
    keys, identity = public_keys(key)
    run = start(keys=keys, idle="never")
    access = dev_access(run, identity=identity)
    with session(access.ssh_config_file, access.alias):
        until(lambda: run.run_dir.read_dev_use().open == 1)
    until(lambda: run.run_dir.read_dev_use().open == 0)
    assert run.state == "RUNNING"


def jupyter_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A double of JupyterLab; returns the file whose existence makes its kernel busy."""
    folder.mkdir()
    busy = folder / "busy"
    program = folder / "jupyter-lab"
    program.write_text(JUPYTER.format(python=sys.executable, busy=busy))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return busy


def test_jupyterlab_answers_its_token_alone_and_a_busy_kernel_is_use(start, tmp_path: Path, monkeypatch) -> None:
    busy = jupyter_on_path(tmp_path / "bin", monkeypatch)
    busy.touch()
    run = start(kind="jupyter", idle="3s")
    access = dev_access(run)
    address, _, token = access.url.partition("/lab?token=")
    assert address == f"http://127.0.0.1:{access.server.port}" and len(token) >= 32
    assert stat.S_IMODE(Path(access.server.token_file).stat().st_mode) == 0o600
    asked = urllib.request.Request(f"{address}/api/kernels", headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(asked) as answer:
        assert answer.status == 200
    until(lambda: run.run_dir.read_dev_use().open == 1)
    time.sleep(4)
    assert run.state == "RUNNING"
    busy.unlink()
    assert run.wait() == "STOPPED"
    assert run.status.cause == "idle"


@pytest.mark.skipif(shutil.which("jupyter-lab") is not None, reason="JupyterLab is installed here")
def test_a_program_that_the_node_lacks_is_named_with_its_package(start) -> None:
    run = start(kind="jupyter")
    with pytest.raises(RunFailedError, match=r"`jupyter-lab` is not installed on .*; install jupyterlab"):
        dev_access(run)
    assert run.status.cause == "environment"


@needs_sshd
def test_the_command_prints_a_configuration_and_prints_it_again(key: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    first = runner.invoke(app, ["dev", "--key", str(key), "--cpus", "0.5", "--write-ssh-config"])
    try:
        assert first.exit_code == 0, (first.output, first.exception)
        assert first.stdout.startswith("Host trainworks-dev-1\n    HostName 127.0.0.1\n")
        written = tmp_path / "home" / ".ssh" / "config.d" / "trainworks-dev-1.conf"
        assert written.read_text() == first.stdout and stat.S_IMODE(written.stat().st_mode) == 0o600
        assert "Include config.d/*.conf" in first.stderr
        again = runner.invoke(app, ["dev", "--show", "dev-1", "--key", str(key)])
        assert again.stdout == first.stdout
    finally:
        stopped = runner.invoke(app, ["stop", "dev-1"])
    assert stopped.stdout == "dev-1 STOPPED\n"


def test_children_have_their_titles() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        until(lambda: children_of(os.getpid()).get(child.pid) == "sleep 60")
        child.kill()
    assert children_of(2**22 - 1) == {}
