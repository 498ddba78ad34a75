"""Read the logs of a run: of all ranks in the order of time, filtered, and followed to the end of the run."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from trainworks.api.run_handle import Run, RunDir, as_run
from trainworks.errors import ArgumentError, QuantityError, UnknownRunError, UsageError, suggest
from trainworks.files import closing_handle
from trainworks.observe.log_lines import LEVELS, LineReader, LogFilter, LogLine, RunLogs, time_of
from trainworks.system import IS_WINDOWS
from trainworks.units import parse_duration

__all__ = ["LEVELS", "LogLine", "LogPart", "RunLogs", "last_lines", "log_names", "log_sizes", "logs"]

_POLL_S = 0.2
_LOG_NAME = re.compile(r"(?:rank|node)-\d{1,7}|supervisor")
_TAIL_BYTES = 1 << 20
"""End of a log that is read for its last lines."""
_SEARCH_BYTES = 256 << 20
"""End of a log that is searched."""
_LONGEST_LINE = 4000


@dataclass(frozen=True, slots=True)
class LogPart:
    """The last lines of one log."""

    log: str
    """`rank-0`, `node-0` or `supervisor`."""
    lines: list[str]
    is_cut: bool
    """True if there are earlier lines that meet the conditions, or that were not searched."""


def logs(
    run: Run | str | None = None,
    *,
    folder: Path | str = "runs",
    follow: bool = False,
    rank: int | None = None,
    attempt: int | None = None,
    node: int | None = None,
    supervisor: bool = False,
    everything: bool = False,
    grep: str | None = None,
    since: str | None = None,
    level: str | None = None,
) -> Iterator[LogLine]:
    """Lines of the logs of a run in the order of time.

    Args:
        run: a run, or its id or path, or number of its job; the newest run of the folder when None.
        folder: folder of all runs.
        follow: wait for new lines until the run ends.
        rank: the log of one rank.
        attempt: the output of this start of the ranks, counted from 1.
        node: the log of this node's agent.
        supervisor: the log of the supervisor.
        everything: the logs of all ranks, all node agents and the supervisor.
        grep: only lines in which this regular expression is found.
        since: only lines after this time, or not older than this duration.
        level: only lines of this level or above.

    Raises:
        ArgumentError: an argument cannot be read.
        UsageError: the log does not exist.

    >>> import tempfile, trainworks
    >>> ended = trainworks.run(["echo", "hello"], folder=tempfile.mkdtemp())
    >>> [line.text for line in logs(str(ended.path))]
    ['hello']
    """
    wanted = _filter(grep, since, level)
    found = as_run(run, folder)
    if found.has_remote_output:
        if supervisor or rank is not None or attempt is not None:
            raise UsageError("the nodes of this run write no files here", hint="choose a node with `--node`")
        lines: Iterator[LogLine] = map(LineReader("").read, found.output(node=node, follow=follow))
    else:
        others = _others(found, node, supervisor=supervisor, everything=everything)
        read = RunLogs(found.run_dir, rank, attempt, others=others, with_ranks=everything or not others)
        _check_exists(found, read, others, follow=follow, rank=rank, attempt=attempt)
        lines = _lines(found, read, follow=follow)
    return filter(wanted.wants, lines)


def _lines(found: Run, read: RunLogs, *, follow: bool) -> Iterator[LogLine]:
    if not follow:
        yield from read.new_lines(everything=True)
        return
    for progress in found.poll(poll_s=_POLL_S):
        yield from read.new_lines(everything=progress.state.is_final)


def _others(found: Run, node: int | None, *, supervisor: bool, everything: bool) -> list[Path]:
    run_dir = found.run_dir
    if everything:
        return [*sorted(run_dir.logs.glob("node-*.log")), run_dir.supervisor_log]
    chosen = [run_dir.node_log(node)] if node is not None else []
    return chosen + ([run_dir.supervisor_log] if supervisor else [])


def _check_exists(
    found: Run, read: RunLogs, others: list[Path], *, follow: bool, rank: int | None, attempt: int | None
) -> None:
    """Refuse a log that does not exist; `follow` waits for it."""
    if follow or not read.is_empty:
        return
    hint = "trainworks logs RUN --supervisor"
    if others:
        raise UsageError(f"`{others[0]}` does not exist", hint=hint)
    if rank is not None or attempt is not None:
        which = f"rank {rank}" if rank is not None else "any rank"
        what = "no log" if attempt is None else f"no start number {attempt}"
        raise UsageError(f"there is {what} of {which} of {found.id}", hint=hint)


def _filter(grep: str | None, since: str | None, level: str | None) -> LogFilter:
    try:
        pattern = re.compile(grep) if grep else None
    except re.error as error:
        hint = "escape special characters with a backslash"
        raise ArgumentError(f"`{grep}` is not a regular expression: {error}", argument="grep", hint=hint) from None
    least = next((known for known in LEVELS if level and known == level.lower()), None)
    if level and least is None:
        hint = suggest(level.lower(), LEVELS) or f"one of {', '.join(LEVELS)}"
        raise ArgumentError(f"no level `{level}`", argument="level", hint=hint)
    return LogFilter(pattern, _parse_since(since), least)


def _parse_since(text: str | None) -> float:
    """Seconds since the epoch of a time, or of a duration before now."""
    if text is None:
        return 0.0
    at = time_of(text)
    if at is not None:
        return at
    try:
        return time.time() - parse_duration(text)
    except QuantityError:
        hint = "write it like `10m`, or like `2026-11-23 19:40:00`"
        raise ArgumentError(f"`{text}` is neither a duration nor a time", argument="since", hint=hint) from None


def log_names(run_dir: RunDir) -> list[str]:
    """Names of the logs that exist: ranks, then node agents, then the supervisor."""
    found = {path.stem for path in run_dir.logs.glob("*.log") if _LOG_NAME.fullmatch(path.stem)}
    return sorted(found, key=lambda name: (name.startswith("s"), name.startswith("n"), len(name), name))


def log_sizes(run_dir: RunDir) -> dict[str, int]:
    """Bytes of each log, in the order of `log_names`; of one that was just removed 0."""
    sizes = {}
    for name in log_names(run_dir):
        path = run_dir.logs / f"{name}.log"
        sizes[name] = path.stat().st_size if path.is_file() else 0
    return sizes


def last_lines(run_dir: RunDir, log: str, *, text: str = "", level: str = "", limit: int = 500) -> LogPart:
    """The last lines of a log, or the last ones that meet conditions.

    Links are not followed: a run directory of another user could name any file of the reader. `log` is a name out of
    `log_names`. Lines have the text in any case, and the level or one above.

    Raises:
        UnknownRunError: no such log.
        ArgumentError: no such level.
    """
    if not _LOG_NAME.fullmatch(log):
        raise UnknownRunError(f"no log `{log}`", hint="the logs are rank-N, node-N and supervisor")
    wanted = replace(_filter(None, None, level), pattern=re.compile(re.escape(text), re.IGNORECASE))
    kept, num_found, reader = deque[str](maxlen=limit), 0, LineReader(log)
    with _open_inside(run_dir, log) as file:
        begin = max(0, os.fstat(file.fileno()).st_size - (_SEARCH_BYTES if text or level else _TAIL_BYTES))
        file.seek(begin)
        if begin:
            file.readline()
        lines = file if text or level else deque(file, maxlen=limit + 1)  # one more tells that there are earlier ones
        for line in lines:
            read = reader.read(line[:_LONGEST_LINE].decode("utf-8", errors="replace").rstrip("\r\n"))
            if wanted.wants(read):
                kept.append(read.text)
                num_found += 1
    return LogPart(log, list(kept), is_cut=begin > 0 or num_found > limit)


def _open_inside(run_dir: RunDir, log: str) -> BinaryIO:
    """Open a log that is a regular file in the folder of the logs."""
    try:
        if IS_WINDOWS:  # where links are an administrator's
            return (run_dir.logs / f"{log}.log").open("rb")
        with closing_handle(os.open(run_dir.logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)) as folder:
            return os.fdopen(os.open(f"{log}.log", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder), "rb")
    except OSError:
        raise UnknownRunError(f"run {run_dir.run_id} has no log `{log}` here") from None
