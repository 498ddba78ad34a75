"""The whole chain with the real programs: a fault reaches the webhook once, and every panel has its data."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import FakeClock, spec
from tests.health.machine import Machine, healthy
from tests.observe.conftest import RunningRun
from tests.observe.monitoring import Monitoring, answer, running_program, when_it_listens
from tests.observe.prometheus import values
from tests.observe.test_node_metrics import BusyNvml
from tests.ports import free_port
from tests.report.conftest import STEP_TERMS
from trainworks.api.observing.exporter import NodeMetrics, write_metrics
from trainworks.config.run_file import RunFile
from trainworks.jobs.job_row import Placement
from trainworks.jobs.store import JobStore
from trainworks.measure.health.node_health import check_node
from trainworks.observe.monitoring.dashboards import DASHBOARDS
from trainworks.record.environment import AcceleratorFacts
from trainworks.record.measured.step_anchor import AnchoredStep, StepAnchor, write_anchor
from trainworks.record.metrics import SlowestRank, append_metrics
from trainworks.record.step_time import ExpectedStep
from trainworks.record.usage import NodeUsage

pytestmark = [pytest.mark.slow, pytest.mark.lane("test-all")]
USED = {"energy_j": 5e6, "others_s": 1, "cores_s": 20}


def post_alerts(alertmanager: int, alerts: Sequence[Mapping[str, str]]) -> None:
    """Send alerts with these labels as Prometheus does."""
    body = json.dumps([{"labels": labels} for labels in alerts]).encode()
    url, headers = f"http://127.0.0.1:{alertmanager}/api/v2/alerts", {"Content-Type": "application/json"}
    when_it_listens(urllib.request.Request(url, body, headers)).close()


def queries_without_data(prometheus: int) -> set[str]:
    """Title and legend of every query that finds nothing."""
    return {
        f"{panel.title}: {legend}"
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for legend, expr in panel.queries.items()
        if not answer(prometheus, expr.replace("$run", "stdlib-lm-1").replace("$node", "127.0.0.1"))
    }


@pytest.mark.lane("test")
def test_a_failed_run_that_two_exporters_see_pages_once(
    running: RunningRun, metrics: NodeMetrics, monitoring: Monitoring
) -> None:
    running.fail().state("FAILED")
    with monitoring.watching(metrics, "127.0.0.1", "localhost"):
        assert monitoring.wait() == ["RunFailed"]


def test_a_run_that_does_not_save_pages_once(running: RunningRun, metrics: NodeMetrics, monitoring: Monitoring) -> None:
    running.at = time.time() + 600  # its steps go on for longer than the test, so that it does not stall
    running.steps(1)
    with monitoring.watching(metrics, "127.0.0.1"):
        assert monitoring.wait() == ["RunCheckpointOverdue"]


def test_an_xid_pages_once(folder: Path, clock: FakeClock, monitoring: Monitoring, tmp_path: Path) -> None:
    machine = healthy(tmp_path / "node")
    machine.log.append("[399990.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    metrics = NodeMetrics(["health"], folder, clock=clock, check=lambda: check_node(machine.view()))
    with monitoring.watching(metrics, "127.0.0.1"):
        assert monitoring.wait() == ["HealthCheckFailed"]


def test_a_stalled_run_pages_once_though_it_does_not_save_either(
    running: RunningRun, metrics: NodeMetrics, monitoring: Monitoring
) -> None:
    with monitoring.watching(metrics, "127.0.0.1"):
        assert monitoring.wait() == ["RunStalled"]


def test_a_hot_gpu_pages_once(folder: Path, clock: FakeClock, monitoring: Monitoring) -> None:
    nvml = BusyNvml(2)
    nvml.gpus[1]["temperature"] = 88
    with monitoring.watching(NodeMetrics(["gpus"], folder, clock=clock, nvml=nvml), "127.0.0.1"):
        assert monitoring.wait() == ["GpuTooHot"]
        assert monitoring.webhook.firing[0]["gpu"] == "1"


def test_a_dead_node_pages_once(metrics: NodeMetrics, monitoring: Monitoring) -> None:
    """The other node is in this process, which a busy machine may let wait: it pages only if it did not answer."""
    with monitoring.watching(metrics, "127.0.0.1", dead=["127.0.0.2"]):
        assert set(monitoring.wait()) == {"NodeDown"}
        paged = [labels["node"] for labels in monitoring.webhook.firing]
        silent = answer(monitoring.prometheus, 'min_over_time(up{job="trainworks"}[1h]) == 0')
    assert "127.0.0.2" in paged and len(set(paged)) == len(paged)
    assert set(paged) <= {each["metric"]["node"] for each in silent}


def test_a_dead_node_mutes_its_gpus_and_exporters(monitoring: Monitoring) -> None:
    alerts = [
        {"alertname": "GpuTooHot", "severity": "critical", "node": "node1", "gpu": "3"},
        {"alertname": "ExporterDown", "severity": "warning", "node": "node1", "job": "node"},
        {"alertname": "NodeDown", "severity": "critical", "node": "node1"},
        {"alertname": "GpuTooHot", "severity": "critical", "node": "node2", "gpu": "3"},
    ]
    with monitoring.alerting():
        post_alerts(monitoring.alertmanager, alerts)
        monitoring.wait(alerts=2)
    found = {(labels["alertname"], labels["node"]) for labels in monitoring.webhook.firing}
    assert found == {("NodeDown", "node1"), ("GpuTooHot", "node2")}


@contextmanager
def node_exporter(folder: Path, *collectors: str) -> Iterator[str]:
    """The address of Debian's node_exporter with these collectors alone."""
    address = f"127.0.0.1:{free_port()}"
    options = ["--collector.disable-defaults", *(f"--collector.{name}" for name in collectors)]
    command = ["prometheus-node-exporter", *options, f"--web.listen-address={address}"]
    with running_program(*command, log=folder / "node-exporter.log"):
        when_it_listens(f"http://{address}/metrics").close()
        yield address


