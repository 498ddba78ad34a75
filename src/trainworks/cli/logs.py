"""`trainworks logs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.cli.tail import RankLogs, Tail
from trainworks.errors import UsageError
from trainworks.host.clock import SystemClock
from trainworks.observe.progress import current_state
from trainworks.record.run_dir import RunDir

__all__ = ["command"]

_LOOK_S = 0.2


def command(
    run: OptionalRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="One rank only.")] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="The agent of one node.")] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="The supervisor.")] = False,
    runs: RunsOption = None,
) -> None:
    """All ranks when nothing is chosen, each line with its rank."""
    run_dir = find(run, runs)
    chosen = _chosen(run_dir, rank, node, supervisor)
    if chosen and not follow and not any(path.exists() for path in chosen):
        raise UsageError(f"`{chosen[0]}` does not exist", hint="trainworks logs RUN --supervisor")
    tails: list[Tail] | list[RankLogs] = [Tail(path) for path in chosen] or [RankLogs(run_dir)]
    while True:
        ended = current_state(run_dir.read_status()).is_final
        for tail in tails:
            tail.print_new(everything=ended or not follow)
        if ended or not follow:
            return
        SystemClock().sleep(_LOOK_S)


def _chosen(run_dir: RunDir, rank: int | None, node: int | None, supervisor: bool) -> list[Path]:
    chosen = [run_dir.rank_log(rank)] if rank is not None else []
    chosen += [run_dir.node_log(node)] if node is not None else []
    return chosen + ([run_dir.supervisor_log] if supervisor else [])
