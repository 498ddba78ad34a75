"""Metrics of AMD GPUs and of network ports, whose names are those of DCGM and of node_exporter."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeClock
from tests.health.machine import Machine, nic
from tests.observe.prometheus import judge, values
from tests.observe.test_node_metrics import BusyNvml, of_gpu
from trainworks.api.observing.exporter import NodeMetrics
from trainworks.observe.metrics.amd_gpus import AmdGpuReader
from trainworks.observe.metrics.family import exposition


class AmdSmiException(Exception):
    """As amdsmi raises it."""


class FakeAmdSmi:
    """The functions of amdsmi 7.0 over the answers of one MI300X; a test replaces them."""

    AmdSmiException = AmdSmiException
    AmdSmiTemperatureType = Enum("AmdSmiTemperatureType", ["HOTSPOT", "VRAM"])
    AmdSmiTemperatureMetric = Enum("AmdSmiTemperatureMetric", ["CURRENT", "CRITICAL", "EMERGENCY"])
    AmdSmiClkType = Enum("AmdSmiClkType", ["GFX", "MEM", "VCLK0"])

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.temperatures = {("HOTSPOT", "CURRENT"): 71, ("HOTSPOT", "CRITICAL"): 100, ("VRAM", "CURRENT"): 55}
        self.answers: dict[str, Any] = {
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_gpu_device_uuid": "2eff74a1-0000-1000-80e5-1a2b3c4d5e6f",
            "amdsmi_get_gpu_device_bdf": "0000:0c:00.0",
            "amdsmi_get_power_info": {"current_socket_power": 655, "average_socket_power": "N/A"},
            "amdsmi_get_power_cap_info": {"power_cap": 750_000_000, "default_power_cap": 750_000_000},
            "amdsmi_get_gpu_activity": {"gfx_activity": 98, "umc_activity": 40, "mm_activity": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 150_000},
            "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100},
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 2, "uncorrectable_count": 0},
            "amdsmi_get_pcie_info": {"pcie_metric": {"pcie_width": 16, "pcie_replay_count": "N/A"}},
            "amdsmi_get_energy_count": {"energy_accumulator": 10_000_000, "counter_resolution": 15.3},
        }

    def amdsmi_init(self) -> None:
        """Opens nothing."""

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.count))

    def amdsmi_get_temp_metric(self, gpu: int, sensor: Enum, metric: Enum) -> int:
        return self._known(self.temperatures, (sensor.name, metric.name))

    def _known(self, answers: dict[Any, Any], key: Any) -> Any:
        if key not in answers:
            raise AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED")
        return answers[key]

    def __getattr__(self, function: str) -> Callable[..., Any]:
        return lambda *arguments: self._known(self.answers, function)


def test_an_amd_gpu_is_read_in_the_units_of_dcgm() -> None:
    found = of_gpu(exposition(AmdGpuReader(FakeAmdSmi).samples()), 0)
    assert (found["DEV_POWER_USAGE"], found["DEV_ENFORCED_POWER_LIMIT"]) == (655, 750)
    assert (found["DEV_GPU_TEMP"], found["DEV_SLOWDOWN_TEMP"], found["DEV_MEMORY_TEMP"]) == (71, 100, 55)
    assert (found["DEV_FB_USED"], found["DEV_GPU_UTIL"], found["DEV_SM_CLOCK"]) == (150_000, 98, 2100)
    assert found["DEV_TOTAL_ENERGY_CONSUMPTION"] == pytest.approx(153_000)  # mJ
    assert found["DEV_ECC_SBE_VOL_TOTAL"] == 2


def test_a_figure_that_an_amd_gpu_does_not_have_has_no_sample() -> None:
    found = of_gpu(exposition(AmdGpuReader(FakeAmdSmi).samples()), 0)
    assert not {"DEV_PCIE_REPLAY_COUNTER", "DEV_SHUTDOWN_TEMP", "DEV_PCIE_MAX_LINK_WIDTH"} & found.keys()


def test_an_older_amd_gpu_reports_its_average_power() -> None:
    smi = FakeAmdSmi()
    smi.answers["amdsmi_get_power_info"] = {"current_socket_power": "N/A", "average_socket_power": 280}
    assert of_gpu(exposition(AmdGpuReader(lambda: smi).samples()), 0)["DEV_POWER_USAGE"] == 280


@pytest.mark.parametrize("error", [ImportError, KeyError])
def test_a_machine_without_amd_gpus_has_none(error: type[Exception]) -> None:
    def load() -> Any:
        raise error

    assert not list(AmdGpuReader(load).samples())


def test_a_driver_that_goes_away_is_opened_again() -> None:
    opened: list[FakeAmdSmi] = []

    def load() -> FakeAmdSmi:
        opened.append(FakeAmdSmi())
        return opened[-1]

    reader = AmdGpuReader(load)
    assert list(reader.samples())
    opened[0].__dict__["amdsmi_get_processor_handles"] = opened[0].amdsmi_get_fan  # refuses
    assert not list(reader.samples())
    assert list(reader.samples())


def test_both_vendors_have_the_same_metrics(tmp_path: Path, clock: FakeClock) -> None:
    metrics = NodeMetrics(["gpus"], tmp_path, clock=clock, nvml=BusyNvml(1), amdsmi=FakeAmdSmi)
    power = [name for name in values(metrics.text()) if name.startswith("DCGM_FI_DEV_POWER_USAGE")]
    assert [("MI300X" in name, "H100" in name) for name in power] == [(False, True), (True, False)]


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
    metrics = NodeMetrics(["gpus", "queue"], tmp_path, clock=clock, nvml=BusyNvml(1), amdsmi=FakeAmdSmi)
    text = "".join(f"{line}\n" for line in metrics.text().splitlines() if "trainworks_" in line)
    judge("promtool", "check", "metrics", text=text)
