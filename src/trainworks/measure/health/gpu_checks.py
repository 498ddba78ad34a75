"""Checks of GPUs: number, kind, driver, PCIe, memory errors, heat, and what is left over on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from trainworks.catalog import catalog
from trainworks.measure.health.check import (
    ASSUMPTION,
    CheckSeverity,
    Reading,
    V,
    beyond,
    check,
    measured,
    warning_check,
)
from trainworks.measure.health.gpus import Gpu
from trainworks.measure.health.node import NVIDIA, NodeView, NotApplicable, listed
from trainworks.units import format_gib

AZURE = "https://github.com/Azure/azurehpc-health-checks/blob/main"
AZURE_NODE = f"{AZURE}/conf/nd96isr_h100_v5.conf"
AZURE_ECC = f"{AZURE}/customTests/azure_gpu_ecc.nhc"
AWS = (
    "https://github.com/aws-samples/awsome-distributed-training/blob/main/4.validation_and_observability/"
    "2.gpu-cluster-healthcheck/README.md"
)
GCM = "https://github.com/facebookresearch/gcm/blob/main/gcm/health_checks/checks"
CATALOGUE = "the catalogue: `trainworks catalog` shows each figure with its source"
_CUDA_PYTHON = "https://nvidia.github.io/cuda-python"
_PCIE = f"{_CUDA_PYTHON}/cuda-core/latest/generated/cuda.core.system.PciInfo.html"
_NVML = f"{_CUDA_PYTHON}/pr-preview/pr-2903/cuda-bindings/latest/module/generated"
_THRESHOLDS = f"{_NVML}/cuda.bindings.nvml.device_get_temperature_threshold.html"
_SRAM = "https://docs.nvidia.com/deploy/nvml-api/api/structnvmlEccSramErrorStatus__v1__t.html"

_OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
"""Oldest driver branch by major version of CUDA."""
_MOST_ROWS = 512
_SAME_MEMORY = 0.99
_MILD = {"hardware slowdown", "software thermal slowdown"}


@check(
    limit="every GPU of NVIDIA or AMD on the PCI bus opens; as many as expected",
    action="reboot the node; if GPUs stay away, drain it and reseat or replace them",
    source=AZURE_NODE,
)
def gpu_count(node: NodeView) -> Reading:
    """The driver opens every GPU of the PCI bus, and there are as many as expected."""
    answering, on_bus = len(node.driver.gpus), len(node.gpus_on_the_bus)
    part = node.expected.accelerator
    wanted = node.expected.accelerators if part is not None and part.vendor in ("NVIDIA", "AMD") else None
    if not (wanted or on_bus or answering):
        raise NotApplicable("no GPU")
    lost = {gpu.index: gpu.error for gpu in node.driver.lost if gpu.index is not None}
    problems = list(map(str, node.driver.lost))
    if answering + len(node.driver.lost) < on_bus and not node.inside_job:
        problems.append(f"{on_bus} GPUs on the PCI bus, {answering} in the driver")
    if wanted is not None and answering != wanted:
        problems.append(f"{answering} GPUs answer, {wanted} expected")
    is_explained = answering + len(lost) == (wanted or max(on_bus, answering + len(lost)))
    return Reading(f"{answering} of {wanted or max(on_bus, answering)}", problems, faulty=lost if is_explained else {})


@check(
    limit="the driver answers",
    action="load the kernel module of the installed driver, or reboot after a driver update",
    source=f"{GCM}/check_nvidia_smi.py",
)
def gpu_driver(node: NodeView) -> Reading:
    """The driver of the node's GPUs answers: NVIDIA's NVML, or AMD's module of the kernel."""
    if not (node.gpus_on_the_bus or node.driver.version):
        raise NotApplicable("no GPU")
    return Reading(node.driver.version or "none", [node.driver.error] if node.driver.error else [])


@check(
    limit="driver of CUDA's major version: 13 needs 580, 12 needs 525, 11 needs 450",
    action="update the driver, or install wheels of an older CUDA",
    source="https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html",
)
def gpu_cuda(node: NodeView) -> Reading:
    """The driver can run the CUDA version that the installed torch was built for."""
    built_for = node.cuda() if node.gpus and node.vendor == NVIDIA else ""
    if not built_for:
        raise NotApplicable("no torch for CUDA is installed")
    version, oldest = node.driver.version, _OLDEST_DRIVER.get(int(built_for.split(".")[0]), 0)
    problem = f"driver {version} is older than {oldest}, which CUDA {built_for} needs"
    return Reading(f"driver {version}, CUDA {built_for}", [problem] if int(version.split(".")[0]) < oldest else [])


