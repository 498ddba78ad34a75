"""A dashboard that replays what Ray's own said, and a Ray of two nodes for the tests that are marked `ray`."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
CLUSTER = Path(__file__).with_name("cluster.py")


class FakeDashboard:
    """Answers over HTTP. `answers` beat what it remembers: (status, text) by method and path, once each or for ever."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.groups: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answers: dict[str, Any] = {}

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """One call."""
        asked = f"{method} {path.partition('?')[0]}"
        self.asked.append(asked)
        self.headers.append(headers)
        if asked in self.answers:
            given = self.answers[asked]
            code, text = given.pop(0) if isinstance(given, list) else given
            if isinstance(given, list) and not given:
                del self.answers[asked]
            return code, text.encode()
        code, found = self._remembered(method, asked.partition(" ")[2], body)
        return code, found if isinstance(found, bytes) else json.dumps(found).encode()

    def _remembered(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        *_, parent, name = path.split("/")
        if parent == "gcs":
            if method == "PUT":
                self.packages[name] = body
            return (200, b"") if name in self.packages else (404, b"Package does not exist")
        if path == "/api/jobs/":
            return self._submitted(json.loads(body)) if method == "POST" else (200, list(self.jobs.values()))
        if path in ("/api/v0/placement_groups", "/api/v0/nodes"):
            rows = self.groups if name == "placement_groups" else RECORDED["nodes"]["nodes"]
            return 200, {"result": True, "msg": "", "data": {"result": {"result": rows}}}
        job = self.jobs.get(parent if name in ("stop", "logs") else name)
        if job is None:
            return 404, RECORDED["answer_missing"]["text"].encode()
        return 200, {"stop": {"stopped": True}, "logs": RECORDED["logs"]}.get(name, job)

    def _submitted(self, request: dict[str, Any]) -> tuple[int, Any]:
        name = request["submission_id"]
        if name in self.jobs:
            return RECORDED["answer_taken"]["code"], RECORDED["answer_taken"]["text"].encode()
        self.jobs[name] = RECORDED["pending"]["job"] | request
        return 200, {"job_id": name, "submission_id": name}


@pytest.fixture
def dashboard() -> Iterator[tuple[FakeDashboard, str]]:
    """The fake and its address."""
    fake = FakeDashboard()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            code, content = fake.answer(self.command, self.path, body, dict(self.headers))
            self.send_response(code)
            if code in (301, 302, 307):
                self.send_header("Location", content.decode())
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = _any  # noqa: N815

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def real_ray() -> Iterator[tuple[str, str]]:
    """Address of a real dashboard with two nodes of two cores, on loopback addresses; and a Python with that Ray."""
    python = os.environ.get("TRAINWORKS_TEST_RAY")
    if python is None:
        pytest.skip("NOT TESTED: a real Ray; set TRAINWORKS_TEST_RAY to a Python that has ray[default]")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        env |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "TRAINWORKS_ON_THE_NODE": "yes"}
        log = (Path(folder) / "log").open("w")
        with (
            log,
            subprocess.Popen(
                [python, str(CLUSTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env
            ) as cluster,
        ):
            assert cluster.stdin is not None and cluster.stdout is not None
            words = next((line.split() for line in cluster.stdout if line.startswith("READY ")), None)
            assert words is not None, Path(folder, "log").read_text()
            yield f"http://{words[1]}", python
            cluster.stdin.close()
            cluster.wait(60)
