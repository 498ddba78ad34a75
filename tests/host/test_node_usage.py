"""What an agent adds up, and what accelerators say of themselves."""

from __future__ import annotations

import os
import signal
import socket
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.health.machine import AMD_PCI, healthy_amd
from trainworks.host import forking, node_usage
from trainworks.host.amd import visible_amd_gpus
from trainworks.host.node_usage import AcceleratorUse, UsageMeter, follow_usage, received_bytes
from trainworks.host.process_tree import ProcessTree, TreeUse
from trainworks.record.run_dir import RunDir


class Nvml:
    """A driver of accelerators with these utilisations in percent, and these samples (time, percent) kept."""

    NVML_GPU_UTILIZATION_SAMPLES = 1

    class NVMLError(Exception):
        pass

    def __init__(self, now: list[int | None], kept: list[list[tuple[int, int]]] | None = None) -> None:
        self.now = now
        self.kept = kept or [[] for _ in now]
        self.energy_mj: int | None = 5_000

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:  # noqa: N802
        if self.now[handle] is None:
            raise self.NVMLError("not supported")
        return SimpleNamespace(gpu=self.now[handle])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        if self.energy_mj is None:
            raise self.NVMLError("not supported")
        return self.energy_mj

    def nvmlDeviceGetSamples(self, handle: int, kind: int, since: int) -> Any:  # noqa: N802
        if not self.kept[handle]:
            raise self.NVMLError("not found")
        return 1, [SimpleNamespace(timeStamp=t, sampleValue=SimpleNamespace(uiVal=v)) for t, v in self.kept[handle]]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch):
    """A function that makes the use of accelerators under a driver."""

    def make(nvml: Nvml) -> AcceleratorUse:
        facts = [SimpleNamespace(index=index) for index in range(len(nvml.now))]
        monkeypatch.setattr(node_usage, "probe_accelerators", lambda: facts)
        return AcceleratorUse(nvml)

    return make


def test_the_busiest_accelerator_counts(use) -> None:
    assert use(Nvml([0, 40, 3])).look() == 0.4


def test_a_burst_between_two_looks_counts(use) -> None:
    nvml = Nvml([0], [[(1, 0), (2, 100), (3, 20)]])
    look = use(nvml).look
    assert look() == pytest.approx(0.4)
    assert look() == 0.0  # the same samples again


def test_an_accelerator_that_does_not_say_makes_it_unknown(use) -> None:
    assert use(Nvml([0, None])).look() is None


def test_no_accelerator_says_nothing(use) -> None:
    assert use(Nvml([])).look() is None


def test_what_nobody_can_say_counts_as_use() -> None:
    times = iter([0.0, 10.0, 20.0, 30.0])
    shares = iter([0.5, None, 0.0])
    meter = UsageMeter(ProcessTree(os.getpid()), lambda: next(times), lambda: next(shares))
    assert [meter.look().accelerator_s for _ in range(3)] == [5.0, 15.0, 15.0]


def test_a_job_without_accelerators_has_no_such_figure() -> None:
    assert UsageMeter(ProcessTree(os.getpid()), time.monotonic).look().accelerator_s is None


def test_what_other_programs_use_of_the_cores_is_what_the_descendants_do_not(tmp_path: Path) -> None:
    tree, stat = SimpleNamespace(look=lambda: TreeUse(cpu_s, None, waits_for_disk=False)), tmp_path / "stat"
    cores, ticks_per_s = sorted(os.sched_getaffinity(0)), os.sysconf("SC_CLK_TCK")

    def busy(seconds: float) -> None:
        ticks = round(seconds * ticks_per_s / len(cores))
        stat.write_text("".join(f"cpu{core} {ticks} 0 0 0 0 0 0 0 0 0\n" for core in cores))

    cpu_s = 0.0
    busy(0.0)
    meter, own_s = UsageMeter(tree, time.monotonic, stat=stat), time.process_time()
    for _ in range(2):
        time.sleep(0.05)
        busy(0.04 + (cpu_s := cpu_s + 0.04))
        use = meter.look()
        assert use.others_s == pytest.approx(0.04, abs=0.011 * len(cores) + time.process_time() - own_s)
        assert use.cores_s is not None and use.cores_s >= 0.05 * len(cores)
    stat.unlink()
    assert meter.look().others_s is None