def test_node_exporter_passes_our_file_on(running: RunningRun, metrics: NodeMetrics, tmp_path: Path) -> None:
    write_metrics(metrics, tmp_path / "trainworks.prom")
    with (
        node_exporter(tmp_path, "textfile", f"textfile.directory={tmp_path}") as address,
        urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as found,
    ):
        text = found.read().decode()
    assert values(text)['trainworks_run_step{run="stdlib-lm-1"}'] == 80
    assert values(text)["node_textfile_scrape_error"] == 0


def with_a_goal_and_a_price(run: RunningRun) -> None:
    """Give the run GPUs, a goal, a price and an interval of its plan, and its last step a slowest rank."""
    resolved = run.run_dir.read_resolved()
    content = resolved.run_file.model_dump(mode="json", exclude_unset=True)
    content |= {"goal": {"deadline": "1h", "budget": "40 USD"}, "cluster": {"usd_per_accelerator_hour": 2.0}}
    assert resolved.plan is not None
    interval = ExpectedStep(low_s=0.09, high_s=0.12, by_rate_s={}, learned_from=0)
    plan = resolved.plan.model_copy(update={"expected": interval})
    gpu = AcceleratorFacts(index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=85 * 10**9, power_limit_w=700.0)
    update = {
        "run_file": RunFile.model_validate(content),
        "plan": plan,
        "processes": resolved.processes.model_copy(update={"device": "cuda"}),
        "host": resolved.host.model_copy(update={"accelerators": (gpu,) * 2}),
    }
    run.run_dir.write_resolved(resolved.model_copy(update=update))
    run.at += 0.1
    found = AnchoredStep(first_step=6, step=20, step_s=0.1, low_s=0.095, high_s=0.105, unrest=0.01)
    write_anchor(run.run_dir.anchor_file, StepAnchor(layout=plan.layout, planned_s=0.1, found=found))
    slowest: SlowestRank = {"rank": 1, "extra_s": 0.02, "extra_data_s": 0.0}
    append_metrics(run.run_dir.metrics_file, [{**run._row(STEP_TERMS), "slowest": slowest}])


def submit_it(store: JobStore, run: RunningRun, node: str, now: float) -> None:
    """A job of the run on this node, and another one that waits."""
    account = '{"engine": "slurm", "slurm": {"account": "vision"}}'
    wanted = dataclasses.replace(spec(), run_id=run.run_dir.run_id)
    store.add(wanted, run_dir=str(run.run_dir.path), owner="ada", engine="slurm", now=now, cluster=account)
    store.add(spec(), run_dir="/elsewhere", owner="ada", engine="local", now=now)
    job = store.get(1)
    assert job is not None
    store.start(job, [Placement(node, 4.0, (0, 1))], now=now)


def test_every_query_of_a_dashboard_has_its_data(
    running: RunningRun,
    store: JobStore,
    machine: Machine,
    folder: Path,
    clock: FakeClock,
    monitoring: Monitoring,
    tmp_path: Path,
) -> None:
    with_a_goal_and_a_price(running)
    submit_it(store, running, "127.0.0.1", clock.now())
    usage = {"agent_pid": 1, "monotonic_s": 1, "cpu_s": 1, "io_bytes": 1, "network_bytes": 1, "disk_waits": 0}
    running.run_dir.write_usage(0, NodeUsage.model_validate({**usage, **USED, "accelerator_s": 1}))
    machine.log.append("[399990.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.")
    check = partial(check_node, machine.view())
    metrics = NodeMetrics(folder=folder, clock=clock, nvml=BusyNvml(2), root=machine.root, check=check)
    every_kind = "filesystem.fs-types-exclude=^(proc|sysfs)$"
    with (
        node_exporter(tmp_path, "filesystem", "diskstats", every_kind) as address,
        monitoring.watching(metrics, "127.0.0.1", node_exporters=[address]),
    ):
        monitoring.wait()
        clock.sleep(2)  # for another reading of the GPUs' activity
        deadline = time.monotonic() + 240
        while (empty := queries_without_data(monitoring.prometheus)) and time.monotonic() < deadline:
            time.sleep(1)
    assert empty == set()
