"""AMD accelerators: the checks of GPUs on what amdgpu shows in sysfs, without a library of AMD."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.health.machine import AMD_PCI, Machine, healthy, healthy_amd
from trainworks.host.amd import AmdGpu
from trainworks.measure.health.node_health import check_node

GPU = AMD_PCI.format(4)
TOPOLOGY = "sys/class/kfd/kfd/topology/nodes/5"


def fired(machine: Machine) -> dict[str, str]:
    """Verdicts of the checks that found something."""
    results = check_node(machine.view()).results
    return {each.check: each.verdict for each in results if each.verdict not in ("ok", "not applicable")}


def problems(machine: Machine) -> str:
    """All that is wrong, in one text."""
    return "; ".join(text for each in check_node(machine.view()).results for text in each.problems)


def test_a_node_in_good_health_passes_what_it_has(tmp_path: Path) -> None:
    node = check_node(healthy_amd(tmp_path).view())
    verdicts = {each.check: (each.verdict, each.figure) for each in node.results}
    assert not [name for name, (verdict, _) in verdicts.items() if verdict not in ("ok", "not applicable")]
    assert verdicts["gpu-count"] == ("ok", "8 of 8")
    assert verdicts["gpu-type"] == ("ok", "8x AMD Instinct MI300X")
    assert verdicts["gpu-temperature"] == ("ok", "41 C")
    assert verdicts["gpu-throttling"] == ("ok", "8 of 8")
    assert verdicts["nvlink-state"] == ("ok", "7 of 7 on every GPU")
    assert verdicts["gpu-power-limit"] == ("ok", "750 W")
    for name in ("gpu-cuda", "xid", "peermem", "fabric-manager", "gpu-persistence"):
        assert verdicts[name][0] == "not applicable"
    assert (node.facts["driver"], node.facts["VBIOS"]) == ("6.12.12", "8x 113-M3000100-102")


@pytest.mark.parametrize(
    ("file", "text", "check", "verdict", "says"),
    [
        ("ras/umc_err_count", "ue: 2\nce: 9", "gpu-ecc-errors", "failed", "GPU 3 has 2 uncorrected errors"),
        ("ras/gpu_vram_bad_pages", "0x1 : 0x1 : R\n0x2 : 0x1 : P", "memory-pending", "warning", "waits for a reset"),
        ("hwmon/hwmon3/temp2_input", "101000", "gpu-temperature", "failed", "101 C, limit 100 C"),
        ("hwmon/hwmon3/temp3_input", "105000", "gpu-memory-temperature", "failed", "105 C"),
        ("hwmon/hwmon3/power1_cap", "600000000", "gpu-power-limit", "warning", "600 of 750 W"),
        ("current_link_width", "8", "gpu-pcie-width", "warning", "x8 of x16"),
        ("mem_info_vram_total", "103079215104", "gpu-memory", "failed", "GPU 3 has"),
        ("product_name", "AMD Instinct MI210", "gpu-type", "failed", "mixed GPUs"),
        ("vbios_version", "113-M3000100-103", "gpu-firmware", "warning", "most have 113-M3000100-102"),
        ("mem_info_vram_total", "", "gpu-count", "failed", "0000:04:00.0 is not driven by amdgpu"),
    ],
)
def test_a_fault_of_one_accelerator_is_found(
    file: str, text: str, check: str, verdict: str, says: str, tmp_path: Path
) -> None:
    machine = healthy_amd(tmp_path)
    machine.write(f"{GPU}/{file}", text)
    assert fired(machine)[check] == verdict
    assert says in problems(machine)


def test_an_accelerator_with_fewer_links_than_the_others_fails(tmp_path: Path) -> None:
    machine = healthy_amd(tmp_path)
    machine.write(f"{TOPOLOGY}/io_links/7/properties", "type 2\nweight 20")
    assert fired(machine) == {"nvlink-state": "failed"}
    assert "GPU 3 has 6 of 7 XGMI links up" in problems(machine)


def test_a_node_whose_module_is_not_loaded_fails(tmp_path: Path) -> None:
    machine = healthy_amd(tmp_path)
    (machine.root / "sys/module/amdgpu/version").unlink()
    (machine.root / "sys/module/amdgpu").rmdir()
    assert {"gpu-count", "gpu-driver"} <= fired(machine).keys()
    assert "amdgpu is not loaded" in problems(machine)


@pytest.mark.parametrize(("version", "byte"), [(6, 44), (7, 52), (8, 52)])
def test_a_residency_that_grows_between_two_readings_is_a_slowdown(
    version: int, byte: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, readings, read = healthy_amd(tmp_path, version), count(), AmdGpu.metrics

    def growing(gpu: AmdGpu) -> bytes:
        metrics = bytearray(read(gpu))
        if gpu.folder.name == "0000:04:00.0":
            metrics[byte] = next(readings)
        return bytes(metrics)

    monkeypatch.setattr(AmdGpu, "metrics", growing)
    assert fired(machine) == {"gpu-throttling": "failed"}
    assert next(readings) == 2


def test_the_power_limit_that_works_is_no_slowdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, readings, read = healthy_amd(tmp_path), count(), AmdGpu.metrics
    power = 48
    monkeypatch.setattr(
        AmdGpu, "metrics", lambda gpu: read(gpu)[:power] + bytes([next(readings)]) + read(gpu)[power + 1 :]
    )
    assert fired(machine) == {}


@pytest.mark.parametrize(("flags", "found"), [(1 << 36, {"gpu-throttling": "failed"}), (1 << 0, {}), (2**64 - 1, {})])
def test_the_flags_of_older_metrics_tell_heat_from_power(flags: int, found: dict[str, str], tmp_path: Path) -> None:
    machine = healthy_amd(tmp_path, version=3)
    machine.write(f"{GPU}/gpu_metrics", bytes([120, 0, 1, 3]) + bytes(108) + flags.to_bytes(8, "little"))
    assert fired(machine) == found


def drop_metrics(machine: Machine) -> None:
    for index in range(8):
        (machine.root / AMD_PCI.format(index + 1) / "gpu_metrics").unlink()


def hide_topology(machine: Machine) -> None:
    for file in machine.root.glob("sys/class/kfd/kfd/topology/nodes/*/io_links/*/properties"):
        file.unlink()


@pytest.mark.parametrize(("hide", "check"), [(drop_metrics, "gpu-throttling"), (hide_topology, "nvlink-state")])
def test_what_the_driver_does_not_show_is_not_checked(
    hide: Callable[[Machine], None], check: str, tmp_path: Path
) -> None:
    machine = healthy_amd(tmp_path)
    hide(machine)
    verdicts = {each.check: each.verdict for each in check_node(machine.view()).results}
    assert verdicts[check] == "not applicable"
    assert fired(machine) == {}


def test_the_graphics_of_a_processor_are_no_accelerator(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    folder = "sys/bus/pci/devices/0000:f0:00.0"
    machine.write(f"{folder}/vendor", "0x1002")
    machine.write(f"{folder}/class", "0x030000")
    assert fired(machine) == {}
