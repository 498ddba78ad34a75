"""Each check fires on a node with its fault and on no other; what a node does not have is no failure."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from tests.health.machine import GIB, UPTIME_S, FakeNvml, Machine, acs_config, healthy
from trainworks.host.clock import KernelClock
from trainworks.host.process import Output
from trainworks.measure.health.node import NodeView
from trainworks.measure.health.node_health import HEALTH_CHECKS, check_node
from trainworks.recover.node_history import AVOID_FROM, NodeHistory
from trainworks.recover.repairs import GPUS_RESET
from trainworks.units import DAY_S

Break = Callable[[Machine], None]
PCI, IB = "sys/bus/pci/devices", "sys/class/infiniband/mlx5_3"

FAILING = NodeHistory(score=2.4, failures=2, held_s=20 * DAY_S, last_failed_at=1795515600.0, last_cause="node_lost")


def of_gpu(**answers: object) -> Break:
    """GPU 3 answers otherwise."""
    return lambda machine: machine.nvml.gpus[3].update(answers)


def file(name: str, text: str | bytes) -> Break:
    """A file of the node has another content."""
    return lambda machine: machine.write(name, text)


def replaced(name: str, old: str, new: str) -> Break:
    """Part of a file of the node is another."""
    return lambda machine: machine.write(name, (machine.root / name).read_text().strip().replace(old, new))


def attribute(**values: object) -> Break:
    """An answer that comes from no file is another."""
    return lambda machine: machine.__dict__.update(values)


def logged(line: str, *, seconds_ago: float = 60.0) -> Break:
    """A line in the kernel's log."""
    return lambda machine: machine.log.append(f"[{UPTIME_S - seconds_ago:.6f}] {line}")


def of_driver(version: str) -> Break:
    return lambda machine: setattr(machine.nvml, "driver", version)


