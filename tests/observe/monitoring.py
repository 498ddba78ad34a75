"""Prometheus and Alertmanager of the tests' own, which read our rendered files."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.observe.prometheus import program
from tests.observe.webhook import Webhook
from tests.ports import free_port
from trainworks.api.observing.exporter import NodeMetrics, metrics_server
from trainworks.api.observing.monitor import render_monitoring
from trainworks.observe.exporter import MetricsServer
from trainworks.observe.monitoring.prometheus import MonitoringSetup


@contextmanager
def serving(server: MetricsServer) -> Iterator[str]:
    """The address of a server while it works."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
            started.wait()


def answer(prometheus: int, expr: str) -> list[Any]:
    """What Prometheus finds for an expression."""
    query = urllib.parse.urlencode({"query": expr})
    with urllib.request.urlopen(f"http://127.0.0.1:{prometheus}/api/v1/query?{query}", timeout=60) as found:
        result: list[Any] = json.load(found)["data"]["result"]
    return result


def when_it_listens(request: str | urllib.request.Request) -> Any:
    """The answer of a program that has just been started."""
    deadline = time.monotonic() + 240
    while True:
        try:
            return urllib.request.urlopen(request, timeout=60)
        except OSError:  # a connection that is reset is no URLError
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class Monitoring:
    """Prometheus and Alertmanager with our files, in which seconds stand for minutes."""

    def __init__(self, folder: Path, webhook: Webhook) -> None:
        self.folder, self.webhook = folder, webhook
        self.prometheus, self.alertmanager = free_port(), free_port()

    @contextmanager
    def watching(
        self,
        metrics: NodeMetrics,
        *hosts: str,
        dead: Sequence[str] = (),
        node_exporters: Sequence[str] = (),
        zabbix: bool = False,
    ) -> Iterator[str]:
        """Scrape one exporter under the names of `hosts`, lose `dead` after an answer, and scrape node_exporters.

        Returns the address of the exporter.
        """
        with ExitStack() as stack:
            stack.enter_context(self.alerting(zabbix=zabbix, down_after="5s" if dead else "2m"))
            exporter = stack.enter_context(serving(metrics_server(metrics, "127.0.0.1:0")))
            port = exporter.rpartition(":")[2]
            ours, theirs = [f"{name}:{port}" for name in (*hosts, *dead)], [f"{name}:{port}" for name in dead]
            for job, targets in {"trainworks": ours, "node": [*theirs, *node_exporters]}.items():
                (self.folder / f"{job}.targets.json").write_text(json.dumps([{"targets": targets}]))
            listen = f"--web.listen-address=127.0.0.1:{self.prometheus}"
            command = ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=series", listen]
            with ExitStack() as alive:
                for name in dead:
                    alive.enter_context(serving(metrics_server(metrics, f"{name}:{port}")))
                stack.enter_context(running_program(*command, log=self.folder / "prometheus.log"))
                when_it_listens(f"http://127.0.0.1:{self.prometheus}/-/ready").close()
                for name in dead:
                    while not answer(self.prometheus, f'up{{node="{name}",job="trainworks"}} == 1'):
                        time.sleep(0.2)
            yield exporter

    @contextmanager
    def alerting(self, *, zabbix: bool = False, down_after: str = "2m") -> Iterator[None]:
        """Alertmanager alone; with our files for a site that has Zabbix, too.

        A node that answers late on a busy machine is not down: only tests of dead nodes shorten `down_after`.
        """
        hook, address = f"http://127.0.0.1:{self.webhook.server_address[1]}", f"127.0.0.1:{self.alertmanager}"
        files = render_monitoring(
            MonitoringSetup(scrape_interval_s=1, alertmanager=address, page=hook, ticket=hook, zabbix=zabbix)
        )
        for name, text in files.items():
            hasty = re.sub(r"(for: '|group_wait: ')(?:[12]m|30s)", r"\g<1>2s", text)
            hasty = re.sub(r"(alert: NodeDown\n.*\n +for: )'2s'", rf"\g<1>'{down_after}'", hasty)
            (self.folder / name).write_text(hasty)
        options = [f"--web.listen-address={address}", "--cluster.listen-address=", "--storage.path=alerts"]
        command = ["prometheus-alertmanager", "--config.file=alertmanager.yml", *options]
        with running_program(*command, log=self.folder / "alertmanager.log"):
            yield

    def wait(self, alerts: int = 1) -> list[str]:
        """Names of the alerts that arrive, and of those of the five seconds after the first so many."""
        deadline = time.monotonic() + 240
        while len(self.webhook.firing) < alerts and time.monotonic() < deadline:
            time.sleep(0.2)
        time.sleep(5)
        return [labels["alertname"] for labels in self.webhook.firing]
