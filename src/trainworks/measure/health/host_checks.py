"""Checks of processor, memory, limits, clock and storage."""

from __future__ import annotations

from collections import Counter

from trainworks.measure.health.check import ASSUMPTION, Reading, beyond, check, measured, warning_check
from trainworks.measure.health.gpu_checks import AZURE_NODE, GCM
from trainworks.measure.health.node import MOUNT_TIMEOUT_S, Mount, NodeView, NotApplicable, listed
from trainworks.units import format_duration, format_gib

_NCCL = "https://github.com/NVIDIA/nccl/blob/master/docs/userguide/source/troubleshooting"
_NCCL_RUNTIME = f"{_NCCL}/runtime_and_mpi_issues.rst"
_MIXIN = "https://github.com/prometheus/node_exporter/blob/master/docs/node-mixin"
_ALERTS, _THRESHOLDS = f"{_MIXIN}/alerts/alerts.libsonnet", f"{_MIXIN}/config.libsonnet"
NPD = "https://github.com/kubernetes/node-problem-detector/blob/master/config/kernel-monitor.json"
_KERNEL = "https://github.com/torvalds/linux/blob/master/Documentation"
_EDAC = f"{_KERNEL}/ABI/testing/sysfs-devices-edac"

_MEMORY_TOLERANCE, _LOW_SPACE, _NO_SPACE = 0.05, 0.05, 0.03
_IDLE_HUGE_PAGES = 0.1
_SHM = "/dev/shm"  # noqa: S108, its free space is asked for
_LEAST_SHM_BYTES = 2**30
_LEAST_FILES = 32768
_CLOCK_OFFSET_S, _CLOCK_ERROR_S = 0.05, 16.0
_ZOMBIE_S = 300.0
_LATER = {"nofail", "x-systemd.automount"}
_LOCAL_KINDS = {"ext3", "ext4", "xfs", "btrfs", "zfs"}


@check(
    limit="all present processors online",
    action="bring them online (`chcpu --enable`), or look for a thermal or hardware fault",
    source=AZURE_NODE,
)
def cpu_online(node: NodeView) -> Reading:
    """Every processor that the kernel found is online."""
    online, present = (node.text(f"/sys/devices/system/cpu/{which}") for which in ("online", "present"))
    if not present:
        raise NotApplicable("the kernel does not list processors")
    return Reading(online, [f"processors {online} of {present} are online"] if online != present else [])


@warning_check(
    limit="performance",
    action="set it: `cpupower frequency-set --governor performance`",
    source=f"{GCM}/check_processor.py",
)
def cpu_governor(node: NodeView) -> Reading:
    """All processors run with the performance governor."""
    governors = Counter(map(node.text, node.files("/sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")))
    if not governors:
        raise NotApplicable("the processor's frequency is not scaled here")
    slow = [f"{count} processors have governor {name}" for name, count in governors.items() if name != "performance"]
    return Reading(listed(sorted(governors)), slow)


@warning_check(
    limit="0 (off) on a node with several NUMA nodes",
    action="switch it off: `sysctl kernel.numa_balancing=0`",
    source="https://rocm.docs.amd.com/en/docs-6.3.3/how-to/rocm-for-ai/training/prerequisite-system-validation.html",
)
def numa_balancing(node: NodeView) -> Reading:
    """The kernel does not move pages between NUMA nodes while ranks are bound to theirs."""
    if len(node.files("/sys/devices/system/node/node[0-9]*")) < 2:
        raise NotApplicable("one NUMA node")
    state = node.text("/proc/sys/kernel/numa_balancing")
    return Reading(state or "off", ["automatic NUMA balancing is on"] if state not in ("", "0") else [])


@warning_check(
    limit="a NUMA node for every GPU, on a node with several",
    action="enable NUMA (SRAT, NPS) in the BIOS, or pass the topology to the virtual machine",
    source=f"{_NCCL}/gpu_troubleshooting.rst",
)
def numa_of_gpus(node: NodeView) -> Reading:
    """The kernel knows the NUMA node of every GPU, which NCCL and the binding of ranks need."""
    if len(node.files("/sys/devices/system/node/node[0-9]*")) < 2:
        raise NotApplicable("one NUMA node")
    homes = measured(node.gpus_on_the_bus, lambda gpu: node.number(gpu.folder / "numa_node"), "no GPU")
    problems = [f"GPU {gpu.address} has no NUMA node" for gpu, home in homes if home < 0]
    return Reading(f"{len(homes) - len(problems)} of {len(homes)}", problems)


@check(
    limit=f"the expected memory less {_MEMORY_TOLERANCE:.0%}",
    action="look for a DIMM that the BIOS has mapped out, and replace it",
    source=AZURE_NODE,
)
def memory_size(node: NodeView) -> Reading:
    """The node has the host memory that its kind is sold with."""
    expected, total = node.expected.host_memory_bytes, node.memory.get("MemTotal", 0) * 1024
    if not expected:
        raise NotApplicable("no host memory is expected")
    problem = f"{format_gib(total)}, {format_gib(expected)} expected"
    return Reading(format_gib(total), [problem] if total < expected * (1 - _MEMORY_TOLERANCE) else [])


