"""Logs of a run for a page: the last lines, or the last ones with a text."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from trainworks.api.run_handle import RunDir
from trainworks.errors import UnknownRunError

_LOG_NAME = re.compile(r"(?:rank|node)-\d{1,7}|supervisor")
_TAIL_BYTES = 1 << 20
"""End of a log that is read for its last lines."""
_SEARCH_BYTES = 256 << 20
"""End of a log that is searched."""
_LONGEST_LINE = 4000


@dataclass(frozen=True, slots=True)
class LogPart:
    """Lines of one log."""

    log: str
    """`rank-0`, `node-0` or `supervisor`."""
    lines: list[str]
    is_cut: bool
    """True if there are earlier lines that meet the condition, or that were not searched."""


def log_names(run_dir: RunDir) -> list[str]:
    """Names of the logs that exist: ranks, then node agents, then the supervisor."""
    found = {path.stem for path in run_dir.logs.glob("*.log") if _LOG_NAME.fullmatch(path.stem)}
    return sorted(found, key=lambda name: (name.startswith("s"), name.startswith("n"), len(name), name))


def read_log(run_dir: RunDir, log: str, *, text: str = "", limit: int = 500) -> LogPart:
    """The last lines of a log, or the last ones that contain a text in any case.

    Links are not followed: a run directory of another user could name any file of the reader.

    Raises:
        UnknownRunError: no such log.
    """
    if not _LOG_NAME.fullmatch(log):
        raise UnknownRunError(f"no log `{log}`", hint="the logs are rank-N, node-N and supervisor")
    wanted, needle = deque[str](maxlen=limit), text.lower()
    num_found, begin = 0, 0
    try:
        folder = os.open(run_dir.logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            handle = os.open(f"{log}.log", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError:
        raise UnknownRunError(f"run {run_dir.run_id} has no log `{log}` here") from None
    with os.fdopen(handle, "rb") as file:
        begin = max(0, os.fstat(handle).st_size - (_SEARCH_BYTES if needle else _TAIL_BYTES))
        file.seek(begin)
        if begin:
            file.readline()
        for line in _lines(file):
            if needle in line.lower():
                wanted.append(line)
                num_found += 1
    return LogPart(log, list(wanted), is_cut=begin > 0 or num_found > limit)


def _lines(file: Iterator[bytes]) -> Iterator[str]:
    for data in file:
        yield data[:_LONGEST_LINE].decode("utf-8", errors="replace").rstrip("\r\n")
