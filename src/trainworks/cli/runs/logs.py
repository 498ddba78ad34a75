"""`trainworks logs`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

import trainworks
from trainworks.cli.options import AsJson, OptionalRun, RunsOption, find, option_errors

if TYPE_CHECKING:
    from trainworks.api.observing.logs import LogLine


def command(
    run: OptionalRun = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Log of this rank only.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Output of this attempt only; the first is 1.")
    ] = None,
    node: Annotated[int | None, typer.Option("--node", min=0, help="Log of this node's agent.")] = None,
    supervisor: Annotated[bool, typer.Option("--supervisor", help="Log of the supervisor.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Logs of ranks, node agents and supervisor.")] = False,
    grep: Annotated[str | None, typer.Option("--grep", metavar="REGEX", help="Matching lines only.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Lines since `10m` ago, or since a time.")
    ] = None,
    level: Annotated[str | None, typer.Option("--level", help="Lines of this level or above: `warning`.")] = None,
    runs: RunsOption = None,
    as_json: AsJson = False,
) -> None:
    """Prints all ranks by default, each line with its rank, in the order of time.

    A line has the time that is written at its beginning, else that of the line before it or of the start of its rank.
    With `--json`, each line is an object: `at` (seconds since the epoch), `source`, `level` and `text`.
    """
    with option_errors():
        lines = trainworks.logs(
            find(run, runs),
            follow=follow,
            rank=rank,
            attempt=attempt,
            node=node,
            supervisor=supervisor,
            everything=everything,
            grep=grep,
            since=since,
            level=level,
        )
    for line in lines:
        typer.echo(_as_json(line) if as_json else as_text(line))


def as_text(line: LogLine) -> str:
    """A line with its source where several logs are printed."""
    return line.text if line.is_alone or not line.source else f"[{line.source}] {line.text}"


def _as_json(line: LogLine) -> str:
    return json.dumps({"at": line.at or None, "source": line.source, "level": line.level, "text": line.text})