@check(limit="0 uncorrected errors", action="replace the DIMM that the kernel's log names", source=_EDAC)
def memory_errors(node: NodeView) -> Reading:
    """The host memory had no uncorrected error since boot."""
    return _edac(node, "ue_count", "uncorrected")


@warning_check(
    limit="0 corrected errors",
    action="plan to replace the DIMM that the kernel's log names",
    source=_EDAC,
)
def memory_corrected(node: NodeView) -> Reading:
    """The host memory had no corrected error since boot."""
    return _edac(node, "ce_count", "corrected")


@warning_check(
    limit=f"at most {_IDLE_HUGE_PAGES:.0%} of the memory in huge pages that no process has (share: {ASSUMPTION})",
    action="lower vm.nr_hugepages: these pages can be used for nothing else",
    source=f"{_KERNEL}/admin-guide/mm/hugetlbpage.rst",
)
def hugepages(node: NodeView) -> Reading:
    """Huge pages do not take memory that training could use."""
    memory = node.memory
    idle_kb = (memory.get("HugePages_Free", 0) - memory.get("HugePages_Rsvd", 0)) * memory.get("Hugepagesize", 0)
    too_many = idle_kb > _IDLE_HUGE_PAGES * memory.get("MemTotal", 0)
    figure = f"{format_gib(idle_kb * 1024)} idle"
    return Reading(figure, [f"{figure} of {format_gib(memory.get('MemTotal', 0) * 1024)}"] if too_many else [])


@warning_check(limit="no swap", action="switch it off: `swapoff --all`", source=AZURE_NODE)
def swap(node: NodeView) -> Reading:
    """The node does not swap: a rank that does slows down all others."""
    total = node.memory.get("SwapTotal", 0) * 1024
    return Reading(format_gib(total), [f"{format_gib(total)} of swap"] if total else [])


@warning_check(
    limit=f"at most {_CLOCK_OFFSET_S} s off; without a server less than {_CLOCK_ERROR_S:.0f} s of estimated error",
    action="start chronyd or systemd-timesyncd, and check that its server answers",
    source=_ALERTS,
)
def clock(node: NodeView) -> Reading:
    """The clock follows a time server."""
    state = node.clock()
    if state is None:
        raise NotApplicable("the kernel does not report its clock")
    problems = [f"{state.offset_s:+.3f} s off"] if abs(state.offset_s) > _CLOCK_OFFSET_S else []
    if not state.synchronized and state.max_error_s >= _CLOCK_ERROR_S:
        problems.append("follows no time server")
    return Reading(f"{state.offset_s:+.4f} s", problems)


@warning_check(
    limit=f"no zombie older than {_ZOMBIE_S:.0f} s",
    action="end its parent, or reboot the node",
    source=f"{GCM}/check_zombie.py",
)
def zombies(node: NodeView) -> Reading:
    """No process has ended without being collected by its parent."""
    dead = [each for each in node.processes if each.state == "Z" and node.uptime_s - each.start_s > _ZOMBIE_S]
    return Reading(str(len(dead)), [f"{each.name} ({each.pid}) is a zombie" for each in dead])


@warning_check(
    limit="unlimited on a node with RDMA devices",
    action="set `LimitMEMLOCK=infinity` for slurmd or the container runtime: RDMA buffers are locked memory",
    source=_NCCL_RUNTIME,
)
def memlock(node: NodeView) -> Reading:
    """Processes may lock all the memory that RDMA needs."""
    node.ports  # noqa: B018, TCP locks nothing
    soft = node.limits.get("Max locked memory", ("unlimited", ""))[0]
    return Reading(soft, [f"locked memory is limited to {soft} bytes"] if soft != "unlimited" else [])


@warning_check(
    limit=f"hard limit of at least {_LEAST_FILES}",
    action="raise it: `* - nofile 131072` in /etc/security/limits.d, LimitNOFILE for slurmd",
    source=_NCCL_RUNTIME,
)
def open_files(node: NodeView) -> Reading:
    """A process may open as many files and sockets as NCCL needs at scale."""
    hard = node.limits.get("Max open files", ("", "unlimited"))[1]
    return Reading(hard, [f"a process may open {hard} files"] if hard.isdigit() and int(hard) < _LEAST_FILES else [])


@warning_check(
    limit="a number, not `unlimited`",
    action="set it: `ulimit -s 8192`; with `unlimited` glibc gives threads 2 MB, and NCCL overflows them",
    source=_NCCL_RUNTIME,
)
def stack_size(node: NodeView) -> Reading:
    """The stack size is limited."""
    soft = node.limits.get("Max stack size", ("", ""))[0]
    return Reading(soft or "not known", ["the stack size is unlimited"] if soft == "unlimited" else [])


