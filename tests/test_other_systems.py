"""Plan, submit and report on Windows and macOS; what needs Linux says so in one sentence."""

from __future__ import annotations

import errno
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PureWindowsPath
from typing import Any

import pytest

from tests.other_system import run_on
from tests.report.conftest import RunWriter, make_plan
from trainworks import system
from trainworks.backends import ownership
from trainworks.errors import EnvironmentProblem, NotOwnerError
from trainworks.report.rendering import printable
from trainworks.system import check_linux, lock_file

pytestmark = pytest.mark.lane("test")

ROOT = Path(__file__).parents[1]
PLANNED = str(ROOT / "examples" / "plan-llama-2-7b.yaml")
COMMAND = """\
name: train
num_nodes: 2
resources: {accelerators: H100:8}
run: python train.py
"""
CLUSTERS = {
    "pods.yaml": "cluster: {engine: kubernetes, kubernetes: {image: registry.example/train, volume: runs}}\n",
    "batch.yaml": "cluster: slurm\n",
    "cloud.yaml": "cluster: skypilot\n",
}
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two finished runs, and run files for each kind of cluster."""
    for _ in range(2):
        run = RunWriter(tmp_path / "runs", make_plan(), None)
        run.launch().steps(50).checkpoint().steps(50, communication_s=0.05).finish()
    for file, cluster in CLUSTERS.items():
        (tmp_path / file).write_text(COMMAND + cluster, encoding="utf-8")
    (tmp_path / "here.yaml").write_text("name: train\nrun: echo done\n", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("name", ["windows", "macos"])
def test_plans_reports_and_rendered_jobs_need_no_linux(name: str, folder: Path) -> None:
    first, second = sorted(path.name for path in (folder / "runs").iterdir())
    table = folder / "runs.csv"
    table.write_text("\n".join((ROOT / "benchmarks/data/step_times.csv").read_text("utf-8").splitlines()[:4]), "utf-8")
    done = run_on(
        name,
        [
            ["--help"],
            ["plan", PLANNED],
            ["size", PLANNED, "--deadline", "60 days"],
            ["network", "--on", "16x DGX H100"],
            ["score", str(table)],
            ["review", PLANNED],
            ["catalog", "show", "H100-SXM"],
            ["schema"],
            ["submit", "--dry-run", "pods.yaml"],
            ["submit", "--dry-run", "batch.yaml"],
            ["submit", "--dry-run", "cloud.yaml"],
            ["ls"],
            ["ps"],
            ["report", first],
            ["why", first],
            ["compare", first, second],
            ["status", first, "--json"],
        ],
        folder,
    )
    assert [(each.command, each.code, each.err) for each in done if each.code] == []
    assert all(each.out for each in done)
    assert "kind: JobSet" in next(each.out for each in done if each.command.endswith("pods.yaml"))
    assert "#SBATCH" in next(each.out for each in done if each.command.endswith("batch.yaml"))


@pytest.mark.parametrize(("name", "hint"), [("windows", "WSL"), ("macos", "virtual machine of Linux")])
def test_what_needs_linux_says_so(name: str, hint: str, folder: Path) -> None:
    done = run_on(
        name,
        [["run", "here.yaml"], ["submit", "here.yaml"], ["submit", "--dry-run", "here.yaml"], ["health"], ["nodes"]],
        folder,
    )
    assert [each.code for each in done] == [EnvironmentProblem.exit_code] * len(done)
    for each in done:
        assert "needs Linux, and this is" in each.err and hint in each.err, each


class _ApiServer(BaseHTTPRequestHandler):
    """Keeps the objects that it gets, as an API server of Kubernetes; it starts no pods."""

    objects: dict[str, Any]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        inside = [found for name, found in self.objects.items() if name.startswith(f"{path}/")]
        if path in self.objects:
            self._say(200, self.objects[path])
        elif path.endswith(("/jobsets", "/pods", "/events")):
            self._say(200, {"items": inside, "metadata": {}})
        else:
            self._say(404, {"message": f"{path} not found"})

    def do_POST(self) -> None:
        made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        made["metadata"] |= {"uid": "1", "creationTimestamp": "2026-11-30T18:00:00Z"}
        self.objects[f"{self.path.partition('?')[0]}/{made['metadata']['name']}"] = made
        self._say(201, made)

    def _say(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        """Stay silent."""


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Configuration of kubectl for a server, and the objects that the server has."""
    objects: dict[str, Any] = {}
    handler = type("Handler", (_ApiServer,), {"objects": objects})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        configuration = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
            "users": [{"name": "u", "user": {"token": "x"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "c",
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(configuration), encoding="utf-8")
        yield tmp_path / "kubeconfig", objects
        server.shutdown()


@pytest.mark.parametrize("name", ["windows", "macos"])
def test_a_job_is_submitted_over_the_network_and_listed(
    name: str, folder: Path, api_server: tuple[Path, dict[str, Any]]
) -> None:
    kubeconfig, objects = api_server
    done = run_on(
        name, [["submit", "pods.yaml"], ["describe", "train-1", "--json"]], folder, KUBECONFIG=str(kubeconfig)
    )
    assert [(each.code, each.err) for each in done if each.code] == []
    assert [path for path in objects if path.startswith(JOBSETS)] == [f"{JOBSETS}/{json.loads(done[1].out)['handle']}"]


def test_windows_allows_every_name_in_a_record(folder: Path) -> None:
    for path in folder.rglob("*"):
        name = PureWindowsPath(path.name)
        assert not set(path.name) & set('<>:"|?*\\') and not name.is_reserved(), path
        assert not path.name.endswith((".", " ")), path


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that ask see Windows."""
    for module in (system, ownership, printable):
        monkeypatch.setattr(module, "IS_WINDOWS", True)


def test_a_store_of_several_users_is_refused_where_files_show_no_owner(on_windows: None, tmp_path: Path) -> None:
    ownership.check_run_dir(tmp_path, shared=False)
    with pytest.raises(NotOwnerError, match="whose runs it has"):
        ownership.check_run_dir(tmp_path, shared=True)


def test_a_file_of_windows_gets_what_linux_reads(on_windows: None, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252", newline="\r\n"))
    printable.prepare_streams()
    printable.say("at most ≤ 80 %")
    assert written.getvalue() == "at most ≤ 80 %\n".encode()


def test_linux_is_not_refused() -> None:
    check_linux("this test")


def test_a_lock_is_exclusive_or_shared(tmp_path: Path) -> None:
    handles = [os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(3)]
    lock_file(handles[0], shared=True)
    lock_file(handles[1], shared=True)
    with pytest.raises(BlockingIOError) as refused:
        lock_file(handles[2])
    assert refused.value.errno in (errno.EAGAIN, errno.EWOULDBLOCK)
    for handle in handles[:2]:
        os.close(handle)
    lock_file(handles[2], waits=True)
    os.close(handles[2])
