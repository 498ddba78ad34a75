"""Facts about this machine, cut to what this process may use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from tests.gpus.machine import GpuMachine
from trainworks.host import probe
from trainworks.host.folders import cache_folder
from trainworks.host.probe import command_host, cuda_names, num_cores, probe_accelerators, probe_host


@pytest.fixture
def one_core() -> Iterator[None]:
    """This process may run on one core only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_the_number_of_cores_respects_the_affinity(one_core: None) -> None:
    assert num_cores() == 1


def test_there_is_a_core_and_none_beyond_the_affinity() -> None:
    assert 1 <= num_cores() <= len(os.sched_getaffinity(0))


def test_a_machine_has_a_name_memory_disk_and_a_python(tmp_path: Path) -> None:
    facts = probe_host(tmp_path)
    assert all((facts.hostname, facts.memory_bytes, facts.disk_free_bytes, facts.python, facts.processor))


@pytest.mark.parametrize(
    ("cpuinfo", "formats"),
    [
        ("model name\t: AMD EPYC\nflags\t\t: fpu sse2 avx2 avx512f\n", ()),
        ("flags\t\t: fpu avx512f avx512_bf16\n", ("bf16",)),
        ("flags\t\t: fpu amx_bf16 avx512_fp16\nflags\t\t: fpu\n", ("bf16", "fp16")),
        ("Features\t: fp asimd fphp asimdhp bf16\n", ("bf16", "fp16")),
        ("processor: 0\n", ()),
    ],
)
def test_formats_are_those_of_the_instructions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpuinfo: str, formats: tuple[str, ...]
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(cpuinfo)
    monkeypatch.setattr(probe, "_CPUINFO", file)
    assert probe.probe_host(tmp_path).processor_formats == formats


def test_versions_that_decide_numerics_are_kept(tmp_path: Path) -> None:
    assert "numpy" in probe_host(tmp_path).packages


def test_a_command_has_the_packages_of_trainworks_only_if_it_runs_in_the_same_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert "numpy" in command_host(tmp_path, has_environment=False).packages
    assert command_host(tmp_path, has_environment=True).packages == {}
    (tmp_path / "python").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_host(tmp_path, has_environment=False).packages == {}


def test_hidden_accelerators_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert probe_accelerators() == ()


class DividedGpus:
    """NVML of a machine with a whole GPU between two in MIG mode, the last of which has a single part."""

    NVMLError = pynvml.NVMLError
    PARTS = ((("1g.10gb", "a"), ("3g.40gb", "b")), None, (("1g.10gb", "c"),))

    def nvmlInit(self) -> None:  # noqa: N802
        """Nothing to do."""

    nvmlShutdown = nvmlInit  # noqa: N815

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.PARTS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMigMode(self, gpu: int) -> list[int]:  # noqa: N802
        if self.PARTS[gpu] is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: int) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, place: int) -> tuple[str, str]:  # noqa: N802
        parts = self.PARTS[gpu] or ()
        if place >= len(parts):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return parts[place]

    def nvmlDeviceGetName(self, handle: int | tuple[str, str]) -> str:  # noqa: N802
        return "NVIDIA H100 80GB HBM3" + (f" MIG {handle[0]}" if isinstance(handle, tuple) else "")

    def nvmlDeviceGetMemoryInfo(self, handle: int | tuple[str, str]) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=10 if isinstance(handle, tuple) else 80)

    def nvmlDeviceGetUUID(self, handle: int | tuple[str, str]) -> str:  # noqa: N802
        return f"MIG-{handle[1]}" if isinstance(handle, tuple) else f"GPU-{handle}"

    def nvmlDeviceGetCudaComputeCapability(self, gpu: int) -> tuple[int, int]:  # noqa: N802
        return 9, 0

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: int) -> int:  # noqa: N802
        return 700_000


@pytest.mark.parametrize(
    ("visible", "found", "names"),
    [
        (None, ["MIG 1g.10gb", "MIG 3g.40gb", "80GB HBM3", "MIG 1g.10gb"], "MIG-a,MIG-b,1,MIG-c"),
        ("MIG-c", ["MIG 1g.10gb"], "MIG-c"),
        ("MIG-b,MIG-a", ["MIG 3g.40gb", "MIG 1g.10gb"], "MIG-b,MIG-a"),
        ("0", ["MIG 1g.10gb"], "MIG-a"),
        ("1", ["80GB HBM3"], "1"),
        ("GPU-1", ["80GB HBM3"], "1"),
        ("MIG-x", [], ""),
    ],
)
def test_parts_by_mig_stand_for_their_gpu_and_have_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str], names: str
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", DividedGpus())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = probe_accelerators()
    assert [device.name.removeprefix("NVIDIA H100 ").removeprefix("80GB HBM3 ") for device in devices] == found
    assert cuda_names([device.index for device in devices]) == names
    assert len({device.index for device in devices}) == len(devices)
    assert all(device.memory_bytes == (10 if "MIG" in device.name else 80) for device in devices)


def test_a_gpu_that_cannot_be_opened_is_left_out_and_the_others_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = GpuMachine(tmp_path / "gpus", 0, monkeypatch)
    machine.describe({}, {"lost": True}, {"slices": ["MIG-a", "MIG-b"]}, {})
    found = [(facts.index, facts.names) for facts in probe_accelerators()]
    assert found[0] == (0, ("0", "GPU-00000000-test")) and found[-1] == (3, ("3", "GPU-30000000-test"))
    assert found[1:3] == [
        (18, ("18", "MIG-a", "GPU-20000000-test", "2")),
        (19, ("19", "MIG-b", "GPU-20000000-test", "2")),
    ]


@pytest.mark.gpu
def test_accelerators_have_names_and_memory() -> None:
    found = probe_accelerators()
    if not found:
        pytest.skip("NOT TESTED: accelerators; there is no NVIDIA GPU here")
    assert all(accelerator.name and accelerator.memory_bytes for accelerator in found)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"TRAINWORKS_CACHE": "/cache", "XDG_CACHE_HOME": "/xdg"}, "/cache/calibration"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/trainworks/calibration"),
        ({"HOME": "/home/ada"}, "/home/ada/.cache/trainworks/calibration"),
    ],
)
def test_the_cache_lies_where_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("TRAINWORKS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(cache_folder("calibration")) == folder
