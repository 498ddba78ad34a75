"""Options that `run`, `submit` and `plan` share, and the steps from their arguments to a run that can start."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainworks.cli.arguments import Settings
from trainworks.cli.options import Env, RunsOption, announce, read_settings, runs_folder, warn
from trainworks.cli.output import show_findings
from trainworks.report.rendering.printable import say

if TYPE_CHECKING:
    from rich.console import Console

    from trainworks.api.launching.prepared_run import Planning, PreparedRun
    from trainworks.api.run_request import AnyRequest, RunRequest
    from trainworks.api.runs import Launch


Target = Annotated[
    list[str], typer.Argument(metavar="RUN_FILE | -- COMMAND...", help="Run file, or a command after `--`.")
]
Nodes = Annotated[int | None, typer.Option("--nodes", min=1, help="Number of nodes, each with its own agent.")]
ProcessesPerNode = Annotated[int | None, typer.Option("--nproc", min=1, help="Ranks per node.")]
Restarts = Annotated[int | None, typer.Option("--restarts", min=0, help="Most restarts after failures.")]
Name = Annotated[str | None, typer.Option("--name", help="Name of the run [default: the run file's].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be started, without starting it.")]
Recalibrate = Annotated[bool, typer.Option("--recalibrate", help="Measure this machine again before planning.")]
Tune = Annotated[
    int, typer.Option("--tune", min=0, metavar="N", help="Train the best N layouts for a few steps; run the fastest.")
]
Review = Annotated[bool, typer.Option("--review/--no-review", help="Review the run file, and the scripts it names.")]
WithoutLearning = Annotated[
    bool, typer.Option("--without-learning", help="Plan without what finished runs and calibrations taught.")
]


@dataclass(frozen=True)
class StartOptions:
    """What `run` and `submit` take beside their target."""

    nodes: Nodes = None
    nproc: ProcessesPerNode = None
    restarts: Restarts = None
    name: Name = None
    settings: Settings = None
    env: Env = None
    runs: RunsOption = None
    dry_run: DryRun = False
    review: Review = True
    recalibrate: Recalibrate = False
    without_learning: WithoutLearning = False
    tune: Tune = 0

    def planning(self) -> Planning:
        """How the plan of a run comes about."""
        from trainworks.api.launching.prepared_run import Planning

        return Planning(again=self.recalibrate, learning=not self.without_learning, tune=self.tune, announce=announce)


def takes_start_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each field of `StartOptions`, in the place of its parameter `options`."""
    fields = inspect.signature(StartOptions, eval_str=True).parameters
    signature = inspect.signature(command, eval_str=True)
    flat = [
        each for name, own in signature.parameters.items() for each in (fields.values() if name == "options" else [own])
    ]

    @functools.wraps(command)
    def started(**given: Any) -> None:
        options = StartOptions(**{name: given.pop(name) for name in fields if name in given})
        command(**given, options=options)

    started.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]  # which typer reads
    return started


def wanted(target: list[str], options: StartOptions) -> AnyRequest:
    """Read the run, array or pipeline that the arguments describe, and print remarks on it; see `read_request`."""
    from trainworks.api.run_request import read_request, runs_of

    numbers = {"nodes": options.nodes, "nproc": options.nproc, "restarts": options.restarts}
    settings = read_settings(options.settings)
    request = read_request(target, **numbers, name=options.name, env=options.env or (), settings=settings)
    for note in dict.fromkeys(note for run in runs_of(request) for note in run.notes):
        say(f"note: {note}", err=True)
    return request


def prepare(
    request: RunRequest, options: StartOptions, console: Console, *, queued: bool, ask: bool = False, times: int = 1
) -> Launch | None:
    """Resolve the run, print its plan and make its run directory; None after a dry run or a refusal at the prompt.

    A run that cannot start is refused before it has a run directory. With the option `review` a run that would end
    before its first step is refused, too. `queued`: a run on this machine enters its queue; a run elsewhere always
    does. `ask` for confirmation happens at a terminal alone. `times` is the number of such jobs; 0 for one whose cost
    an earlier one has shown.
    """
    from trainworks.api.launching.prepared_run import prepare as prepare_run
    from trainworks.api.runs import create_launch

    planning = options.planning()
    if options.review:
        show_findings(request.run_file, request.source, console, refuse=True)
    folder = runs_folder(options.runs, request.run_file.checkpoint.to)
    prepared = prepare_run(request, folder=folder, queued=queued, planning=planning)
    if prepared.resolved.plan is not None and prepared.resolved.run_file.cluster.engine == "local":
        from trainworks.report.local_plan import LAYOUTS
        from trainworks.report.rendering.renderer import build_document
        from trainworks.report.rendering.text import print_document

        document = build_document(prepared.resolved)
        print_document(document if options.dry_run or planning.tune else document.without(LAYOUTS), console)
    prepared.check()
    prepared = prepared.with_forecast(ask=not options.dry_run, learning=planning.learning)
    show_forecast(prepared, times, console)
    if options.dry_run:
        typer.echo(prepared.rendered(), nl=False)
        return None
    if note := prepared.probe():
        console.print(f"warning: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if ask and not confirmed(prepared, times, console):
        return None
    return create_launch(prepared, notify=warn)


def show_forecast(prepared: PreparedRun, times: int, console: Console) -> None:
    """Print the plan of a job for another cluster, and the expected cost of so many jobs where there is a price."""
    if prepared.resolved.forecast is not None:
        from trainworks.report.rendering.renderer import build_document
        from trainworks.report.rendering.text import print_document

        print_document(build_document(prepared.resolved.forecast), console)
    if times and (cost := prepared.expected_cost(times if prepared.spec.array else 1)) is not None:
        from trainworks.report.local_plan import cost_text

        console.print(f"expected cost: {cost_text(cost)}", highlight=False, markup=False, soft_wrap=True)


def confirmed(prepared: PreparedRun, times: int, console: Console) -> bool:
    """Whether the user agrees to submit so many of these jobs; True without a terminal, where no question is asked."""
    if not _is_at_a_terminal(console):
        return True
    from trainworks.report.jobs import request_text

    jobs = f"{times} jobs, each requests" if times > 1 else "the job requests"
    console.print(f"{prepared.backend.name}: {jobs} {request_text(prepared.spec)}", highlight=False)
    return typer.confirm("submit?", default=True, err=True)


def _is_at_a_terminal(console: Console) -> bool:
    return sys.stdin.isatty() and console.is_terminal
