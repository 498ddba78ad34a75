"""What `run` and `submit` have in common: from their arguments to a submitted run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from trainworks.api.resolve import resolve
from trainworks.backends.backend import Backend
from trainworks.backends.local.attached import AttachedBackend
from trainworks.backends.registry import backend_of_run
from trainworks.cli.options import runs_folder
from trainworks.cli.plan_view import print_plan
from trainworks.cli.wish import wish
from trainworks.config.load import Source, load_run_file, name_from
from trainworks.config.run_file import RunFile, RunName
from trainworks.config.sbatch import BatchSource, is_batch_script, load_batch_script
from trainworks.errors import TrainworksError, UsageError
from trainworks.files import write_atomic
from trainworks.jobs.job_spec import JobSpec, spec_of_run
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir, create_run_dir
from trainworks.report.printable import say

__all__ = [
    "DryRun",
    "Name",
    "Nodes",
    "Prepared",
    "ProcessesPerNode",
    "Recalibrate",
    "Target",
    "Wanted",
    "discarded_if_refused",
    "prepare",
    "spec",
    "wanted",
]

Target = Annotated[
    list[str], typer.Argument(metavar="RUN_FILE | -- COMMAND...", help="Run file, or a command after `--`.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes, each with its own agent.")]
ProcessesPerNode = Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks per node.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run. [default: from the run file]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, without starting it.")]
Recalibrate = Annotated[bool, typer.Option("--recalibrate", help="Measure this machine again before planning.")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run file, where it was read, and the command if there is one instead of a workload."""

    run_file: RunFile
    source: Source | None
    command: list[str] | None


def wanted(target: list[str], *, nodes: int | None, nproc: int | None, name: str | None) -> Wanted:
    """What the arguments of `run` or `submit` ask for.

    Raises:
        UsageError: neither a run file nor a command.
        RunFileError: a problem in the run file.
    """
    if len(target) == 1 and target[0].endswith((".yaml", ".yml")):
        run_file, source = load_run_file(Path(target[0]))
        return Wanted(_with_options(run_file, nodes, nproc, name), source, None)
    if len(target) == 1 and is_batch_script(Path(target[0])):
        run_file, batch = load_batch_script(Path(target[0]))
        for note in batch.notes:
            say(f"note: {note}", err=True)
        return Wanted(_with_options(run_file, nodes, nproc, name), batch, None)
    if shutil.which(target[0]) is None:
        raise UsageError(
            f"`{target[0]}` is neither a run file (*.yaml), nor a batch script (*.sbatch), nor a program",
            hint=_program_hint(target[0]),
        )
    run_file = RunFile(name=_checked(name or _name_of(target)), run=" ".join(target))
    return Wanted(_with_options(run_file, nodes, nproc, name), None, target)


def _program_hint(name: str) -> str:
    if name.endswith(".py"):
        return f"trainworks run -- python {name}"
    return "trainworks run run.yaml, or: trainworks run --nproc 2 -- python train.py"


def _checked(name: str) -> str:
    try:
        return TypeAdapter(RunName).validate_python(name)
    except ValidationError:
        raise UsageError(f"`{name}` is no name of a run", hint="take letters, digits, `.`, `_` and `-`") from None


def _name_of(command: list[str]) -> str:
    """`train` for `python train.py --lr 1`: the first argument that looks like a script, else the program."""
    script = next((part for part in command if part.endswith((".py", ".sh"))), command[0])
    return name_from(Path(script).stem)


def _with_options(run_file: RunFile, nodes: int | None, nproc: int | None, name: str | None) -> RunFile:
    return run_file.with_ranks(nodes, nproc).model_copy(update={"name": _checked(name)} if name else {})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that is ready to be started."""

    run_dir: RunDir
    resolved: ResolvedRun
    backend: Backend | None
    """Whose queue it goes into; None where it starts at once, here."""


def prepare(
    asked: Wanted,
    *,
    runs: Path | None,
    dry_run: bool,
    recalibrate: bool,
    console: Console,
    queued: bool,
    ask: bool = False,
    times: int = 1,
) -> Prepared | None:
    """Resolve, show the plan and make the run directory, ready to be submitted; None after a dry run, or a no.

    What could never start is refused before there is a run directory.

    Args:
        asked: by the arguments.
        runs: folder of all runs, where one is given.
        dry_run: print what would be started, and start nothing.
        recalibrate: measure this machine again.
        console: for the plan.
        queued: whether a run on this machine goes into its queue; a run elsewhere always does.
        ask: whether a person at a terminal has to say yes.
        times: how many such jobs there will be.
    """
    folder = runs_folder(runs, asked.run_file.checkpoint.to)
    resolved = resolve(
        asked.run_file,
        asked.source,
        run_id=asked.run_file.name,
        runs=folder,
        command=asked.command,
        calibrate_again=recalibrate,
    )
    if resolved.plan is not None:
        print_plan(resolved, console)
    backend = None
    if queued or resolved.run_file.cluster.engine != "local":
        backend = backend_of_run(resolved)
        backend.check(spec(resolved))
    if dry_run:
        typer.echo(_rendered(resolved, backend, RunDir(folder / f"{resolved.run_id}-N")), nl=False)
        return None
    if backend is None:
        _check_room(resolved, console)
    else:
        backend.probe(spec(resolved))
        if ask and not _agreed(backend, spec(resolved), times, console):
            return None
    run_dir = create_run_dir(folder, asked.run_file.name)
    resolved = resolved.model_copy(update={"run_id": run_dir.run_id})
    try:
        _write_inputs(run_dir, resolved, asked.source)
    except BaseException:
        shutil.rmtree(run_dir.path, ignore_errors=True)
        raise
    return Prepared(run_dir, resolved, backend)


def _check_room(resolved: ResolvedRun, console: Console) -> None:
    backend = AttachedBackend(resolved)
    backend.probe(spec(resolved))
    if note := backend.sharing_note():
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)


@contextmanager
def discarded_if_refused(run_dir: RunDir) -> Iterator[None]:
    """Delete a new run directory if its submission fails inside the block."""
    try:
        yield
    except (TrainworksError, OSError):
        shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


def _agreed(backend: Backend, spec: JobSpec, times: int, console: Console) -> bool:
    if not _is_at_a_terminal(console):
        return True
    each = f"{times} jobs, each asks" if times > 1 else "asks"
    console.print(f"{each} {backend.name} for {wish(spec)}", highlight=False)
    return typer.confirm("submit?", default=True, err=True)


def _is_at_a_terminal(console: Console) -> bool:
    return sys.stdin.isatty() and console.is_terminal


def _rendered(resolved: ResolvedRun, backend: Backend | None, run_dir: RunDir) -> str:
    if backend is None or backend.name == "local":
        return AttachedBackend(resolved).render(spec(resolved), run_dir).text
    return backend.render(spec(resolved), run_dir).text


def spec(resolved: ResolvedRun) -> JobSpec:
    """What a queue is asked for a resolved run."""
    return spec_of_run(resolved)


def _write_inputs(run_dir: RunDir, resolved: ResolvedRun, source: Source | None) -> None:
    if source is not None and not isinstance(source, BatchSource):
        write_atomic(run_dir.run_file, source.text)
    run_dir.write_resolved(resolved)