def test_energy_counts_from_the_start_and_goes_on_with_the_next_agent(use) -> None:
    nvml = Nvml([90, 90])
    tree, accelerators = ProcessTree(os.getpid()), use(nvml)
    first = UsageMeter(tree, time.monotonic, accelerators.look, accelerators.energy_j)
    nvml.energy_mj = 8_000
    before_j = first.look().energy_j
    assert before_j == 6.0
    second = UsageMeter(tree, time.monotonic, accelerators.look, accelerators.energy_j, before_j)
    nvml.energy_mj = 10_000
    assert second.look().energy_j == 10.0
    nvml.energy_mj = 1  # the driver was loaded again
    assert second.look().energy_j == 6.0


def test_energy_that_a_driver_does_not_report_is_unknown(use) -> None:
    nvml = Nvml([90])
    nvml.energy_mj = None
    accelerators = use(nvml)
    meter = UsageMeter(ProcessTree(os.getpid()), time.monotonic, accelerators.look, accelerators.energy_j)
    assert meter.look().energy_j is None


@pytest.mark.parametrize(("version", "byte"), [(3, 24), (4, 24), (5, 88), (6, 16), (7, 24), (8, 24)])
def test_energy_of_amd_accelerators_is_counted_from_their_metrics(version: int, byte: int, tmp_path: Path) -> None:
    machine = healthy_amd(tmp_path, version)
    for index, joules in ((1, 1000), (2, 500)):
        count = (joules * 2**16).to_bytes(8, "little")
        metrics = bytes([0, 1, 1, version]) + bytes(byte - 4) + count + bytes(248 - byte)
        machine.write(f"{AMD_PCI.format(index)}/gpu_metrics", metrics)
    seen = partial(visible_amd_gpus, {"ROCR_VISIBLE_DEVICES": "1,0,7", "HIP_VISIBLE_DEVICES": "0,1,9,2"}, machine.root)
    assert [gpu.folder.name for gpu in seen().values()] == ["0000:02:00.0", "0000:01:00.0"]
    use = AcceleratorUse(Nvml([]), seen)
    assert (use.energy_j(), use.look()) == (1500.0, 0.0)


def test_an_amd_accelerator_without_a_counter_makes_the_energy_unknown(tmp_path: Path) -> None:
    machine = healthy_amd(tmp_path)
    (machine.root / AMD_PCI.format(1) / "gpu_metrics").unlink()
    assert AcceleratorUse(Nvml([]), partial(visible_amd_gpus, {}, machine.root)).energy_j() is None


def test_an_agent_leaves_what_it_measures(run_dir: RunDir) -> None:

    def agent() -> int:
        follow_usage(run_dir, 3, every_s=0.02, on_accelerators=False)
        time.sleep(60)
        return 0

    forked = forking.fork(agent, log=run_dir.node_log(3))
    try:
        deadline = time.monotonic() + 240
        while run_dir.read_usage(3) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        forked.signal_group(signal.SIGKILL)
        while forked.exit_code() is None:
            time.sleep(0.01)
    found = run_dir.read_usage(3)
    assert found is not None and (found.agent_pid, found.accelerator_s) == (forked.pid, None)


def test_a_file_of_another_version_is_no_word(run_dir: RunDir) -> None:
    run_dir.usage_file(0).parent.mkdir()
    run_dir.usage_file(0).write_text('{"future": 1}')
    assert run_dir.read_usage(0) is None


def test_what_comes_by_loopback_is_no_download() -> None:
    """A hundred megabytes to itself: whatever this machine receives meanwhile is less."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        receiver, _ = server.accept()
        before, loopback = received_bytes(), _loopback_bytes()
        for _ in range(1600):
            sender.sendall(bytes(65_536))
            receiver.recv(65_536, socket.MSG_WAITALL)
        after, sent = received_bytes(), _loopback_bytes() - loopback
        sender.close()
        receiver.close()
    assert before is not None and after is not None
    assert sent > 100_000_000 > after - before


def _loopback_bytes() -> int:
    lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))
