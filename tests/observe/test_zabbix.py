"""The chain through a real Zabbix: our template is imported, and a fault reaches the webhook once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.health.machine import healthy
from tests.observe.conftest import RunningRun
from tests.observe.test_exporter import serving
from tests.observe.test_node_metrics import BusyNvml
from tests.observe.webhook import Webhook
from tests.observe.zabbix import Zabbix, require_zabbix, running_zabbix, until
from trainworks.api.observing.exporter import NodeMetrics, metrics_server
from trainworks.api.observing.monitor import render_monitoring
from trainworks.measure.health.node_health import check_node

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(600)]


@pytest.fixture
def zabbix(tmp_path: Path) -> Iterator[Zabbix]:
    """A new server without hosts."""
    require_zabbix()
    with running_zabbix(tmp_path) as found:
        yield found


def test_a_fault_that_zabbix_sees_is_told_once_and_a_dead_node_mutes_its_gpus(
    zabbix: Zabbix, running: RunningRun, folder: Path, clock: FakeClock, tmp_path: Path, webhook: Webhook
) -> None:
    files = render_monitoring(zabbix=True, scrape_interval_s=2)
    hasty = files["zabbix_template.yaml"].replace(",2m)=1", ",20s)=1")  # a node is dead after seconds
    template = zabbix.import_template(hasty)
    zabbix.tell(f"http://127.0.0.1:{webhook.server_address[1]}")
    machine, nvml = healthy(tmp_path / "node"), BusyNvml(2)
    machine.log.append("[399990.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    nvml.gpus[1]["temperature"] = 88
    metrics = NodeMetrics(
        ["runs", "gpus", "health"], folder, clock=clock, nvml=nvml, check=lambda: check_node(machine.view())
    )
    with serving(metrics_server(metrics, "127.0.0.1:0")) as exporter:
        host = zabbix.add_host("node1", template, exporter)
        until(lambda: len(webhook.firing) >= 3, "three problems", seconds=240)
        time.sleep(5)
    first = sorted(labels["alertname"] for labels in webhook.firing)
    assert first == [
        "GpuTooHot: GPU 1 of node node1 is at its slowdown temperature.",
        "HealthCheckFailed: Node node1 fails the health check `xid`.",
        "RunStalled: Run stdlib-lm-1 records no steps.",
    ]
    items = zabbix.call("item.get", hostids=[host], output=["key_", "lastvalue", "state", "error"])
    assert [item["error"] for item in items if item["state"] == "1"] == []
    assert {item["key_"]: item["lastvalue"] for item in items}["trainworks.gpu.temperature[1]"] == "88"
    until(lambda: len(webhook.firing) > 3, "the node's end", seconds=240)
    assert [labels["alertname"] for labels in webhook.firing[3:]] == ["NodeDown: Node node1 does not answer."]
