"""`trainworks logs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.cli.runs.tail import RankLogs, Tail
from trainworks.errors import UsageError

if TYPE_CHECKING:
    from trainworks.api.run_handle import RunDir


_POLL_S = 0.2


def command(
    run: OptionalRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Log of this rank only.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Output of this attempt only; the first is 1.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="Log of this node's agent.")] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="Log of the supervisor.")] = False,
    runs: RunsOption = None,
) -> None:
    """Prints all ranks by default, each line with its rank."""
    found = find(run, runs)
    run_dir = found.run_dir
    if found.has_remote_output:
        if supervisor or rank is not None or attempt is not None:
            raise UsageError("the nodes of this run write no files here", hint="choose a node with `--node`")
        for line in found.output(node=node, follow=follow):
            typer.echo(line)
        return
    tails = _tails(run_dir, rank, attempt, _chosen(run_dir, node, supervisor), follow)
    for progress in found.follow(poll_s=_POLL_S):
        for tail in tails:
            tail.print_new(everything=progress.state.is_final or not follow)
        if not follow:
            return


def _tails(
    run_dir: RunDir, rank: int | None, attempt: int | None, chosen: list[Path], follow: bool
) -> list[Tail] | list[RankLogs]:
    """What is to be printed; with `--follow`, waits for a log that does not exist yet."""
    if chosen and not follow and not any(path.exists() for path in chosen):
        raise UsageError(f"`{chosen[0]}` does not exist", hint="trainworks logs RUN --supervisor")
    ranks = RankLogs(run_dir, rank, attempt)
    if not chosen and not follow and ranks.is_empty and (rank is not None or attempt is not None):
        which = f"rank {rank}" if rank is not None else "any rank"
        what = "no log" if attempt is None else f"no start number {attempt}"
        raise UsageError(f"there is {what} of {which} of {run_dir.run_id}", hint="trainworks logs RUN --supervisor")
    return [Tail(path) for path in chosen] or [ranks]


def _chosen(run_dir: RunDir, node: int | None, supervisor: bool) -> list[Path]:
    chosen = [run_dir.node_log(node)] if node is not None else []
    return chosen + ([run_dir.supervisor_log] if supervisor else [])