FAULTS: dict[str, tuple[Break, str, str]] = {
    "gpu-count": (of_gpu(lost=True), "failed", "GPU 3 does not answer"),
    "gpu-cuda": (of_driver("520.61.05"), "failed", "older than 525"),
    "gpu-pcie-width": (of_gpu(width=8, reasons=0), "failed", "x8 of x16"),
    "gpu-pcie-generation": (of_gpu(slot=4), "warning", "PCIe 5 is in a slot of PCIe 4"),
    "gpu-memory": (of_gpu(memory=SimpleNamespace(total=60 * GIB)), "failed", "GPU 3 has"),
    "gpu-ecc-mode": (of_gpu(ecc=[0, 0]), "warning", "ECC off"),
    "gpu-ecc-errors": (of_gpu(uncorrected=2), "failed", "2 uncorrected errors"),
    "gpu-sram-errors": (of_gpu(sram=1), "failed", "limit of SRAM errors"),
    "row-remapping": (of_gpu(rows=(0, 1, 0, 1)), "failed", "failed to remap"),
    "memory-pending": (of_gpu(rows=(0, 1, 1, 0)), "warning", "waits for a reset"),
    "remapped-rows": (of_gpu(rows=(0, 513, 0, 0)), "failed", "513 rows"),
    "gpu-temperature": (of_gpu(temperature=88, fields={}), "failed", "88 C, limit 87 C"),
    "gpu-memory-temperature": (of_gpu(fields={pynvml.NVML_FI_DEV_MEMORY_TEMP: 95}), "failed", "95 C"),
    "gpu-throttling": (of_gpu(reasons=pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown), "failed", "power brake"),
    "gpu-power-limit": (of_gpu(power=500_000), "warning", "500 of 700 W"),
    "gpu-persistence": (of_gpu(persistence=0), "warning", "persistence mode off"),
    "gpu-processes": (of_gpu(processes=[SimpleNamespace(pid=777)]), "warning", "process 777"),
    "gpu-firmware": (of_gpu(vbios="96.00.30.00.01"), "warning", "has 96.00.30.00.01"),
    "nvlink-state": (of_gpu(links=[1] * 17 + [0]), "failed", "GPU 3 has 17 of 18 NVLinks up"),
    "nvlink-errors": (
        of_gpu(fields={pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL: 5}),
        "warning",
        "GPU 3 has 5 replay",
    ),
    "fabric-state": (of_gpu(fabric=(pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS, 0)), "failed", "fabric state 2"),
    "nic-pcie": (file(f"{IB}/device/current_link_width", "8"), "warning", "x8 32.0 GT/s PCIe, could have x16"),
    "nic-firmware": (file(f"{IB}/fw_ver", "28.36.1010"), "warning", "28.36.1010, 28.39.1002"),
    "nic-rate": (file(f"{IB}/ports/1/rate", "200 Gb/sec (4X HDR)"), "failed", "mlx5_3/1 has 200 Gb/s"),
    "nic-errors": (file(f"{IB}/ports/1/counters/symbol_error", "101"), "failed", "101 errors"),
    "nic-link-downed": (file(f"{IB}/ports/1/counters/link_downed", "2"), "warning", "went down 2 times"),
    "peermem": (file("proc/modules", "nvidia 1 0 - Live 0x0"), "warning", "not loaded"),
    "pcie-errors": (file(f"{PCI}/0000:04:00.0/aer_dev_fatal", "TOTAL_ERR_FATAL 1"), "failed", "1 fatal"),
    "pcie-acs": (file(f"{PCI}/0000:90:00.0/config", acs_config(0x1D)), "warning", "bridge 0000:90:00.0"),
    "iommu": (file(f"{PCI}/0000:04:00.0/iommu_group/type", "DMA-FQ"), "warning", "GPU 0000:04:00.0 is behind an IOMMU"),
    "gpu-bar": (
        replaced(f"{PCI}/0000:04:00.0/resource", "0x0 0x7f 0x20040101", "0x0 0x1fffffffff 0x2014220c"),
        "failed",
        "GPU 0000:04:00.0 has a memory region without an address",
    ),
    "cpu-online": (file("sys/devices/system/cpu/online", "0-111"), "failed", "0-111 of 0-223"),
    "cpu-governor": (
        file("sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
        "warning",
        "1 processors have governor powersave",
    ),
    "numa-balancing": (file("proc/sys/kernel/numa_balancing", "1"), "warning", "is on"),
    "numa-of-gpus": (file(f"{PCI}/0000:04:00.0/numa_node", "-1"), "warning", "GPU 0000:04:00.0"),
    "memory-size": (replaced("proc/meminfo", "2113396000", "1980000000"), "failed", "GiB expected"),
    "memory-errors": (file("sys/devices/system/edac/mc/mc0/ue_count", "1"), "failed", "mc0 has counted 1"),
    "memory-corrected": (file("sys/devices/system/edac/mc/mc0/ce_count", "7"), "warning", "7 corrected"),
    "hugepages": (replaced("proc/meminfo", "Free: 0", "Free: 200000"), "warning", "GiB idle"),
    "swap": (replaced("proc/meminfo", "SwapTotal: 0", "SwapTotal: 8388608"), "warning", "of swap"),
    "clock": (attribute(clock=KernelClock(0.2, 0.3, synchronized=True)), "warning", "+0.200 s off"),
    "zombies": (
        replaced("proc/4242/stat", ") S 1", ") Z 1"),
        "warning",
        "nv-fabricmanage (4242) is a zombie",
    ),
    "memlock": (
        replaced("proc/self/limits", "memory         unlimited", "memory         65536    "),
        "warning",
        "65536 bytes",
    ),
    "open-files": (replaced("proc/self/limits", "1048576", "4096   "), "warning", "4096 files"),
    "stack-size": (replaced("proc/self/limits", "8388608  ", "unlimited"), "warning", "unlimited"),
    "shm": (attribute(free={"/dev/shm": (0.0001, 0.5)}), "failed", "GiB free"),
    "mounts-answer": (
        attribute(probe=("sh", "-c", "sleep 600"), mount_timeout_s=1.0),
        "failed",
        "/shared does not answer",
    ),
    "mounts-present": (replaced("etc/fstab", "fs2:/old /old nfs4 noauto", "fs2:/old /old nfs4 hard"), "failed", "/old"),
    "mounts-writable": (replaced("proc/mounts", "xfs rw", "xfs ro"), "failed", "/scratch is read-only"),
    "disk-space": (attribute(free={"/scratch": (0.02, 0.5)}), "failed", "/scratch has 2.0% free"),
    "disk-inodes": (attribute(free={"/scratch": (0.5, 0.04)}), "warning", "/scratch has 4.0% free"),
    "raid": (file("sys/block/md0/md/degraded", "1"), "warning", "md0 lacks 1 disks"),
    "xid": (logged("NVRM: Xid (PCI:0000:04:00): 79, GPU has fallen off the bus."), "failed", "XID 79"),
    "nvswitch-errors": (
        logged("nvidia-nvswitch0: SXid (PCI:0000:00:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        "failed",
        "20034",
    ),
    "link-flaps": (logged("mlx5_core 0000:0c:00.0: Port: 1 Link down"), "warning", "Link down"),
    "hung-tasks": (logged("INFO: task python:411 blocked for more than 120 seconds."), "warning", "python:411"),
    "oom-kills": (
        logged("Out of memory: Killed process 9 (python) total-vm:9kB, anon-rss:8kB, file-rss:1kB, shmem-rss:0kB"),
        "warning",
        "(python)",
    ),
    "history": (
        attribute(history=replace(FAILING, score=AVOID_FROM)),
        "warning",
        "2 failures in 20.0 days under jobs, score 2.5, last `node_lost` at 2026-11-24 10:20 UTC",
    ),
    "disk-errors": (logged("EXT4-fs error (device md0): ext4_find_entry", seconds_ago=3e5), "failed", "EXT4"),
}
"""Check -> fault that it alone sees, verdict, part of the sentence."""


def fired(machine: Machine) -> dict[str, str]:
    return {
        each.check: each.verdict
        for each in check_node(machine.view()).results
        if each.verdict not in ("ok", "not applicable")
    }


def test_every_check_applies_to_a_healthy_node_and_passes(tmp_path: Path) -> None:
    results = check_node(healthy(tmp_path).view()).results
    assert {each.check: (each.verdict, each.problems) for each in results if each.verdict != "ok"} == {}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_fires_its_check_and_no_other(name: str, tmp_path: Path) -> None:
    machine, (harm, verdict, sentence) = healthy(tmp_path), FAULTS[name]
    harm(machine)
    assert fired(machine) == {name: verdict}
    result = next(each for each in check_node(machine.view()).results if each.check == name)
    assert any(sentence in problem for problem in result.problems), result.problems


@pytest.mark.parametrize(("history", "verdict"), [(None, "not applicable"), (FAILING, "ok")])
def test_a_history_below_the_score_from_which_nodes_are_avoided_is_quiet(
    history: NodeHistory | None, verdict: str, tmp_path: Path
) -> None:
    machine = healthy(tmp_path)
    machine.history = history
    assert next(each.verdict for each in check_node(machine.view()).results if each.check == "history") == verdict


def test_a_gpu_of_another_kind_fires(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.nvml.gpus[3]["name"] = "NVIDIA A100-SXM4-80GB"
    assert fired(machine) == {"gpu-type": "failed"}


def test_a_driver_that_does_not_answer_fires_and_leaves_the_other_gpu_checks_aside(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.nvml.broken = "version mismatch"
    assert fired(machine) == {"gpu-count": "failed", "gpu-driver": "failed"}


def test_a_dead_port_is_missing_where_its_number_is_expected(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.write(f"{IB}/ports/1/state", "1: DOWN")
    assert fired(machine) == {"nic-count": "failed", "nic-state": "warning"}
    machine.expect = "8x H100-SXM-80GB"
    assert fired(machine) == {"nic-state": "warning"}


def test_nvswitches_without_a_fabric_manager_fire_before_gpus_are_registered(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    replaced("proc/4242/stat", "nv-fabricmanage", "bash")(machine)
    assert fired(machine) == {}
    for gpu in machine.nvml.gpus:
        gpu["fabric"] = (pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED, 0)
    assert fired(machine) == {"fabric-manager": "failed"}


def test_every_check_has_a_fault() -> None:
    elsewhere = {"gpu-type", "gpu-driver", "nic-count", "nic-state", "fabric-manager"}
    assert set(FAULTS) | elsewhere == {each.name for each in HEALTH_CHECKS}


def test_the_fake_library_has_the_functions_of_the_real_one() -> None:
    for name, function in vars(FakeNvml).items():
        if name.startswith("nvml"):
            real = inspect.signature(getattr(pynvml, name)).parameters
            required = [each for each in real.values() if each.default is each.empty]
            assert len(inspect.signature(function).parameters) - 1 == len(required), name


def test_nothing_fails_on_a_node_that_has_nothing(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.nvml.broken = "no library"
    assert fired(machine) == {}


def test_a_process_on_a_gpu_of_the_job_fails_and_on_another_gpu_does_not(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.nvml.gpus[3]["processes"] = [SimpleNamespace(pid=777)]
    machine.environment |= {"SLURM_JOB_ID": "7", "SLURM_SCRIPT_CONTEXT": "prolog_slurmd", "SLURM_JOB_GPUS": "2,3"}
    assert fired(machine) == {"gpu-processes": "failed"}
    machine.environment["SLURM_JOB_GPUS"] = "0,1"
    assert fired(machine) == {}


def test_a_job_sees_its_own_gpus_and_processes_and_does_not_fail(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.expect = ""
    machine.nvml.gpus = machine.nvml.gpus[:4]
    machine.nvml.gpus[3]["processes"] = [SimpleNamespace(pid=777)]
    assert fired(machine) == {"gpu-count": "failed", "gpu-processes": "warning"}
    machine.environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1,2,3"}
    assert fired(machine) == {"gpu-processes": "warning"}


def test_an_idle_gpu_may_have_a_narrow_link(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.nvml.gpus[3]["width"] = 8
    assert fired(machine) == {"gpu-pcie-width": "warning"}


KILLED = "Killed process 9 (python) total-vm:9kB, anon-rss:8kB, file-rss:1kB, shmem-rss:0kB"
XID, MOVED = "NVRM: Xid (PCI:0000:04:00): ", "154, GPU recovery action changed from"


@pytest.mark.parametrize(
    ("line", "days_ago", "expected"),
    [
        (f"{XID}13, pid=9, Graphics Exception", 0.1, {}),
        (f"{XID}48, pid=9, DBE", 0.1, {"xid": "failed"}),
        (f"{XID}48, pid=9, DBE", 2, {}),
        (f"{XID}79, GPU has fallen off the bus.", 2, {"xid": "failed"}),
        (f"{XID}144, NVLINK", 0.1, {"xid": "warning"}),
        (f"{XID}9999, new", 0.1, {"xid": "warning"}),
        (f"{XID}{MOVED} 0x0 (None) to 0x2 (Node Reboot Required)", 2, {"xid": "failed"}),
        (f"{XID}{MOVED} 0x2 (Node Reboot Required) to 0x0 (None)", 2, {"xid": "warning"}),
        ("nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32", 0.1, {"nvswitch-errors": "warning"}),
        ("mlx5_core 0000:0c:00.0: Port: 1 Link down", 2, {}),
        ("Buffer I/O error on dev sr0, logical block 0, async page read", 0.1, {}),
        ("Buffer I/O error on dev nvme0n1, logical block 9, async page read", 0.1, {"disk-errors": "failed"}),
        (f"Memory cgroup out of memory: {KILLED}", 0.1, {}),
        (f"Out of memory: {KILLED}", 0.1, {"oom-kills": "warning"}),
    ],
)
def test_a_line_of_the_log_counts_by_its_action_and_age(
    line: str, days_ago: float, expected: dict[str, str], tmp_path: Path
) -> None:
    machine = healthy(tmp_path)
    logged(line, seconds_ago=days_ago * 86400)(machine)
    assert fired(machine) == expected


def test_the_worst_xid_gives_the_action(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    for code in (94, 48, 79):
        logged(f"NVRM: Xid (PCI:0000:04:00): {code}, text")(machine)
    result = next(each for each in check_node(machine.view()).results if each.check == "xid")
    assert (result.figure, result.action, len(result.problems)) == ("3 in the log", "reboot the node", 2)


@pytest.mark.parametrize(
    ("code", "seconds_ago", "expected"),
    [(48, 60.0, {}), (48, 10.0, {"xid": "failed"}), (79, 60.0, {"xid": "failed"})],
    ids=["before the reset", "after the reset", "needs a reboot"],
)
def test_a_reset_of_the_gpus_ends_the_errors_before_it(
    code: int, seconds_ago: float, expected: dict[str, str], tmp_path: Path
) -> None:
    machine = healthy(tmp_path)
    lines = {seconds_ago: f"NVRM: Xid (PCI:0000:04:00): {code}, text", 30.0: GPUS_RESET}
    for at in sorted(lines, reverse=True):
        logged(lines[at], seconds_ago=at)(machine)
    assert fired(machine) == expected


def test_a_log_that_only_root_reads_is_unknown_and_no_failure(tmp_path: Path) -> None:
    view = healthy(tmp_path).view()
    denied = Output(1, "", "dmesg: read kernel buffer failed: Operation not permitted")
    node = NodeView(root=view.root, nvml=view.nvml, run=lambda *_, **__: denied, environment={})
    verdicts = {each.check: (each.verdict, each.figure) for each in check_node(node).results}
    assert verdicts["xid"][0] == "unknown"
    assert "Operation not permitted" in verdicts["xid"][1]


def test_a_bridge_whose_register_only_root_reads_is_unknown(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.write(f"{PCI}/0000:90:00.0/config", acs_config(0)[:64])
    assert fired(machine) == {"pcie-acs": "unknown"}


def test_a_virtual_machine_may_have_acs_on(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    machine.write(f"{PCI}/0000:90:00.0/config", acs_config(1))
    machine.write("proc/cpuinfo", "flags : fpu hypervisor avx512f")
    assert fired(machine) == {}


def test_one_mount_of_a_file_server_is_asked_for_all_and_boot_disks_may_be_full(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    lines = "".join(f"\nfs1:/export /pods/{pod} nfs4 rw 0 0" for pod in range(50))
    machine.write("proc/mounts", (machine.root / "proc/mounts").read_text() + "/dev/sda1 /boot ext4 rw 0 0" + lines)
    machine.free["/boot"] = (0.01, 0.5)
    results = {each.check: each for each in check_node(machine.view()).results}
    assert (results["mounts-answer"].figure, results["disk-space"].verdict) == ("1 of 1", "ok")


def test_every_check_says_limit_action_and_source() -> None:
    for each in HEALTH_CHECKS:
        assert each.about.endswith("."), each.name
        assert each.limit and each.action and each.source, each.name
        assert each.source.startswith(("https://", "assumption", "the catalogue")), each.name


def together(*faults: Break) -> Break:
    """Several faults at once."""
    return lambda machine: [fault(machine) for fault in faults] and None


def xid(code: int) -> Break:
    return logged(f"{XID}{code}, pid=9, text")


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (of_gpu(uncorrected=2), "gpu-ecc-errors: GPU 3 has 2 uncorrected errors"),
        (of_gpu(lost=True), "gpu-count: GPU 3 does not answer: GPU is lost"),
        (xid(48), "xid: GPU 0000:04:00 had XID 48: double-bit ECC error"),
        (together(xid(13), xid(48)), "xid: GPU 0000:04:00 had XID 48: double-bit ECC error"),
        (
            together(of_gpu(lost=True), xid(79)),
            "gpu-count: GPU 3 does not answer: GPU is lost; xid: GPU 0000:04:00 had XID 79: GPU fell off the bus",
        ),
    ],
)
def test_a_fault_of_one_gpu_names_it_alone(fault: Break, complaint: str, tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    fault(machine)
    assert check_node(machine.view()).broken_gpus == {3: complaint}


@pytest.mark.parametrize(
    "fault",
    [
        xid(94),
        xid(74),
        of_gpu(links=[1] * 17 + [0]),
        of_gpu(temperature=88, fields={}),
        together(of_gpu(uncorrected=2), attribute(free={"/scratch": (0.02, 0.5)})),
        together(of_gpu(uncorrected=2), logged("NVRM: Xid (PCI:0000:63:00): 48, pid=9, text")),
    ],
    ids=["the program's", "of a link", "link down", "heat", "a full disk, too", "of no known GPU, too"],
)
def test_a_fault_that_may_be_of_more_than_a_gpu_names_none(fault: Break, tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    fault(machine)
    assert check_node(machine.view()).broken_gpus == {}


def test_an_xid_from_before_the_job_does_not_count_against_its_gpus(tmp_path: Path) -> None:
    machine = healthy(tmp_path)
    logged(f"{XID}48, pid=9, text", seconds_ago=60.0)(machine)
    found = {since: check_node(replace(machine.view(), xids_within_s=since)).broken_gpus for since in (30.0, 90.0)}
    assert [sorted(each) for each in found.values()] == [[], [3]]
