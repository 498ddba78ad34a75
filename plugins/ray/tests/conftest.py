"""Fixtures: the fake dashboard over HTTP, and a real Ray of two nodes for tests marked `ray`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from plugins.ray.tests.dashboard import FakeDashboard
from tests.fakes import FakeClock
from trainworks.record.run_dir import RunDir
from trainworks.record.runs_folder import create_run_dir

settings.register_profile("trainworks", settings(), deadline=None, derandomize=True, database=None)
settings.load_profile("trainworks")

CLUSTER = Path(__file__).with_name("cluster.py")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with a file beside the tests."""

    def matches(name: str, text: str) -> None:
        file = Path(__file__).with_name(name)
        if request.config.getoption("--update-golden", default=False):
            file.write_text(text, encoding="utf-8")
        assert text == file.read_text(encoding="utf-8")

    return matches


@pytest.fixture
def clock() -> FakeClock:
    """Fake time."""
    return FakeClock()


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """The first run of a new folder."""
    return create_run_dir(tmp_path / "runs", "demo")


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
