"""The chain through a real Zabbix beside Prometheus: a fault that both see reaches the webhook once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.health.machine import Machine
from tests.observe.conftest import RunningRun
from tests.observe.monitoring import Monitoring, answer
from tests.observe.test_node_metrics import BusyNvml
from tests.observe.zabbix import Zabbix, require_zabbix, running_zabbix, until
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.api.observing.monitor import render_monitoring
from trainworks.measure.health.node_health import check_node
from trainworks.observe.monitoring.prometheus import MonitoringSetup

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(900)]


@pytest.fixture
def zabbix(tmp_path: Path) -> Iterator[Zabbix]:
    """A new server without hosts."""
    require_zabbix()
    with running_zabbix(tmp_path) as found:
        yield found


@pytest.mark.lane("test-all")
def test_a_fault_that_two_systems_see_is_told_once_and_a_dead_node_mutes_its_gpus(
    zabbix: Zabbix, running: RunningRun, machine: Machine, folder: Path, clock: FakeClock, monitoring: Monitoring
) -> None:
    template = render_monitoring(MonitoringSetup(zabbix=True, scrape_interval_s=2))["zabbix_template.yaml"]
    hasty, webhook = template.replace(",2m)=1", ",20s)=1"), monitoring.webhook
    zabbix.tell(f"http://127.0.0.1:{webhook.server_address[1]}")
    machine.log.append("[399990.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    unsaved = RunningRun(folder)
    unsaved.launch()
    unsaved.state("RUNNING")
    unsaved.at = time.time() + 600  # its steps go on for longer than the test, so that it does not stall
    unsaved.steps(1)
    nvml = BusyNvml(2)
    nvml.gpus[1]["temperature"] = 88
    metrics = NodeMetrics(
        ["runs", "gpus", "health"], folder, clock=clock, nvml=nvml, check=lambda: check_node(machine.view())
    )
    of_zabbix = [
        "GpuTooHot: GPU 1 of node node1 is at its slowdown temperature.",
        "HealthCheckFailed: Node node1 fails the health check `xid`.",
        "RunCheckpointOverdue: Run stdlib-lm-2 has not saved for twice its checkpoint interval.",
        "RunStalled: Run stdlib-lm-1 records no steps.",
    ]
    both = {name.partition(":")[0] for name in of_zabbix}
    with monitoring.watching(metrics, "127.0.0.1", zabbix=True) as exporter:
        host = zabbix.add_host("node1", zabbix.import_template(template), exporter)
        until(lambda: len(webhook.firing) >= 4, "four problems")
        until(lambda: firing_for_zabbix(monitoring) >= both, "the same four in Prometheus")
        time.sleep(5)
        # The exporter is in this process: where a busy machine lets it wait, Zabbix has no value until it asks again.
        items = until(lambda: items_of(zabbix, host), "a value of every item")
    assert sorted(labels["alertname"] for labels in webhook.firing) == of_zabbix
    assert {item["key_"]: item["lastvalue"] for item in items}["trainworks.gpu.temperature[1]"] == "88"
    assert hasty != template
    zabbix.import_template(hasty)  # now alone: a busy machine may be silent for so long, too
    until(lambda: len(webhook.firing) > 4, "the node's end")
    assert [labels["alertname"] for labels in webhook.firing[4:]] == ["NodeDown: Node node1 does not answer."]


def items_of(zabbix: Zabbix, host: str) -> list[dict[str, str]]:
    """The items of a host; none while one of them cannot be read."""
    items = zabbix.call("item.get", hostids=[host], output=["key_", "lastvalue", "state", "error"])
    problems = [item["error"] for item in items if item["state"] == "1"]
    sys.stdout.write("".join(f"{problem}\n" for problem in problems))
    return [] if problems else list(items)


def firing_for_zabbix(monitoring: Monitoring) -> set[str]:
    """Return the names of the alerts that fire in Prometheus and that Zabbix notifies of."""
    firing = answer(monitoring.prometheus, 'ALERTS{alertstate="firing",notified_by="zabbix"}')
    return {each["metric"]["alertname"] for each in firing}
