"""Memory of processes and kills by the out-of-memory killer, as counted by the kernel."""

from __future__ import annotations

from pathlib import Path

import psutil

from trainworks.files import readable_text
from trainworks.system import IS_LINUX

_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_UNLIMITED = 1 << 60
"""Limits above this mean no limit: version 1 writes a number near 2^63."""


def resident_bytes(pid: int | str = "self") -> int:
    """VmRSS; 0 if the process is gone."""
    return _status_bytes(pid, "VmRSS:")


def peak_bytes(pid: int | str = "self") -> int:
    """VmHWM, the largest resident size so far; 0 if the process is gone."""
    return _status_bytes(pid, "VmHWM:")


def address_space_left_bytes() -> int | None:
    """Address space left below `ulimit -v`; None without a limit, and on other systems than Linux."""
    if not IS_LINUX:
        return None
    limit, _ = psutil.Process().rlimit(psutil.RLIMIT_AS)
    return None if limit == psutil.RLIM_INFINITY else max(0, limit - _status_bytes("self", "VmSize:"))


def memory_left_bytes() -> tuple[str, int]:
    """The tighter limit, `cgroup` or `machine`, and the memory left below it."""
    machine = int(psutil.virtual_memory().available)
    left = [limit - used for folder in _cgroups() for limit, used in [_limit_and_usage(folder)] if limit < _UNLIMITED]
    return ("cgroup", max(0, min(left))) if left and min(left) < machine else ("machine", machine)


def oom_kills() -> int:
    """Number of processes killed for lack of memory: in the cgroups of this process, else on the whole machine.

    The count of the machine includes processes of other users.
    """
    files = ("memory.events", "memory.oom_control")  # of version 2 and 1
    counts = ([_field(folder / name, "oom_kill") for name in files] for folder in _cgroups())
    known = [count for both in counts for count in [both[1] if both[0] is None else both[0]] if count is not None]
    return max(known) if known else _field(_PROC / "vmstat", "oom_kill") or 0


def _cgroups() -> list[Path]:
    """Visible memory cgroups of this process and their parents, of version 2 or 1."""
    for line in readable_text(_PROC / "self" / "cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        root = _CGROUP if number == "0" else _CGROUP / "memory"
        if (number == "0" or "memory" in controllers.split(",")) and (folders := _with_memory(root, path)):
            return folders
    return []


def _with_memory(root: Path, path: str) -> list[Path]:
    folder = root / path.lstrip("/")
    folders = [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    return [f for f in folders if (f / "memory.events").exists() or (f / "memory.oom_control").exists()]


def _limit_and_usage(folder: Path) -> tuple[int, int]:
    """Limit and usage of a cgroup, without reclaimable file pages."""
    names = ("memory.max", "memory.current") if (folder / "memory.events").exists() else _VERSION_1
    limit, used = (readable_text(folder / name) for name in names)
    inactive = _field(folder / "memory.stat", "inactive_file") or 0
    return int(limit) if limit.isdigit() else _UNLIMITED, max(0, (int(used) if used.isdigit() else 0) - inactive)


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _status_bytes(pid: int | str, field: str) -> int:
    kilobytes = _field(_PROC / str(pid) / "status", field)
    return 0 if kilobytes is None else kilobytes * 1024


def _field(path: Path, name: str) -> int | None:
    for line in readable_text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return int(words[1])
    return None
