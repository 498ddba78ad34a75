"""Start a run and watch it to its end; Ctrl-C stops it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Self

import typer
from rich.console import Console

from trainworks.api.observing.logs import RunLogs
from trainworks.api.run_handle import JobState, Run, resume_command
from trainworks.api.runs import Launch
from trainworks.cli.runs.record import format_line, print_brief
from trainworks.report.live import view_of
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import say
from trainworks.system import REQUESTS_TO_END


def watch_to_the_end(launch: Launch, talk: Console) -> None:
    """Start a run, show it until it has ended, print a short report, and end the program as the run did.

    Ctrl-C asks the run to stop; a second one ends it at once. One that comes while the run is being started is kept
    until there is something to stop.

    Raises:
        RunFailedError: the run failed.
        typer.Exit: the run was stopped, with 130.
    """
    state = _print_remote_output(launch) if launch.run.has_remote_output else _watch(launch, talk)
    # stdout is a command's own output
    print_brief(launch.run, SafeConsole() if launch.run.resolved.is_workload else talk)
    launch.run.check()
    if state is JobState.STOPPED:
        _exit_stopped(launch.run, talk)


def _watch(launch: Launch, console: Console) -> JobState:
    run, resolved = launch.run, launch.run.resolved
    has_steps = resolved.plan is not None and resolved.is_workload
    output = None if has_steps else RunLogs(run.run_dir)
    state = JobState.CREATED
    with StopOnInterrupt(launch.stop, console) as interrupts, view_of(resolved, console) as view:
        launch.start()
        for progress in run.poll(since=launch.since):
            interrupts.pass_on()
            state = progress.state
            if output is not None:
                for line in output.new_lines(everything=state.is_final):
                    typer.echo(format_line(line))
            view.show(progress, time.time())
    return state


def _print_remote_output(launch: Launch) -> JobState:
    """Print what remote nodes print, until the job has ended."""
    launch.start()
    for is_stopping in (False, True):
        try:
            for line in launch.run.output(follow=True):
                typer.echo(line)
            break
        except KeyboardInterrupt:
            if is_stopping or launch.run.job is None:
                raise
            say("stopping; Ctrl-C again leaves the job alone", err=True)
            launch.stop("SIGINT")
    return launch.run.wait()


def _exit_stopped(run: Run, talk: Console) -> None:
    """Say how to resume, and end the program as Ctrl-C does."""
    if loss := run.status.message:
        talk.print(f"warning: {loss}", style="yellow", highlight=False)
    talk.print(f"stopped; resume with: {resume_command(run.run_dir)}", highlight=False)
    raise typer.Exit(130)


class StopOnInterrupt:
    """While active, Ctrl-C, a closed terminal and SIGTERM stop the run instead of this process."""

    _SIGNALS = (signal.SIGINT, *REQUESTS_TO_END)

    def __init__(self, stop: Callable[[str], bool], console: Console) -> None:
        self._stop = stop
        self._console = console
        self._signals = 0
        self._reasons: list[str] = []

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on(self) -> None:
        """Pass the signals received so far on to the run."""
        while self._reasons and self._stop(self._reasons[0]):
            del self._reasons[0]

    def _note(self, number: int, frame: object) -> None:
        self._reasons.append(signal.Signals(number).name)
        self._signals += 1
        reply = "stopping; Ctrl-C again ends it at once" if self._signals == 1 else "ending at once"
        self._console.print(reply, style="yellow")