@check(
    limit="all GPUs of one kind, the expected one",
    action="correct the expectation, or have the node repaired: it has other GPUs than ordered",
    source=CATALOGUE,
)
def gpu_type(node: NodeView) -> Reading:
    """All GPUs are of the same kind, and of the expected one."""
    names = Counter(gpu.name for gpu in node.gpus)
    problems = [f"mixed GPUs: {listed([f'{n}x {name}' for name, n in names.items()])}"] if len(names) > 1 else []
    wanted = node.expected.accelerator
    if wanted is not None:
        plain = wanted.name.partition(" at ")[0]
        known = {name: catalog.find_row(name, "accelerators") for name in names if catalog.has("accelerators", name)}
        problems += [f"`{name}` is not a {plain}" for name, row in known.items() if row.name != plain]
    return Reading(listed([f"{count}x {name}" for name, count in names.items()]), problems)


@check(
    limit=f"at least the usable memory of the catalogue, and as much as the other GPUs within 1 % ({ASSUMPTION})",
    action="check MIG and the ECC mode of the GPU; replace it if memory is missing",
    source=CATALOGUE,
)
def gpu_memory(node: NodeView) -> Reading:
    """All GPUs have the same memory, and at least that of the expected part."""
    sizes = measured(node.gpus, lambda gpu: gpu.memory_bytes, "the driver does not report memory")
    usable = node.expected.accelerator.usable_bytes if node.expected.accelerator else None
    largest = max(size for _, size in sizes) if _same_names(node) else 0
    least = max(usable or 0, _SAME_MEMORY * largest)
    problems = beyond(sizes, lambda size: size < least, lambda size: f"has {format_gib(size)}, not {format_gib(least)}")
    return Reading(f"{format_gib(min(size for _, size in sizes))} each", problems)


@check(
    limit="as many lanes as GPU and slot have; only a warning while the GPU is idle, which may reduce them",
    action="reseat the GPU or its riser, then replace them; a job loses the missing share of the host link",
    source=_PCIE,
)
def gpu_pcie_width(node: NodeView) -> Reading:
    """Every GPU uses all PCIe lanes of its slot."""
    narrow = [gpu for gpu in node.gpus if (gpu.link_width or 0) < (gpu.max_link_width or 0)]
    widths = measured(node.gpus, lambda gpu: gpu.link_width, "no PCIe link")
    problems = [f"{gpu} has x{gpu.link_width} of x{gpu.max_link_width}" for gpu in narrow]
    severity: CheckSeverity = "warning" if all(gpu.is_idle for gpu in narrow) else "failed"
    return Reading(f"x{min(width for _, width in widths)}", problems, severity)


@warning_check(
    limit="the slot is as fast as the GPU",
    action="set the slot to its fastest generation in the BIOS, or move the GPU to such a slot",
    source=_PCIE,
)
def gpu_pcie_generation(node: NodeView) -> Reading:
    """No slot limits the PCIe generation of its GPU; the present generation is not judged, because it falls at idle."""
    slots = measured(node.gpus, lambda gpu: gpu.slot_generation, "no PCIe link")
    problems = [
        f"{gpu} of PCIe {gpu.generation} is in a slot of PCIe {slot}"
        for gpu, slot in slots
        if slot < (gpu.generation or 0)
    ]
    return Reading(f"PCIe {min(slot for _, slot in slots)}", problems)


@warning_check(
    limit="ECC on",
    action="enable ECC and reset the GPU: `nvidia-smi --ecc-config=1`",
    source=AZURE_ECC,
)
def gpu_ecc_mode(node: NodeView) -> Reading:
    """ECC is on, so that a flipped bit is corrected or reported."""
    modes = measured(node.gpus, lambda gpu: gpu.ecc, "GPUs without ECC")
    return Reading(_share(modes, True), beyond(modes, lambda on: not on, lambda _: "has ECC off"))


