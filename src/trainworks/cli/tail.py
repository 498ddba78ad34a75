"""Print what log files gain."""

from __future__ import annotations

from pathlib import Path

import typer

from trainworks.record.run_dir import RunDir

__all__ = ["RankLogs", "Tail"]


class RankLogs:
    """The logs of all ranks, also of those that start later; with several, each line says which."""

    def __init__(self, run_dir: RunDir) -> None:
        self._run_dir = run_dir
        self._tails: dict[Path, Tail] = {}

    def _paths(self) -> list[Path]:
        return sorted(self._run_dir.logs.glob("rank-*.log"), key=lambda path: int(path.stem.partition("-")[2]))

    def print_new(self, *, everything: bool) -> None:
        """Print what was added since the last call; with `everything` also a line without its end."""
        paths = self._paths()
        for path in paths:
            prefix = f"[{path.stem}] " if len(paths) > 1 else ""
            self._tails.setdefault(path, Tail(path)).print_new(prefix, everything=everything)


class Tail:
    """Prints what a file has gained; a line without its end waits for it, unless everything is wanted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def print_new(self, prefix: str = "", *, everything: bool) -> None:
        """Print what was added since the last call, each line after `prefix`."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        if not everything:
            data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        for line in data.decode("utf-8", errors="replace").splitlines():
            typer.echo(prefix + line)
