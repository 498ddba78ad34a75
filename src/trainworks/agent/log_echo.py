"""Copies the logs of a node to standard output, where `kubectl logs` and the backend can read them."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path
from typing import Self, final

from trainworks.record.run_dir import RunDir

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@final
class LogEcho:
    """Follow the logs of one node from their current ends: `[3] line of rank 3`, `[node 1] line of its agent`.

    In a job with roles a rank has its role in front: `[rollout-0]`.
    """

    def __init__(self, run_dir: RunDir, node: int) -> None:
        processes = run_dir.read_resolved().processes
        names = {rank: processes.rank_name(rank) or str(rank) for rank in processes.group_of(node).ranks_of(node)}
        logs = {f"[node {node}] ": run_dir.node_log(node)}
        logs |= {f"[{name}] ": run_dir.rank_log(rank) for rank, name in names.items()}
        self._tails = [_Tail(prefix, log) for prefix, log in logs.items()]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="echo", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._done.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._done.wait(_POLL_S):
            self._print(last=False)
        self._print(last=True)

    def _print(self, *, last: bool) -> None:
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
        """New complete lines with their prefix; the `last` call also returns a line without an end."""
        with contextlib.suppress(FileNotFoundError), self._log.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_CHUNK_BYTES)
            cut = data.rfind(b"\n") + 1
            complete = data if last or (not cut and len(data) == _CHUNK_BYTES) else data[:cut]
            self._offset += len(complete)
            text = complete.decode(errors="replace").removesuffix("\n")  # a progress bar's carriage returns end no line
            return "".join(f"{self._prefix}{line}\n" for line in text.split("\n")) if complete else ""
        return ""
