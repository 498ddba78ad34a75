"""Lines of the logs of a run in the order of time, over all ranks and nodes.

A line has the time that is written at its beginning; else that of the line before it in its file, or of the start of
its rank. Times without a zone are local. Within one file the order of the lines stays.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Literal, get_args

from trainworks.errors import EnvironmentProblem
from trainworks.record.processes import Processes
from trainworks.record.run_dir import RunDir

Level = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: tuple[Level, ...] = get_args(Level)

_TIME = re.compile(r"\W{0,3}(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)")
_LEVEL = re.compile(r"\b(DEBUG|TRACE|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b|^([IWEF])\d{4} \d\d:\d\d:\d\d")
_NAMES: dict[str, Level] = {
    "TRACE": "debug", "DEBUG": "debug", "INFO": "info", "I": "info", "WARN": "warning", "WARNING": "warning",
    "W": "warning", "ERROR": "error", "E": "error", "CRITICAL": "critical", "FATAL": "critical", "F": "critical",
}  # fmt: skip
_PYTHON_WARNING = re.compile(r"\w*Warning: ")
_PYTHON_ERROR = re.compile(r"Traceback \(most recent call last\)|^(?:\w+\.)*\w+(?:Error|Exception|Interrupt)\b")
_BLOCK_BYTES = 64 * 1024
_HEAD = 200
"""Characters of a line in which its level is looked for."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log."""

    at: float
    """Seconds since the epoch; 0 where nothing says it."""
    source: str
    """Name of the log: `rank-3`, `rollout-0` of a rank that has a role, `node-0` or `supervisor`; empty for the output
    of a remote node."""
    text: str
    level: Level | None
    """None where the line does not say it."""
    is_alone: bool = False
    """True while no other log is read, so that the source need not be printed."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Conditions that a wanted line meets."""

    pattern: re.Pattern[str] | None = None
    since: float = 0.0
    """Seconds since the epoch."""
    level: Level | None = None
    """Least level; lines without a level are left out."""

    def wants(self, line: LogLine) -> bool:
        """True if the line passes all conditions."""
        if line.at < self.since or (self.pattern is not None and self.pattern.search(line.text) is None):
            return False
        if self.level is None:
            return True
        return line.level is not None and LEVELS.index(line.level) >= LEVELS.index(self.level)


def time_of(text: str) -> float | None:
    """The time at the beginning of a line, in seconds since the epoch; None without one.

    >>> time_of("[2026-11-23T19:40:00.500Z] step 7"), time_of("step 7")
    (1795462800.5, None)
    """
    match = _TIME.match(text)
    try:
        return datetime.fromisoformat(match[1]).timestamp() if match else None
    except (ValueError, OverflowError, OSError):
        return None


def level_of(text: str) -> Level | None:
    """The level that a line names near its beginning; a Python exception or warning has one, too.

    >>> level_of("2026-11-23 19:40:00,512 WARNING loss is high"), level_of("ValueError: bad"), level_of("step 7")
    ('warning', 'error', None)
    """
    head = text[:_HEAD]
    if match := _LEVEL.search(head):
        return _NAMES[match[1] or match[2]]
    if _PYTHON_ERROR.search(head):
        return "error"
    return "warning" if _PYTHON_WARNING.search(head) else None


