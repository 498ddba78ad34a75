"""Checks of NVLink, NICs and the PCI bus between GPUs and NICs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pynvml

from trainworks.measure.health.check import ASSUMPTION, Reading, beyond, check, measured, warning_check
from trainworks.measure.health.gpu_checks import AWS, AZURE, AZURE_NODE, GCM
from trainworks.measure.health.node import NVIDIA, NodeView, NotApplicable, Unreadable, listed
from trainworks.units import format_duration

_NCCL = "https://github.com/NVIDIA/nccl/blob/master/docs/userguide/source/troubleshooting/gpu_troubleshooting.rst"
_SYSFS = "https://github.com/torvalds/linux/blob/master/Documentation/ABI"
_INFINIBAND = f"{_SYSFS}/stable/sysfs-class-infiniband"
_COUNTERS = f"{GCM}/check_ib_counters.py"

_MOST_ERRORS = 100
_ERRORS = (
    "symbol_error",
    "link_error_recovery",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
"""Counters that a healthy port leaves at 0. Discards and drops are left out: congestion counts there."""
_NVSWITCH_CLASS, _BRIDGE_CLASS = "0x0680", "0x0604"
_FABRIC_MANAGER = "nv-fabricmanage"
"""Name of the process, which Linux cuts to 15 characters."""
_ACS, _ACS_CONTROL, _EXTENDED = 0x000D, 6, 0x100
_NUM_BARS, _MEMORY, _UNSET = 6, 0x200, 0x2000_0000
"""Regions of a device itself, before those of its virtual functions, which many machines leave out; and the kernel's
flags of a region of memory, and of one that it found no addresses for: IORESOURCE_MEM, IORESOURCE_UNSET."""


@check(
    limit="as many active links as the GPU with the most",
    action="restart the fabric manager, then reset the GPU; have the baseboard repaired if the link stays down",
    source=f"{AZURE}/customTests/azure_gpu_nvlink.nhc",
)
def nvlink_state(node: NodeView) -> Reading:
    """No GPU has fewer active links than another; NVLinks without a bridge or switch are inactive on all of them.

    Links are NVLinks, or AMD's XGMI links to other accelerators.
    """
    name = "NVLink" if node.vendor == NVIDIA else "XGMI link"
    links = measured(node.gpus, lambda gpu: gpu.links, f"GPUs without {name}s")
    most = max(sum(states) for _, states in links)
    if not most:
        raise NotApplicable(f"no {name} is connected")
    problems = beyond(
        links, lambda states: sum(states) < most, lambda states: f"has {sum(states)} of {most} {name}s up"
    )
    return Reading(f"{min(sum(states) for _, states in links)} of {most} on every GPU", problems)


@warning_check(
    limit="0 replays, recoveries and CRC errors",
    action="watch the counters; reset the GPU, and have the baseboard repaired if they grow",
    source=AWS,
)
def nvlink_errors(node: NodeView) -> Reading:
    """No NVLink has counted an error since the driver was loaded."""
    counts = measured(node.gpus, lambda gpu: gpu.link_errors, "the driver counts no NVLink errors")
    problems = beyond(
        counts,
        lambda errors: any(errors.values()),
        lambda errors: f"has {listed([f'{count} {name}' for name, count in errors.items() if count])}",
    )
    return Reading(str(sum(sum(errors.values()) for _, errors in counts)), problems)


@check(
    limit="nv-fabricmanager runs, or all GPUs are registered",
    action="start it: `systemctl enable --now nvidia-fabricmanager`, in the version of the driver",
    source=AWS,
)
def fabric_manager(node: NodeView) -> Reading:
    """On a node with NVSwitches the fabric manager runs; CUDA fails to start without it."""
    if not any(each.vendor == NVIDIA and each.device_class.startswith(_NVSWITCH_CLASS) for each in node.pci):
        raise NotApplicable("no NVSwitch on the PCI bus")
    completed = pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
    registered = bool(node.driver.gpus) and all(gpu.fabric and gpu.fabric[0] == completed for gpu in node.driver.gpus)
    if registered or any(each.name == _FABRIC_MANAGER for each in node.processes):
        return Reading("runs")
    return Reading("missing", ["NVSwitches without a running nv-fabricmanager"])


@check(
    limit="registration completed without an error",
    action="read the log of the fabric manager, restart it, then reset the GPU",
    source="https://github.com/NVIDIA/NVSentinel/issues/883",
)
def fabric_state(node: NodeView) -> Reading:
    """Every GPU is registered with the NVLink fabric."""
    states = measured(node.gpus, lambda gpu: gpu.fabric, "GPUs that need no fabric registration")
    done = (pynvml.NVML_GPU_FABRIC_STATE_COMPLETED, pynvml.NVML_SUCCESS)
    problems = beyond(states, lambda pair: pair != done, lambda pair: f"has fabric state {pair[0]}, status {pair[1]}")
    return Reading(f"{sum(pair == done for _, pair in states)} of {len(states)}", problems)


@check(
    limit="as many active ports as NICs are expected",
    action="reseat or replace the NIC or its cable",
    source=AZURE_NODE,
)
def nic_count(node: NodeView) -> Reading:
    """The node has as many active ports as it should have NICs."""
    if node.expected.nics is None:
        raise NotApplicable("no number of NICs is expected")
    ports = node.ports if node.files("/sys/class/infiniband/*/ports/*") else []
    active = sum(port.state == "ACTIVE" for port in ports)
    problem = f"{active} active ports, {node.expected.nics} expected"
    return Reading(f"{active} of {node.expected.nics}", [problem] if active < node.expected.nics else [])


@warning_check(
    limit="ACTIVE; a warning, because a port may be unused on purpose: `nic-count` fails if too few are active",
    action="check cable, transceiver and switch port; INIT means that no subnet manager answers",
    source=_INFINIBAND,
)
def nic_state(node: NodeView) -> Reading:
    """Every port of an RDMA device is active."""
    ports = node.ports
    idle = [f"{port} is {port.state or 'without state'}" for port in ports if port.state != "ACTIVE"]
    return Reading(f"{len(ports) - len(idle)} of {len(ports)}", idle)


@check(
    limit=f"the expected rate; else that of the fastest port of the same board, as a warning ({ASSUMPTION})",
    action="check cable, transceiver and switch port: the link trained at a lower rate",
    source=AZURE_NODE,
)
def nic_rate(node: NodeView) -> Reading:
    """Every active port has its full rate."""
    active = [port for port in node.ports if port.state == "ACTIVE"]
    if not active:
        raise NotApplicable("no active port")
    fastest = Counter[str]()
    for port in active:
        fastest[port.board] = max(fastest[port.board], round(port.gbit_per_s))
    expected = node.expected.nic_bytes_per_s
    slow = [port for port in active if port.gbit_per_s < (expected * 8e-9 if expected else fastest[port.board])]
    spare = len(active) - (node.expected.nics or len(active)) if expected else 0
    problems = [f"{port} has {port.gbit_per_s:g} Gb/s" for port in slow] if len(slow) > spare else []
    figure = f"{min(port.gbit_per_s for port in active):g} Gb/s"
    return Reading(figure, problems, "failed" if expected else "warning")


@check(
    limit=f"0 errors since the counters were reset, at the latest at boot; more than {_MOST_ERRORS} on a port fail",
    action="clean or replace the cable and transceiver; reset the counters with `perfquery -R`",
    source=_COUNTERS,
)
def nic_errors(node: NodeView) -> Reading:
    """No port has counted symbol, link or packet errors."""
    counts = [(port, sum(port.counters.get(name, 0) for name in _ERRORS)) for port in node.ports]
    worst = max(count for _, count in counts)
    since = f"in {format_duration(node.uptime_s)} or less" if node.uptime_s else "since boot"
    problems = beyond(counts, bool, lambda count: f"has counted {count} errors {since}")
    return Reading(f"{worst} on the worst port", problems, "failed" if worst > _MOST_ERRORS else "warning")


@warning_check(
    limit="0 times down since the driver was loaded",
    action="read the time in the kernel's log; replace the cable or transceiver if it happens again",
    source=_COUNTERS,
)
def nic_link_downed(node: NodeView) -> Reading:
    """No link has gone down."""
    counts = measured(node.ports, lambda port: port.counters.get("link_downed"), "the ports do not count")
    return Reading(
        str(sum(count for _, count in counts)), beyond(counts, bool, lambda count: f"went down {count} times")
    )


@warning_check(
    limit="the width and speed that the NIC can have",
    action="reseat the NIC or move it to another slot; it cannot reach its rate on this link",
    source=f"{GCM}/check_pci.py",
)
def nic_pcie(node: NodeView) -> Reading:
    """Every NIC has all its PCIe lanes at full speed."""
    cards = {port.device: port.pci for port in node.ports}
    links = measured(cards.items(), lambda card: _link(node, card[1]), "NICs without a PCIe link")
    problems = [f"{device} has {has}, could have {could}" for (device, _), (has, could) in links if has != could]
    return Reading(listed(sorted({has for _, (has, _) in links})), problems)


@warning_check(
    limit=f"one firmware version for one board ({ASSUMPTION})",
    action="update the firmware of the others",
    source=_INFINIBAND,
)
def nic_firmware(node: NodeView) -> Reading:
    """NICs of the same board have the same firmware."""
    boards: dict[str, Counter[str]] = {}
    for device, port in {port.device: port for port in node.ports}.items():
        boards.setdefault(port.board or device, Counter())[port.firmware] += 1
    problems = [f"boards {board} have {listed(sorted(found))}" for board, found in boards.items() if len(found) > 1]
    return Reading(listed(sorted({version for found in boards.values() for version in found})), problems)


@warning_check(
    limit="nvidia-peermem loaded, or the open GPU driver, which exports memory as DMA-BUF",
    action="load it at every boot: `modprobe nvidia-peermem`",
    source=_NCCL,
)
def peermem(node: NodeView) -> Reading:
    """NICs can read the memory of GPUs without a copy through the host."""
    node.gpus, node.ports  # noqa: B018, either may be missing
    if node.vendor != NVIDIA:
        raise NotApplicable("AMD's driver exports memory itself")
    modules = {line.split()[0] for line in node.text("/proc/modules").splitlines() if line}
    if "Open Kernel Module" in node.text("/proc/driver/nvidia/version"):
        return Reading("DMA-BUF")
    loaded = bool(modules & {"nvidia_peermem", "nv_peer_mem"})
    return Reading("loaded" if loaded else "missing", [] if loaded else ["nvidia-peermem is not loaded"])


@check(
    limit="0 uncorrectable errors; a fatal one fails",
    action="reseat the device and its riser; replace what still reports errors",
    source=f"{_SYSFS}/testing/sysfs-bus-pci-devices-aer_stats",
)
def pcie_errors(node: NodeView) -> Reading:
    """No GPU or NIC has reported an uncorrectable PCIe error since boot."""
    folders = {each.address: each.folder for each in node.gpus_on_the_bus}
    if node.files("/sys/class/infiniband/*"):
        folders |= {port.device: port.pci for port in node.ports}
    counts = measured(folders.items(), lambda item: _aer(node, item[1]), "no GPU or NIC that reports PCIe errors")
    problems = [
        f"{name} reported {fatal} fatal and {other} other errors"
        for (name, _), (fatal, other) in counts
        if fatal + other
    ]
    fatal = any(fatal for _, (fatal, _) in counts)
    total = sum(fatal + other for _, (fatal, other) in counts)
    return Reading(str(total), problems, "failed" if fatal else "warning")


@warning_check(
    limit="source validation (SrcValid) off on all bridges",
    action="disable ACS or VT-d in the BIOS, or with setpci after each boot",
    source=_NCCL,
)
def pcie_acs(node: NodeView) -> Reading:
    """No PCI bridge sends traffic between GPUs and NICs through the processor (ACS)."""
    node.gpus  # noqa: B018, a node without GPUs needs no peer-to-peer
    if _is_virtual(node):
        raise NotApplicable("a virtual machine needs ACS")
    bridges = [each for each in node.pci if each.device_class.startswith(_BRIDGE_CLASS)]
    controls = measured(bridges, lambda bridge: _acs_control(bridge.folder / "config"), "no bridge with ACS")
    problems = [f"bridge {bridge.address} has ACS on" for bridge, control in controls if control & 1]
    return Reading(f"{len(problems)} of {len(controls)} on", problems)


@warning_check(
    limit="off, or in passthrough (`identity`)",
    action="boot with `iommu=pt`, or disable VT-d or AMD's IOMMU in the BIOS",
    source=_NCCL,
)
def iommu(node: NodeView) -> Reading:
    """No IOMMU translates the addresses between GPUs and NICs."""
    if _is_virtual(node) or not node.gpus_on_the_bus:
        raise NotApplicable("a virtual machine needs it" if node.gpus_on_the_bus else "no GPU")
    kinds = [(gpu.address, node.text(gpu.folder / "iommu_group" / "type")) for gpu in node.gpus_on_the_bus]
    problems = [f"GPU {address} is behind an IOMMU of the type {kind}" for address, kind in kinds if "DMA" in kind]
    return Reading(listed(sorted({kind or "off" for _, kind in kinds})), problems)


@check(
    limit="an address range for each memory region of a GPU",
    action="enable above 4G decoding in the BIOS",
    source="https://docs.kernel.org/PCI/sysfs-pci.html",
)
def gpu_bar(node: NodeView) -> Reading:
    """The firmware had address space for the memory of every GPU."""
    tables = measured(node.gpus_on_the_bus, lambda gpu: node.text(gpu.folder / "resource") or None, "no GPU")
    regions = [
        (gpu.address, [int(number, 16) for number in line.split()])
        for gpu, table in tables
        for line in table.splitlines()[:_NUM_BARS]
    ]
    missing = [address for address, (start, _, flags) in regions if flags & _MEMORY and (not start or flags & _UNSET)]
    problems = [f"GPU {address} has a memory region without an address" for address in dict.fromkeys(missing)]
    return Reading(f"{len(missing)} missing", problems)


def _is_virtual(node: NodeView) -> bool:
    return "hypervisor" in node.text("/proc/cpuinfo").split("flags", 1)[-1].partition("\n")[0]


def _link(node: NodeView, folder: Path) -> tuple[str, str] | None:
    """Link of a PCI device as it is, and as it could be."""
    has, could = (
        " ".join((f"x{node.text(folder / f'{which}_link_width')}", node.text(folder / f"{which}_link_speed")))
        for which in ("current", "max")
    )
    return None if has == "x " else (has, could)


def _aer(node: NodeView, folder: Path) -> tuple[int, int] | None:
    """Fatal and non-fatal errors of a PCI device."""
    totals = []
    for kind in ("fatal", "nonfatal"):
        lines = node.text(folder / f"aer_dev_{kind}").splitlines()
        totals += [int(line.split()[1]) for line in lines if line.startswith("TOTAL_ERR_")][:1]
    return (totals[0], totals[1]) if len(totals) == 2 else None


def _acs_control(config: Path) -> int | None:
    """The ACS control register; None for a device without this capability."""
    try:
        space = config.read_bytes()
    except OSError:
        return None
    if len(space) <= _EXTENDED:
        raise Unreadable("only root reads the ACS register")
    at = _EXTENDED
    while at and at + 8 <= len(space):
        header = int.from_bytes(space[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return int.from_bytes(space[at + _ACS_CONTROL : at + _ACS_CONTROL + 2], "little")
        at = header >> 20 if header else 0
    return None
