"""The whole chain with the real programs: a failed run reaches the webhook once, and every panel has its data."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.health.machine import healthy
from tests.observe.conftest import RunningRun
from tests.observe.prometheus import program
from tests.observe.test_exporter import serving
from tests.observe.test_node_metrics import BusyNvml
from trainworks.api.observing.exporter import NodeMetrics, metrics_server
from trainworks.api.observing.monitor import render_monitoring
from trainworks.measure.health.node_health import check_node
from trainworks.observe.monitoring.dashboards import DASHBOARDS

pytestmark = pytest.mark.slow


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


def answer(prometheus: int, expr: str) -> list[Any]:
    """What Prometheus finds for an expression."""
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?{query}", timeout=10) as found:
        result: list[Any] = json.load(found)["data"]["result"]
    return result


def panels_without_data(prometheus: int) -> set[str]:
    """Titles of panels for which no query finds anything."""
    empty = set()
    for panel in (panel for dashboard in DASHBOARDS for panel in dashboard.panels):
        queries = [expr.replace("$run", "stdlib-lm-1").replace("$node", "127.0.0.1") for expr in panel.queries.values()]
        found = [answer(prometheus, query) for query in queries]
        if not any(found):
            empty.add(panel.title)
    return empty


class Monitoring:
    """Prometheus and Alertmanager with our files, beside an exporter; `wait` returns the first alerts."""

    def __init__(self, folder: Path, webhook: Webhook) -> None:
        self.folder, self.webhook = folder, webhook
        self.prometheus, self.alertmanager = free_port(), free_port()

    @contextmanager
    def watching(self, metrics: NodeMetrics, *hosts: str) -> Iterator[None]:
        """Scrape one exporter under these names."""
        hook = f"http://127.0.0.1:{self.webhook.server_address[1]}"
        address = f"127.0.0.1:{self.alertmanager}"
        files = render_monitoring(scrape_interval_s=1, alertmanager=address, page=hook, ticket=hook)
        for name, text in files.items():
            (self.folder / name).write_text(text.replace("group_wait: '30s'", "group_wait: '1s'"))
        with ExitStack() as stack:
            url = stack.enter_context(serving(metrics_server(metrics, "127.0.0.1:0")))
            targets = [{"targets": [f"{host}:{url.rpartition(':')[2]}" for host in hosts]}]
            (self.folder / "trainworks.targets.json").write_text(json.dumps(targets))
            for command in (self._alertmanager(), self._prometheus()):
                stack.enter_context(running_program(*command, log=self.folder / f"{command[0]}.log"))
            yield

    def _alertmanager(self) -> list[str]:
        listen = [f"--web.listen-address=127.0.0.1:{self.alertmanager}", "--cluster.listen-address="]
        return ["prometheus-alertmanager", "--config.file=alertmanager.yml", "--storage.path=alerts", *listen]

    def _prometheus(self) -> list[str]:
        listen = f"--web.listen-address=127.0.0.1:{self.prometheus}"
        return ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=series", listen]

    def wait(self) -> list[str]:
        """Alerts that arrive, and those of the five seconds after the first."""
        deadline = time.monotonic() + 60
        while not self.webhook.firing and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(5)
        return self.webhook.firing


@pytest.fixture
def monitoring(tmp_path: Path, webhook: Webhook) -> Monitoring:
    """Prometheus and Alertmanager, not started."""
    return Monitoring(tmp_path, webhook)


def test_a_failed_run_that_two_exporters_see_pages_once(
    running: RunningRun, metrics: NodeMetrics, monitoring: Monitoring
) -> None:
    running.fail().state("FAILED")
    with monitoring.watching(metrics, "127.0.0.1", "localhost"):
        assert monitoring.wait() == ["RunFailed"]


def test_a_run_that_does_not_save_pages_once(running: RunningRun, metrics: NodeMetrics, monitoring: Monitoring) -> None:
    with monitoring.watching(metrics, "127.0.0.1"):
        assert monitoring.wait() == ["RunCheckpointOverdue"]


def test_an_xid_pages_once(folder: Path, clock: FakeClock, monitoring: Monitoring, tmp_path: Path) -> None:
    machine = healthy(tmp_path / "node")
    machine.log.append("[399990.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    metrics = NodeMetrics(["health"], folder, clock=clock, check=lambda: check_node(machine.view()))
    with monitoring.watching(metrics, "127.0.0.1"):
        assert monitoring.wait() == ["HealthCheckFailed"]


def test_every_panel_of_a_dashboard_has_its_data(
    running: RunningRun, folder: Path, clock: FakeClock, monitoring: Monitoring
) -> None:
    metrics = NodeMetrics(["runs", "gpus"], folder, clock=clock, nvml=BusyNvml(2))
    with monitoring.watching(metrics, "127.0.0.1"):
        monitoring.wait()
        clock.sleep(2)  # for another reading of the GPUs' activity
        time.sleep(4)
        empty = panels_without_data(monitoring.prometheus)
    of_other_collectors = {"Jobs", "Longest wait", "GPUs that jobs hold", "Health checks that fail or warn"}
    without_goal_or_price = {"Time between expected finish and deadline", "Cost", "Cost of running runs"}
    assert empty == of_other_collectors | without_goal_or_price
