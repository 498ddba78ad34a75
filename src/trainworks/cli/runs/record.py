"""`trainworks logs` and `env`: what a run has left."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

import trainworks
from trainworks.cli.arguments import OptionalRun
from trainworks.cli.options import AsJson, RunsOption, find, option_errors
from trainworks.report.rendering.printable import say
from trainworks.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.observing.logs import LogLine
    from trainworks.api.run_handle import Run


def logs_command(
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
        fields = {"at": line.at or None, "source": line.source, "level": line.level, "text": line.text}
        typer.echo(json.dumps(fields) if as_json else format_line(line))


def format_line(line: LogLine) -> str:
    """A line with its source where several logs are printed."""
    return line.text if line.is_alone or not line.source else f"[{line.source}] {line.text}"


def print_brief(run: Run, console: Console) -> None:
    """Print how a run ended in at most ten lines, and write its page beside the record."""
    from trainworks.api.run_handle import resume_command
    from trainworks.report.rendering.text import print_document
    from trainworks.report.run_report import brief

    report = run.report()
    print_document(brief(report, str(run.path), resume_command(run.run_dir, "report")), console)
    report.write_html(run.run_dir.report_file)
    say_pending_copies(run)


def say_pending_copies(run: Run) -> None:
    """Say which places of `checkpoint.copies` are still to get the newest checkpoint."""
    for place in run.pending_copies():
        say(f"{run.id}: the newest checkpoint is still to be copied to {place}", err=True)


def env_command(
    run: OptionalRun = None,
    runs: RunsOption = None,
    prune: Annotated[
        str | None,
        typer.Option("--prune", metavar="TIME", help="Delete environments of this machine, not used for `30d`."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Prints a lock file that installs the same packages again: `trainworks env RUN > requirements.lock`.

    Its first lines are comments with Python, CUDA and driver, and with nodes that have other packages.
    """
    if prune is not None:
        _prune(prune, as_json=as_json)
        return
    found = trainworks.env(find(run, runs))
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2))
    else:
        typer.echo(found.lock, nl=False)


def _prune(unused_for: str, *, as_json: bool) -> None:
    with option_errors("--prune"):
        found = trainworks.prune_environments(unused_for)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    for one in found:
        typer.echo(f"{'in use ' if one.is_in_use else 'deleted'} {one.key} {format_bytes(one.num_bytes)}")
    typer.echo(f"{format_bytes(sum(one.num_bytes for one in found if not one.is_in_use))} freed")
