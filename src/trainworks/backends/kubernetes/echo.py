"""What a pod's ranks write, on its own standard output too: that is what `kubectl logs` and the backend can see."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self, final

from trainworks.record.run_dir import RunDir

__all__ = ["Echo"]

_LOOK_S = 0.1
_CHUNK_BYTES = 1 << 20


@final
class Echo:
    """Follows the logs of one node from where they end now: `[3] a line of rank 3`, `[node 1] a line of its agent`.

    Args:
        run_dir: of the run.
        node: index of the node.
    """

    def __init__(self, run_dir: RunDir, node: int) -> None:
        processes = run_dir.read_resolved().processes
        first = node * processes.processes_per_node
        ranks = range(first, first + processes.starts_on(node))
        logs = {f"[node {node}] ": run_dir.node_log(node)} | {f"[{rank}] ": run_dir.rank_log(rank) for rank in ranks}
        self._tails = [_Tail(prefix, log) for prefix, log in logs.items()]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="echo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._done.wait(_LOOK_S):
            self._say(last=False)
        self._say(last=True)

    def _say(self, *, last: bool) -> None:
        for tail in self._tails:
            while text := tail.read(last=last):
                sys.stdout.write(text)
        sys.stdout.flush()


@final
class _Tail:
    def __init__(self, prefix: str, log: Path) -> None:
        self._prefix = prefix
        self._log = log
        self._offset = 0
        with contextlib.suppress(FileNotFoundError):
            self._offset = log.stat().st_size

    def read(self, *, last: bool) -> str:
        """Whole lines that are new, with their prefix; at the `last` look also a line without an end."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_CHUNK_BYTES)
            cut = data.rfind(b"\n") + 1
            whole = data if last or (not cut and len(data) == _CHUNK_BYTES) else data[:cut]
            self._offset += len(whole)
            return "".join(f"{self._prefix}{line}\n" for line in _lines(whole))
        return ""


def _lines(data: bytes) -> list[str]:
    """By newlines alone: a progress bar's carriage returns are no ends."""
    text = data.decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []
