"""The end of a job's output, kept with its run: an engine may delete nodes together with what they printed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from trainworks.backends.backend import Backend
from trainworks.errors import TrainworksError
from trainworks.files import write_atomic
from trainworks.record.run_dir import RunDir

_FILE = "output-of-nodes.log"


def keep_output(backend: Backend, handle: str, run_dir: RunDir) -> None:
    """Write the last lines of a job that has ended into its run directory; nothing if its backend does not answer."""
    with suppress(TrainworksError, OSError):
        lines = list(backend.last_output(handle))
        if lines and run_dir.path.exists():
            run_dir.logs.mkdir(exist_ok=True)
            write_atomic(run_dir.logs / _FILE, "".join(f"{line}\n" for line in lines))


def with_kept_output(lines: Iterable[str], run_dir: RunDir) -> Iterator[str]:
    """Lines of an engine; those that were kept if it has none any more."""
    found = False
    for line in lines:
        found = True
        yield line
    file = run_dir.logs / _FILE
    if not found and file.exists():
        yield from file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
