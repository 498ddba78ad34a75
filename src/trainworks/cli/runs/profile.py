"""`trainworks profile`."""

from __future__ import annotations

from typing import Annotated

import typer

from trainworks.cli.options import OptionalRun, RunsOption, find
from trainworks.config.quantities import StepWindow
from trainworks.errors import QuantityError, RunFailedError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.record.events import Event
from trainworks.record.metrics import read_metrics
from trainworks.record.profile import ProfileRequest, read_summaries, trace_file, write_request
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.report.rendering.console import SafeConsole
from trainworks.report.rendering.printable import say
from trainworks.report.runs.run_progress import RunFollower, current_state
from trainworks.units import format_duration

__all__ = ["command"]

_LOOK_S = 0.1


def command(
    run: OptionalRun = None,
    steps: Annotated[str, typer.Option("--steps", metavar="FIRST:LAST", help="Steps to record, with both ends.")] = "",
    ranks: Annotated[str, typer.Option("--ranks", metavar="RANK,...", help="Ranks to record.")] = "0",
    background: Annotated[bool, typer.Option("--background", "-b", help="Do not wait for the traces.")] = False,
    runs: RunsOption = None,
) -> None:
    """Works while the run is starting or running. The traces go to `profiles/`, a summary to the report."""
    run_dir = find(run, runs)
    request = _checked(run_dir, steps, ranks)
    follower = RunFollower(run_dir)
    follower.look()  # what it says from here on is new
    write_request(run_dir, request)
    if background:
        return
    talk = SafeConsole(stderr=True)
    with talk.status(f"waiting for step {request.last_step:,} of {run_dir.run_id}"):
        event = _wait(run_dir, follower, request)
    _say(run_dir, event)


def _checked(run_dir: RunDir, steps: str, ranks: str) -> ProfileRequest:
    """The request, held against what the run is and where it stands."""
    state = current_state(run_dir.read_status())
    resolved = run_dir.read_resolved()
    if resolved.plan is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload can be profiled")
    if state.is_final:
        raise UsageError(
            f"run {run_dir.run_id} is {state}", hint="ask while it goes on, or put `profile:` in the run file"
        )
    if run_dir.profile_request_file.exists():
        raise UsageError(
            f"run {run_dir.run_id} has other steps to profile",
            hint=f"wait for them, or delete {run_dir.profile_request_file} before they begin",
        )
    window = _window(run_dir, steps, resolved.plan)
    chosen = _ranks(ranks, resolved.processes.world_size)
    return ProfileRequest(first_step=window.first, last_step=window.last, ranks=chosen)


def _window(run_dir: RunDir, steps: str, plan: Plan) -> StepWindow:
    """The steps, if the ranks still can: they look for requests when an interval of `log_every_steps` ends."""
    if not steps:
        raise QuantityError("no steps are named", hint="write them like `--steps 20:25`")
    window = StepWindow.parse(steps)
    if window.last > plan.num_steps:
        raise UsageError(f"step {window.last:,} is beyond the last step, {plan.num_steps:,}")
    rows = read_metrics(run_dir.metrics_file)
    done = rows[-1]["step"] if rows else 0
    seen_at = (done // plan.log_every_steps + 1) * plan.log_every_steps if rows else 0
    if window.first <= seen_at:
        raise UsageError(
            f"step {window.first:,} is past, or too near: step {done:,} is done, "
            f"and the ranks look for requests every {plan.log_every_steps:,} steps",
            hint=f"take steps from {seen_at + plan.log_every_steps:,} on"
            if seen_at + plan.log_every_steps <= plan.num_steps
            else "the run ends before; put `profile:` in the run file next time",
        )
    return window


def _ranks(text: str, world_size: int) -> tuple[int, ...]:
    if not all(part.strip().isdecimal() for part in text.split(",")):
        raise UsageError(f"`{text}` names no ranks", hint="write them like `--ranks 0,1`")
    ranks = sorted({int(part) for part in text.split(",")})
    if ranks[-1] >= world_size:
        raise UsageError(f"there is no rank {ranks[-1]}: the run has ranks 0 to {world_size - 1}")
    return tuple(ranks)


def _wait(run_dir: RunDir, follower: RunFollower, request: ProfileRequest) -> Event:
    """The event that answers the request.

    Raises:
        UsageError: the ranks refused it.
        RunFailedError: the run ended first.
    """
    while True:
        snapshot = follower.look()
        for event in snapshot.new_events:
            if event["kind"] == "profile" and event["first_step"] == request.first_step:
                return event
            if event["kind"] == "profile_refused":
                raise UsageError(str(event["message"]))
        if snapshot.state.is_final:
            run_dir.profile_request_file.unlink(missing_ok=True)
            raise RunFailedError(f"run {run_dir.run_id} is {snapshot.state}; the steps were not recorded")
        SystemClock().sleep(_LOOK_S)


def _say(run_dir: RunDir, event: Event) -> None:
    folder = run_dir.path / event["folder"]
    for summary in read_summaries(folder):
        shares = ", ".join(f"{name} {share:.0%}" for name, share in summary.shares().items())
        say(f"rank {summary.rank}: {format_duration(summary.window_s)} = {shares}")
        for operator in summary.operators[:5]:
            say(f"  {format_duration(operator.self_s):>8}  {operator.calls:>6,} x {operator.name}")
        say(f"  {trace_file(folder, summary.rank)}")
    say("open a trace at https://ui.perfetto.dev, or in chrome://tracing", err=True)
