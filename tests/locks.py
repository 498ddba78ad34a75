"""Locks of files, by the process that took them."""

from __future__ import annotations

from pathlib import Path


def has_locked(pid: int, name: str) -> bool:
    """Whether a process itself has locked an open file of this name.

    A fork has the same open file, and so the lock, until it closes it; the kernel names the process that took it.
    """
    locks = (line.split() for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines())
    taken = {int(words[5].rpartition(":")[2]) for words in locks if words[1] == "FLOCK" and words[4] == str(pid)}
    try:
        links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if link.readlink().name == name]
        return any(link.stat().st_ino in taken for link in links)
    except OSError:  # it has ended since, or has closed the file
        return False
