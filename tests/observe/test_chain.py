"""The whole chain with the real programs: a failed run reaches the webhook once, though two exporters see it."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.observe.conftest import RunningRun
from tests.observe.prometheus import program
from tests.observe.test_exporter import serving
from trainworks.api.observing.exporter import NodeMetrics, metrics_server
from trainworks.api.observing.monitor import render_monitoring
from trainworks.observe.monitoring.prometheus import MonitoringSetup


class Webhook(HTTPServer):
    """Keeps the alerts that it is sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        self.firing: list[str] = []


class _Post(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.firing += [
            alert["labels"]["alertname"] for alert in message["alerts"] if alert["status"] == "firing"
        ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A receiver of alerts."""
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def running_program(*command: str | Path, log: Path) -> Iterator[None]:
    """A program that works until the block ends."""
    with log.open("w") as output:
        started = subprocess.Popen(
            [program(str(command[0])), *map(str, command[1:])], stdout=output, stderr=output, cwd=log.parent
        )
        try:
            yield
        finally:
            started.terminate()
            started.wait(30)


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.mark.slow
def test_a_failed_run_pages_once(
    running: RunningRun, metrics: NodeMetrics, webhook: Webhook, clock: FakeClock, tmp_path: Path
) -> None:
    alertmanager, prometheus = free_port(), free_port()
    hook = f"http://127.0.0.1:{webhook.server_address[1]}"
    setup = MonitoringSetup(scrape_interval="1s", alertmanager=f"127.0.0.1:{alertmanager}", page=hook, ticket=hook)
    for name, text in render_monitoring(setup).items():
        (tmp_path / name).write_text(text.replace("group_wait: 30s", "group_wait: 1s"))
    with ExitStack() as stack:
        url = stack.enter_context(serving(metrics_server(metrics, "127.0.0.1:0")))
        port = url.rpartition(":")[2]
        targets = [{"targets": [f"127.0.0.1:{port}", f"localhost:{port}"]}]
        (tmp_path / "trainworks.targets.json").write_text(json.dumps(targets))
        stack.enter_context(
            running_program(
                "prometheus-alertmanager",
                "--config.file=alertmanager.yml",
                f"--storage.path={tmp_path / 'alerts'}",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
                log=tmp_path / "alertmanager.log",
            )
        )
        stack.enter_context(
            running_program(
                "prometheus",
                "--config.file=prometheus.yml",
                f"--storage.tsdb.path={tmp_path / 'series'}",
                f"--web.listen-address=127.0.0.1:{prometheus}",
                log=tmp_path / "prometheus.log",
            )
        )
        running.fail().state("FAILED")
        clock.sleep(2)
        deadline = time.monotonic() + 60
        while not webhook.firing and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(5)  # a second message would come now
    logs = (tmp_path / "prometheus.log").read_text() + (tmp_path / "alertmanager.log").read_text()
    assert webhook.firing == ["RunFailed"], logs