@check(
    limit="0 uncorrected errors since the last reset",
    action="reset the GPU; replace it if errors return",
    source=AZURE_ECC,
)
def gpu_ecc_errors(node: NodeView) -> Reading:
    """No GPU has counted an uncorrected memory error since its last reset."""
    errors = measured(node.gpus, lambda gpu: gpu.uncorrected_errors, "GPUs without ECC")
    return _own_faults(str(sum(count for _, count in errors)), errors, bool, lambda n: f"has {n} uncorrected errors")


@check(limit="below the vendor's threshold", action="replace the GPU", source=_SRAM)
def gpu_sram_errors(node: NodeView) -> Reading:
    """The GPU does not report more SRAM errors than its vendor allows."""
    flags = measured(node.gpus, lambda gpu: gpu.sram_exceeded, "the driver does not report SRAM errors")
    return _own_faults(_share(flags, False), flags, bool, lambda _: "exceeds the vendor's limit of SRAM errors")


@check(limit="0 failed remappings", action="replace the GPU", source=AZURE_ECC)
def row_remapping(node: NodeView) -> Reading:
    """Every broken row of memory could be replaced by a spare one."""
    rows = measured(node.gpus, lambda gpu: gpu.rows, "GPUs without row remapping")
    failed = f"{sum(row.failed for _, row in rows)} failed"
    return _own_faults(failed, rows, lambda row: row.failed, lambda _: "failed to remap a row")


@warning_check(
    limit="no remapping or retirement pending; a warning, because jobs do not use that memory until the reset",
    action="reset the GPU when it is free",
    source=f"{_NVML}/cuda.bindings.nvml.device_get_remapped_rows.html",
)
def memory_pending(node: NodeView) -> Reading:
    """No row or page of memory waits for a reset to be replaced."""
    pending = measured(
        node.gpus,
        lambda gpu: gpu.page_pending if gpu.rows is None else gpu.rows.pending,
        "GPUs without row remapping or page retirement",
    )
    return Reading(_share(pending, False), beyond(pending, bool, lambda _: "waits for a reset to replace memory"))


@check(
    limit=f"at most {_MOST_ROWS} rows remapped after uncorrectable errors", action="replace the GPU", source=AZURE_ECC
)
def remapped_rows(node: NodeView) -> Reading:
    """Few rows of memory have been replaced after uncorrectable errors."""
    rows = measured(
        node.gpus, lambda gpu: None if gpu.rows is None else gpu.rows.uncorrectable, "GPUs without row remapping"
    )
    most = str(max(count for _, count in rows))
    return _own_faults(most, rows, lambda count: count > _MOST_ROWS, lambda count: f"has remapped {count} rows")


@check(
    limit="below the temperature at which the GPU slows down, as it reports it",
    action="check fans, air flow and coolant of the node; clean or repair its cooling",
    source=_THRESHOLDS,
)
def gpu_temperature(node: NodeView) -> Reading:
    """Every GPU is cooler than its own slowdown temperature."""
    hot = measured(
        node.gpus, lambda gpu: _heat(gpu.temperature_c, gpu.slowdown_c), "the GPU reports no slowdown temperature"
    )
    return _heat_reading(hot)


@check(
    limit="below the temperature at which the memory slows down, as the GPU reports it",
    action="check fans, air flow and coolant of the node; clean or repair its cooling",
    source=_THRESHOLDS,
)
def gpu_memory_temperature(node: NodeView) -> Reading:
    """The memory of every GPU is cooler than its own slowdown temperature."""
    hot = measured(
        node.gpus,
        lambda gpu: _heat(gpu.memory_temperature_c, gpu.memory_slowdown_c),
        "the GPU reports no memory temperature",
    )
    return _heat_reading(hot)


@check(
    limit="no slowdown; a hardware thermal one and a power brake fail, because others also occur as clocks change",
    action="check cooling and power supplies",
    source="https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html",
)
def gpu_throttling(node: NodeView) -> Reading:
    """No GPU has its clock reduced for heat or for power."""
    slowed = measured(node.gpus, lambda gpu: gpu.slowdowns, "the driver reports no reasons")
    problems = beyond(slowed, bool, lambda why: f"has {listed(why)}")
    is_hot = any(set(why) - _MILD for _, why in slowed)
    return Reading(_share([(gpu, not why) for gpu, why in slowed], True), problems, "failed" if is_hot else "warning")


