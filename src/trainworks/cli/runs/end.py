"""`trainworks stop`, `wait` and `rm`: end runs, and delete them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import trainworks
from trainworks.cli.arguments import Runs
from trainworks.cli.options import RunsOption, find_each, option_errors, runs_folder
from trainworks.cli.runs.record import say_pending_copies
from trainworks.errors import QuantityError, UsageError
from trainworks.report.rendering.printable import say
from trainworks.system import user_id
from trainworks.units import format_quantity, parse_duration


def stop_command(
    names: Runs = None,
    now: Annotated[bool, typer.Option("--now", help="End it at once, without a checkpoint.")] = False,
    runs: RunsOption = None,
) -> None:
    """All runs are asked at once. The command returns when they have ended."""
    found = find_each(names, runs, live=True)
    for run in found:
        run.stop(at_once=now)
    for run in found:
        job = run.job
        if job is not None and not job.state.is_final and job.row.uid != user_id():
            say(f"asked {run.id} to stop; the queue of its owner ends it")
        else:
            say(f"{run.id} {run.wait()}")


def wait_command(names: Runs = None, runs: RunsOption = None) -> None:
    """Prints each run as it ends, in the order of the arguments. The exit code is that of the first that failed.

    An interrupt ends the waiting, not the runs.
    """
    found = find_each(names, runs)
    for run in found:
        say(f"{run.id} {run.wait()}")
        say_pending_copies(run)
    for run in found:
        run.check()


def rm_command(
    names: Runs = None,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="DURATION", help="Runs that ended before, as `30 days`.")
    ] = None,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="Delete the checkpoints alone.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    runs: RunsOption = None,
) -> None:
    """Deletes the files of runs that have ended. Their jobs stay in `ps --all` and in the costs."""
    from trainworks.api.retention import check_removable, ended_before
    from trainworks.files import bytes_in

    if not names and older_than is None:
        raise UsageError("no run is named", hint="trainworks rm RUN, or trainworks rm --older-than '30 days'")
    found = find_each(names, runs) if names else []
    if older_than is not None:
        named = {run.path for run in found}
        found += [run for run in ended_before(runs_folder(runs), age_s=_seconds(older_than)) if run.path not in named]
    for run in found:
        check_removable(run)
        size = format_quantity(float(bytes_in(run.run_dir.checkpoints if checkpoints else run.path)), "bytes")
        say(f"{run.id} {run.state}: {size}{' of checkpoints' if checkpoints else ''}")
    if dry_run or not found:
        return
    if not yes:
        if not sys.stdin.isatty():
            raise UsageError("the deletion needs a terminal for its confirmation", hint="add `--yes`")
        typer.confirm(f"delete {'the checkpoints of ' if checkpoints else ''}{len(found)} runs?", abort=True)
    with option_errors():
        freed = sum(trainworks.remove(run, checkpoints_only=checkpoints) for run in found)
    say(f"{format_quantity(float(freed), 'bytes')} freed")


def _seconds(older_than: str) -> float:
    try:
        return parse_duration(older_than)
    except QuantityError as error:
        raise UsageError(error.message, place="--older-than", hint=error.hint) from None
