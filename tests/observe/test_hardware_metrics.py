"""Metrics of AMD GPUs and of network ports, whose names are those of DCGM and of node_exporter."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes import FakeClock
from tests.health.machine import AMD_PCI, Machine, busy_amd, nic
from tests.observe.prometheus import judge, values
from tests.observe.test_node_metrics import BusyNvml, of_gpu
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.observe.metrics.family import exposition
from trainworks.observe.metrics.gpus import amd_gpu_samples


@pytest.fixture
def amd(tmp_path: Path) -> Machine:
    """Eight MI300X at work."""
    return busy_amd(tmp_path / "amd")


def test_an_amd_gpu_is_read_in_the_units_of_dcgm(amd: Machine) -> None:
    found = of_gpu(exposition(amd_gpu_samples(amd.root)), 7)
    assert (found["DEV_POWER_USAGE"], found["DEV_ENFORCED_POWER_LIMIT"]) == (pytest.approx(655), 750)
    assert (found["DEV_GPU_TEMP"], found["DEV_SLOWDOWN_TEMP"], found["DEV_MEMORY_TEMP"]) == (41, 100, 33)
    assert (found["DEV_FB_USED"], found["DEV_FB_TOTAL"]) == (150_000, 196_592)
    assert (found["DEV_GPU_UTIL"], found["DEV_SM_CLOCK"], found["DEV_MAX_SM_CLOCK"]) == (98, 2100, 2100)
    assert found["DEV_TOTAL_ENERGY_CONSUMPTION"] == pytest.approx(2_000_000)  # mJ
    assert (found["DEV_ECC_SBE_VOL_TOTAL"], found["DEV_ECC_DBE_VOL_TOTAL"]) == (4, 0)


def test_a_figure_that_an_amd_gpu_does_not_have_has_no_sample(amd: Machine) -> None:
    found = of_gpu(exposition(amd_gpu_samples(amd.root)), 0)
    assert not {"DEV_PCIE_REPLAY_COUNTER", "DEV_SHUTDOWN_TEMP"} & found.keys()


def test_an_older_amd_gpu_reports_its_average_power(amd: Machine) -> None:
    folder = amd.root / AMD_PCI.format(1) / "hwmon/hwmon3"
    (folder / "power1_input").rename(folder / "power1_average")
    assert of_gpu(exposition(amd_gpu_samples(amd.root)), 0)["DEV_POWER_USAGE"] == pytest.approx(655)


def test_a_machine_whose_driver_is_not_loaded_has_none(machine: Machine) -> None:
    assert not list(amd_gpu_samples(machine.root))


def test_both_vendors_have_the_same_metrics(amd: Machine, clock: FakeClock) -> None:
    metrics = NodeMetrics(["gpus"], amd.root, clock=clock, nvml=BusyNvml(1), root=amd.root)
    power = [name for name in values(metrics.text()) if name.startswith("DCGM_FI_DEV_POWER_USAGE")]
    assert sorted(("MI300X" in name, "H100" in name) for name in power) == [(False, True), *[(True, False)] * 8]


def test_a_port_is_read_under_the_names_of_node_exporter(machine: Machine, clock: FakeClock) -> None:
    found = values(NodeMetrics(["fabric"], machine.root, clock=clock, root=machine.root).text())
    port = 'node_infiniband_%s{device="mlx5_0",port="1"}'
    assert (found[port % "state_id"], found[port % "rate_bytes_per_second"]) == (4, 50e9)
    assert found[port % "port_data_received_bytes_total"] == 4000
    assert found[port % "np_cnp_sent"] == 7
    card = 'node_network_%s{device="eno1"}'
    assert (found[card % "up"], found[card % "speed_bytes"]) == (1, 25e9 / 8)
    assert (found[card % "receive_bytes_total"], found[card % "carrier_changes_total"]) == (4096, 3)
    assert not any("docker0" in name for name in found)


def test_a_port_that_is_down_has_no_rate(machine: Machine, clock: FakeClock) -> None:
    machine.write("sys/class/net/eno1/speed", "-1")
    machine.write("sys/class/net/eno1/operstate", "down")
    nic(machine, 0)
    machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN")
    found = values(NodeMetrics(["fabric"], machine.root, clock=clock, root=machine.root).text())
    assert found['node_infiniband_state_id{device="mlx5_0",port="1"}'] == 1
    assert found['node_network_up{device="eno1"}'] == 0
    assert 'node_network_speed_bytes{device="eno1"}' not in found


def test_prometheus_has_no_complaint_about_gpus(tmp_path: Path, clock: FakeClock) -> None:
    metrics = NodeMetrics(["gpus", "queue"], tmp_path, clock=clock, nvml=BusyNvml(1), root=tmp_path)
    text = "".join(f"{line}\n" for line in metrics.text().splitlines() if "trainworks_" in line)
    judge("promtool", "check", "metrics", text=text)