@warning_check(
    limit="the default limit of the board",
    action="restore it: `nvidia-smi --power-limit=WATTS`, or plan with `... at N W`",
    source=f"{_NVML}/cuda.bindings.nvml.device_get_enforced_power_limit.html",
)
def gpu_power_limit(node: NodeView) -> Reading:
    """No GPU is set to less power than its board allows by default."""
    limits = measured(
        node.gpus,
        lambda gpu: None if gpu.power_limit_mw is None else (gpu.power_limit_mw, gpu.default_power_limit_mw or 0),
        "the driver reports no power limit",
    )
    problems = beyond(
        limits, lambda pair: pair[0] < pair[1], lambda pair: f"is set to {pair[0] / 1e3:.0f} of {pair[1] / 1e3:.0f} W"
    )
    return Reading(f"{min(pair[0] for _, pair in limits) / 1e3:.0f} W", problems)


@warning_check(
    limit="persistence mode on",
    action="enable nvidia-persistenced: otherwise the driver unloads between jobs and every start waits for it",
    source=AWS,
)
def gpu_persistence(node: NodeView) -> Reading:
    """The driver stays loaded between jobs."""
    modes = measured(node.gpus, lambda gpu: gpu.persistence, "the driver reports no persistence mode")
    return Reading(_share(modes, True), beyond(modes, lambda on: not on, lambda _: "has persistence mode off"))


@check(
    limit="no process on the GPUs that a prolog is for (SLURM_JOB_GPUS); only a warning elsewhere",
    action="end the processes that an earlier job left",
    source=f"{GCM}/check_nvidia_smi.py",
)
def gpu_processes(node: NodeView) -> Reading:
    """No process of an earlier job holds a GPU."""
    running = measured(node.gpus, lambda gpu: gpu.processes, "the driver does not list processes")
    named = "" if node.inside_job else node.environment.get("SLURM_JOB_GPUS", "")
    own = [part.strip() for part in named.split(",") if part.strip()]
    asked = [(gpu, pids) for gpu, pids in running if not own or str(gpu.index) in own]
    problems = beyond(asked, bool, lambda pids: f"is held by process {listed(pids)}")
    return Reading(str(sum(len(pids) for _, pids in asked)), problems, "failed" if own else "warning")


@warning_check(
    limit="one VBIOS version for one kind of GPU",
    action="flash the GPUs to one version",
    source=f"{AZURE}/customTests/azure_gpu_vbios.nhc",
)
def gpu_firmware(node: NodeView) -> Reading:
    """All GPUs of a kind have the same VBIOS."""
    versions = measured(node.gpus, lambda gpu: gpu.vbios, "the driver reports no VBIOS")
    usual = Counter(version for _, version in versions).most_common(1)[0][0]
    problems = beyond(versions, lambda version: version != usual, lambda version: f"has {version}, most have {usual}")
    return Reading(usual, problems if _same_names(node) else [])


def _own_faults(
    figure: str, values: list[tuple[Gpu, V]], bad: Callable[[V], object], describe: Callable[[V], str]
) -> Reading:
    """What a check saw whose limit a GPU exceeds by a fault of its own: the others of its node are as good as ever."""
    problems = beyond(values, bad, describe)
    indices = [gpu.index for gpu, value in values if bad(value)]
    return Reading(figure, problems, faulty=dict(zip(indices, problems, strict=True)))


def _same_names(node: NodeView) -> bool:
    return len({gpu.name for gpu in node.gpus}) == 1


def _share(flags: list[tuple[Gpu, bool]], good: bool) -> str:
    return f"{sum(flag is good for _, flag in flags)} of {len(flags)}"


def _heat(temperature_c: int | None, limit_c: int | None) -> tuple[int, int] | None:
    return None if temperature_c is None or limit_c is None else (temperature_c, limit_c)


def _heat_reading(hot: list[tuple[Gpu, tuple[int, int]]]) -> Reading:
    problems = beyond(hot, lambda pair: pair[0] >= pair[1], lambda pair: f"has {pair[0]} C, limit {pair[1]} C")
    return Reading(f"{max(pair[0] for _, pair in hot)} C", problems)
