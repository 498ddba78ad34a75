"""A running run, and metrics of a node that has it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.health.machine import Machine, healthy
from tests.observe.monitoring import Monitoring
from tests.observe.webhook import Webhook
from tests.report.conftest import RunWriter, make_plan
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.jobs.store import JobStore, open_store


class RunningRun(RunWriter):
    """A run whose supervisor is on another machine, so that no process of this one is missed."""

    def __init__(self, folder: Path, **plan_changes: Any) -> None:
        super().__init__(folder, make_plan(**plan_changes), None)

    def state(self, state: str) -> RunningRun:
        """What the supervisor says of it."""
        self.status(state, supervisor_host="elsewhere")
        return self


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of runs."""
    return tmp_path / "runs"


@pytest.fixture
def running(folder: Path) -> RunningRun:
    """80 steps, a checkpoint after 60 of them."""
    run = RunningRun(folder)
    run.launch().steps(60).checkpoint().steps(20)
    return run.state("RUNNING")


@pytest.fixture
def metrics(folder: Path, clock: FakeClock) -> NodeMetrics:
    """Metrics of the runs of that folder."""
    return NodeMetrics(["runs"], folder, clock=clock)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """A job store of this test's own."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    monkeypatch.setenv("TRAINWORKS_STORE", url)
    return open_store(url)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    """A receiver of alerts."""
    with Webhook() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A node with eight InfiniBand ports, one Ethernet card and a bridge."""
    machine = healthy(tmp_path / "node")
    counted = {"port_rcv_data": 1000, "port_xmit_data": 2000, "port_xmit_wait": 0, "port_rcv_errors": 0}
    counted["port_xmit_discards"] = 0
    for name, count in counted.items():
        machine.write(f"sys/class/infiniband/mlx5_0/ports/1/counters/{name}", str(count))
    for name, count in {"np_cnp_sent": 7, "rp_cnp_handled": 8, "out_of_sequence": 0}.items():
        machine.write(f"sys/class/infiniband/mlx5_0/ports/1/hw_counters/{name}", str(count))
    about = {"device/vendor": "0x8086", "operstate": "up", "speed": "25000", "carrier_changes": "3"}
    for name, text in {**about, "statistics/rx_bytes": "4096", "statistics/tx_bytes": "8192"}.items():
        machine.write(f"sys/class/net/eno1/{name}", text)
    machine.write("sys/class/net/docker0/statistics/rx_bytes", "9")
    return machine


@pytest.fixture
def monitoring(tmp_path: Path, webhook: Webhook) -> Monitoring:
    """Prometheus and Alertmanager, not started."""
    return Monitoring(tmp_path, webhook)
