"""Resources used by the descendants of a process, from one pass over /proc.

The processor time of an ended process moves to its parent when that waits for it, so the sum over the living loses
nothing. If a parent ignores SIGCHLD, the use of a child after the last sample is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

_Id = tuple[int, int]
"""Process id and start: the id alone is reused."""


@dataclass(frozen=True, slots=True)
class TreeUse:
    """Resources used since the first sample, and before it by the processes of that sample."""

    cpu_s: float
    io_bytes: int | None
    waits_for_disk: bool
    """A process is in the kernel state D now."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    state: str
    own_ticks: int
    reaped_ticks: int
    """Ticks of children that it has waited for."""
    started: int

    @property
    def id(self) -> _Id:
        return self.pid, self.started


class ProcessTree:
    """All descendants of a process, without itself; its ended children count through it.

    `marks` are environment variables of processes that belong to it without being descendants.
    """

    def __init__(self, root: int, marks: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._marks = {f"{name}={value}".encode() for name, value in (marks or {}).items()}
        self._looks: dict[_Id, tuple[int, bool]] = {}
        self._own: dict[_Id, int] = {}
        self._total = 0
        self._ticks = 0
        self._io_total = 0
        self._io_bytes = 0

    def look(self) -> TreeUse:
        """Resources used so far."""
        processes = {one.pid: one for one in _processes()}
        tree = self._tree(processes)
        self._count_ticks(tree, processes.get(self._root))
        knows_io = self._count_io(tree)
        return TreeUse(
            cpu_s=self._ticks / os.sysconf("SC_CLK_TCK"),
            io_bytes=self._io_bytes if knows_io else None,
            waits_for_disk=any(one.state == "D" for one in tree),
        )

    def _tree(self, processes: Mapping[int, _Process]) -> list[_Process]:
        children: dict[int, list[_Process]] = {}
        for one in processes.values():
            children.setdefault(one.parent, []).append(one)
        found: dict[int, _Process] = {}
        due = [*children.get(self._root, []), *self._marked(processes)]
        while due:
            one = due.pop()
            if one.pid not in found and one.pid != self._root:
                found[one.pid] = one
                due += children.get(one.pid, [])
        return list(found.values())

    def _marked(self, processes: Mapping[int, _Process]) -> list[_Process]:
        """Processes with the marks. Environments are read at most twice: an exec can replace them once."""
        if not self._marks:
            return []
        looks, self._looks = self._looks, {}
        found = []
        for one in processes.values():
            times, marked = looks.get(one.id, (0, False))
            if not marked and times < 2:
                times, marked = times + 1, self._marks <= _environment(one.pid)
            self._looks[one.id] = times, marked
            found += [one] if marked else []
        return found

    def _count_ticks(self, tree: list[_Process], root: _Process | None) -> None:
        """Add the gain of the sum, or that of the living if a process ended without being counted by its parent."""
        total = sum(one.own_ticks + one.reaped_ticks for one in tree) + (root.reaped_ticks if root else 0)
        own = {one.id: one.own_ticks for one in tree}
        living = sum(max(0, ticks - self._own.get(key, 0)) for key, ticks in own.items())
        self._ticks += max(total - self._total, living)
        self._total, self._own = total, own

    def _count_io(self, tree: list[_Process]) -> bool:
        """Add the gain of the sum; False if a process cannot be read."""
        amounts = [_io_bytes(one.pid) if one.state != "Z" else _io_bytes(one.pid) or 0 for one in tree]
        total = sum(amount or 0 for amount in amounts)
        self._io_bytes += max(0, total - self._io_total)
        self._io_total = total
        return None not in amounts


def children_of(pid: int) -> dict[int, str]:
    """Direct children of a process, and the title of each: its words, as it has written them; empty once it is gone."""
    titles: dict[int, str] = {}
    with suppress(OSError):
        for child in map(int, _read(f"/proc/{pid}/task/{pid}/children").split()):
            with suppress(OSError):
                titles[child] = _read(f"/proc/{child}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    return titles


def _processes() -> Iterator[_Process]:
    with os.scandir("/proc") as entries:
        names = [entry.name for entry in entries if entry.name.isdecimal()]
    for name in names:
        with suppress(OSError):
            yield _parsed(int(name), _read(f"/proc/{name}/stat"))


def _parsed(pid: int, stat: bytes) -> _Process:
    """Parse a stat line; field numbers are those of proc(5) minus three, behind the name in parentheses."""
    fields = stat[stat.rindex(b")") + 2 :].split(None, 20)
    return _Process(
        pid=pid,
        parent=int(fields[1]),
        state=fields[0].decode(),
        own_ticks=int(fields[11]) + int(fields[12]),
        reaped_ticks=int(fields[13]) + int(fields[14]),
        started=int(fields[19]),
    )


def _io_bytes(pid: int) -> int | None:
    """Characters read and written, those of ended children included; 0 for a process that just ended."""
    try:
        lines = _read(f"/proc/{pid}/io").split()
    except (FileNotFoundError, ProcessLookupError):
        return 0 if not os.path.exists(f"/proc/{pid}") else None  # noqa: PTH110
    except OSError:
        return None
    return int(lines[1]) + int(lines[3])


def _environment(pid: int) -> set[bytes]:
    with suppress(OSError):
        return set(_read(f"/proc/{pid}/environ").split(b"\0"))
    return set()


def _read(path: str) -> bytes:
    """Read a file without the layers of Python, which take most of the time."""
    handle = os.open(path, os.O_RDONLY)
    try:
        data = os.read(handle, 1 << 16)
        while len(data) % (1 << 16) == 0 and (more := os.read(handle, 1 << 16)):
            data += more
        return data
    finally:
        os.close(handle)