class LineReader:
    """Gives the lines of one log their times and levels, in the order of the log.

    An indented line continues the one before it, and has its level: the body of a traceback is an error.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._at = 0.0
        self._level: Level | None = None

    def starts_at(self, at: float) -> None:
        """The next lines are of a start at this time."""
        self._at, self._level = max(self._at, at), None

    def read(self, text: str, *, is_alone: bool = False) -> LogLine:
        """The next line."""
        self._at = max(self._at, time_of(text) or 0.0)
        self._level = self._level if text[:1] in (" ", "\t") else level_of(text)
        return LogLine(self._at, self.source, text, self._level, is_alone)


class _File:
    """The lines that a log has gained since the last call."""

    def __init__(self, path: Path, begin: int = 0, name: str | None = None) -> None:
        self.path = path
        self._reader = LineReader(name or path.stem)
        self._offset = begin

    def lines(
        self, starts: Sequence[tuple[int, float]] = (), *, everything: bool, end: int | None = None, is_alone: bool
    ) -> Iterator[LogLine]:
        """The new lines up to byte `end`; a line without its end waits for it, unless everything is wanted.

        `starts` has offset and time of every start of the rank. `is_alone`: no other log is read.
        """
        waiting = [start for start in starts if start[0] >= self._offset]
        while block := self._block(end, everything=everything):
            for data in block:
                while waiting and waiting[0][0] <= self._offset:
                    self._reader.starts_at(waiting.pop(0)[1])
                self._offset += len(data)
                for text in data.decode("utf-8", errors="replace").splitlines():
                    yield self._reader.read(text, is_alone=is_alone)

    def _block(self, end: int | None, *, everything: bool) -> list[bytes]:
        """The next lines; the file is open no longer, because a run can have more logs than a process may open."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            left = None if end is None else max(0, end - self._offset)
            data = file.read(_BLOCK_BYTES if left is None else min(_BLOCK_BYTES, left))
            data += file.readline(-1 if left is None else left - len(data))
        *whole, rest = data.split(b"\n")
        is_wanted = rest and (everything or end is not None)
        return [line + b"\n" for line in whole] + ([rest] if is_wanted else [])


class RunLogs:
    """The logs of a run, also of ranks that start later.

    They are those of one `rank` only, or of one start of each rank: the first is `attempt` 1. `others` are logs of node
    agents and of the supervisor to read, too; without `with_ranks` they are read alone.
    """

    def __init__(
        self,
        run_dir: RunDir,
        rank: int | None = None,
        attempt: int | None = None,
        *,
        others: Sequence[Path] = (),
        with_ranks: bool = True,
    ) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._attempt = attempt
        self._with_ranks = with_ranks
        self._others = [_File(path) for path in others]
        self._files: dict[int, _File] = {}

    @property
    def is_empty(self) -> bool:
        """True until the first log exists."""
        return not any(file.path.exists() for file in self._others) and not any(map(self._part, self._ranks()))

    def new_lines(self, *, everything: bool) -> Iterator[LogLine]:
        """Lines since the last call in the order of time; with `everything` also a line without its end."""
        ranks = self._ranks()
        # some ranks may have no log yet: the first to write has its name, too
        every = self._processes if self._with_ranks and self._rank is None else None
        is_alone = len(self._others) + max(len(ranks), every.world_size if every else 0) == 1
        streams = [file.lines(everything=everything, is_alone=is_alone) for file in self._others]
        starts = self._starts(ranks)
        for rank in ranks:
            if (part := self._part(rank)) is not None:
                name = self._processes.rank_name(rank) if self._processes else None
                file = self._files.setdefault(rank, _File(self._run_dir.rank_log(rank), part[0], name))
                streams.append(file.lines(starts[rank], everything=everything, end=part[1], is_alone=is_alone))
        return heapq.merge(*streams, key=lambda line: line.at)

    @cached_property
    def _processes(self) -> Processes | None:
        with suppress(EnvironmentProblem):
            return self._run_dir.read_resolved().processes
        return None

    def _starts(self, ranks: Sequence[int]) -> dict[int, list[tuple[int, float]]]:
        """Offset and time of every start of each rank; the n-th starts of all ranks count as one moment."""
        starts = {rank: self._run_dir.rank_starts(rank) for rank in ranks}
        moments = [min(at for _, at in filter(None, nth)) for nth in zip_longest(*starts.values())]
        return {
            rank: [(offset, at) for (offset, _), at in zip(own, moments, strict=False)] for rank, own in starts.items()
        }

    def _ranks(self) -> list[int]:
        if not self._with_ranks:
            return []
        ranks = sorted(int(path.stem.partition("-")[2]) for path in self._run_dir.logs.glob("rank-*.log"))
        return [rank for rank in ranks if self._rank in (None, rank)]

    def _part(self, rank: int) -> tuple[int, int | None] | None:
        return (0, None) if self._attempt is None else self._run_dir.rank_log_part(rank, self._attempt)
