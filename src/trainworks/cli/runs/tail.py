"""Print what log files gain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from trainworks.api.run_handle import RunDir


class RankLogs:
    """The logs of all ranks, also of those that start later; with several, each line says which.

    Args:
        run_dir: of the run.
        rank: one rank only.
        attempt: only what this start of each rank has said, counted from 1.
    """

    def __init__(self, run_dir: RunDir, rank: int | None = None, attempt: int | None = None) -> None:
        self._run_dir = run_dir
        self._rank = rank
        self._attempt = attempt
        self._tails: dict[int, Tail] = {}

    def _ranks(self) -> list[int]:
        ranks = sorted(int(path.stem.partition("-")[2]) for path in self._run_dir.logs.glob("rank-*.log"))
        return [rank for rank in ranks if self._rank in (None, rank)]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to print from, so far."""
        return not any(self._part(rank) for rank in self._ranks())

    def _part(self, rank: int) -> tuple[int, int | None] | None:
        return (0, None) if self._attempt is None else self._run_dir.rank_log_part(rank, self._attempt)

    def print_new(self, *, everything: bool) -> None:
        """Print what was added since the last call; with `everything` also a line without its end."""
        ranks = self._ranks()
        for rank in ranks:
            path = self._run_dir.rank_log(rank)
            prefix = f"[{path.stem}] " if len(ranks) > 1 else ""
            if (part := self._part(rank)) is not None:
                self._tails.setdefault(rank, Tail(path, part[0])).print_new(prefix, everything=everything, end=part[1])


class Tail:
    """Prints what a file has gained; a line without its end waits for it, unless everything is wanted.

    Args:
        path: of the file.
        offset: where to begin.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path = path
        self._offset = offset

    def print_new(self, prefix: str = "", *, everything: bool, end: int | None = None) -> None:
        """Print what was added since the last call, each line after `prefix`, and nothing from `end` on."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read() if end is None else file.read(max(0, end - self._offset))
        if not everything and end is None:
            data = data[: data.rfind(b"\n") + 1]
        self._offset += len(data)
        for line in data.decode("utf-8", errors="replace").splitlines():
            typer.echo(prefix + line)