@check(
    limit=f"at least {format_gib(_LEAST_SHM_BYTES)} free",
    action="enlarge it (`--shm-size`, an emptyDir with `medium: Memory`), or remove what earlier jobs left in it",
    source=_NCCL_RUNTIME,
)
def shm(node: NodeView) -> Reading:
    """NCCL and data loaders find room in /dev/shm."""
    free = _free(node, _SHM)
    if free is None:
        raise NotApplicable(f"no {_SHM}")
    problem = f"{_SHM} has {format_gib(free[0])} free"
    return Reading(f"{format_gib(free[0])} free", [problem] if free[0] < _LEAST_SHM_BYTES else [])


@check(
    limit=f"an answer within {format_duration(MOUNT_TIMEOUT_S)} ({ASSUMPTION})",
    action="check the file server and the network to it; a job would hang at its first read",
    source=ASSUMPTION,
)
def mounts_answer(node: NodeView) -> Reading:
    """Every network file system answers."""
    _, asked = node.asked
    if not asked:
        raise NotApplicable("no network file system is mounted")
    silent = node.silent()
    return Reading(f"{len(asked) - len(silent)} of {len(asked)}", [f"{folder} does not answer" for folder in silent])


@check(
    limit="everything in /etc/fstab, without `noauto`, `nofail` and automounts",
    action="mount it: `mount --all`, and read why it failed at boot",
    source="https://github.com/mej/nhc/blob/master/README.md",
)
def mounts_present(node: NodeView) -> Reading:
    """Every file system of /etc/fstab is mounted."""
    wanted = [each for each in node.fstab if each.folder.startswith("/") and not _LATER & set(each.options)]
    if not wanted:
        raise NotApplicable("/etc/fstab is empty")
    mounted = {mount.folder.rstrip("/") for mount in node.mounts}
    missing = [f"{each} is not mounted" for each in wanted if each.folder.rstrip("/") not in mounted]
    return Reading(f"{len(wanted) - len(missing)} of {len(wanted)}", missing)


@check(
    limit="no local file system read-only, unless /etc/fstab says so",
    action="read the kernel's log for the disk error that caused it, and replace the disk",
    source=NPD,
)
def mounts_writable(node: NodeView) -> Reading:
    """The kernel has not made a local file system read-only after an error."""
    meant = {each.folder for each in node.fstab if "ro" in each.options}
    local = _local(node)
    if not local:
        raise NotApplicable("no local file system")
    broken = [f"{mount} is read-only" for mount in local if "ro" in mount.options and mount.folder not in meant]
    return Reading(f"{len(local) - len(broken)} of {len(local)}", broken)


@check(
    limit=f"at least {_LOW_SPACE:.0%} free; less than {_NO_SPACE:.0%} fails",
    action="delete old logs, images and checkpoints from it",
    source=_THRESHOLDS,
)
def disk_space(node: NodeView) -> Reading:
    """Local file systems have free space."""
    return _shares(node, 1)


@check(
    limit=f"at least {_LOW_SPACE:.0%} free; less than {_NO_SPACE:.0%} fails",
    action="delete small files from it: no new file can be created",
    source=_ALERTS,
)
def disk_inodes(node: NodeView) -> Reading:
    """Local file systems have free inodes."""
    return _shares(node, 2)


@warning_check(limit="0 missing disks", action="replace the failed disk", source=_ALERTS)
def raid(node: NodeView) -> Reading:
    """No software RAID lacks a disk."""
    missing = measured(node.files("/sys/block/md*/md/degraded"), node.number, "no software RAID")
    return Reading(
        f"{sum(count for _, count in missing)} missing",
        [f"{array.parents[1].name} lacks {count} disks" for array, count in missing if count],
    )


def _edac(node: NodeView, counter: str, kind: str) -> Reading:
    controllers = node.files(f"/sys/devices/system/edac/mc/mc[0-9]*/{counter}")
    counts = measured(controllers, node.number, "the kernel does not count memory errors (EDAC)")
    problems = [f"{path.parent.name} has counted {count} {kind} errors" for path, count in counts if count]
    return Reading(str(sum(count for _, count in counts)), problems)


def _local(node: NodeView) -> list[Mount]:
    """Local file systems that a job may write to, each device once."""
    local = (
        each for each in reversed(node.mounts) if each.kind in _LOCAL_KINDS and not each.folder.startswith("/boot")
    )
    return list({mount.device: mount for mount in local}.values())


def _free(node: NodeView, folder: str) -> tuple[int, float, float] | None:
    """Free bytes, share of free bytes and of free inodes; None if the folder does not exist."""
    try:
        space = node.space(str(node.path(folder)))
    except OSError:
        return None
    return (
        space.f_bavail * space.f_frsize,
        space.f_bavail / space.f_blocks if space.f_blocks else 1.0,
        space.f_favail / space.f_files if space.f_files else 1.0,
    )


def _shares(node: NodeView, column: int) -> Reading:
    free = {mount: _free(node, mount.folder) for mount in _local(node)}
    shares = measured(free, lambda mount: (row := free[mount]) and row[column], "no local file system")
    problems = beyond(shares, lambda share: share < _LOW_SPACE, lambda share: f"has {share:.1%} free")
    least = min(share for _, share in shares)
    return Reading(f"{least:.0%} free", problems, "failed" if least < _NO_SPACE else "warning")
