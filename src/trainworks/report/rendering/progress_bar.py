"""Progress on stderr, on a terminal, from the moment on that something takes long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_QUIET_S = 1.5


@contextmanager
def waiting(text: str) -> Iterator[Callable[..., None]]:
    """Yields a function to call with the share that is done, and if it changes what is being done."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    from trainworks.report.rendering.console import SafeConsole  # noqa: PLC0415

    started = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = SafeConsole(stderr=True)
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(text, total=1.0)

    def report(share: float, doing: str = text) -> None:
        if not bar.live.is_started and time.monotonic() - started > _QUIET_S:
            bar.start()
        bar.update(task, completed=share, description=doing)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def working(text: str, *, after_s: float = _QUIET_S) -> Iterator[None]:
    """A line with a spinner once the block has taken `after_s`, for work whose share is not known."""
    from trainworks.report.rendering.console import SafeConsole  # noqa: PLC0415

    console = SafeConsole(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(text)
    start = threading.Timer(after_s, status.start)
    start.start()
    try:
        yield
    finally:
        start.cancel()
        start.join()
        status.stop()


@contextmanager
def byte_bar(text: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with the bytes that are done, and the bytes in all."""
    from rich import progress  # noqa: PLC0415

    from trainworks.report.rendering.console import SafeConsole  # noqa: PLC0415

    columns = (
        progress.TextColumn(text),
        progress.BarColumn(bar_width=None),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    with progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
