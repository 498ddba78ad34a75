"""Profile steps of a live run with torch.profiler."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trainworks.agent.current_state import current_state
from trainworks.config.quantities import StepWindow
from trainworks.errors import QuantityError, RunFailedError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.record.metric_columns import read_columns
from trainworks.record.profile import ProfileRequest, write_request
from trainworks.record.resolved import Plan
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.run_progress import RunFollower

_POLL_S = 0.1


def profile(run_dir: RunDir, request: ProfileRequest) -> Callable[[], Path]:
    """Ask the ranks of a run to record steps; the result is a function that waits for the folder of their traces."""
    follower = RunFollower(run_dir)
    follower.look()  # events from here on are new
    write_request(run_dir, request)
    return lambda: _answer(run_dir, follower, request)


def profile_request(run_dir: RunDir, steps: str, ranks: str = "0") -> ProfileRequest:
    """Check a request to profile steps of a live run.

    Args:
        run_dir: directory of the run.
        steps: first and last step, such as `20:25`.
        ranks: ranks to record, such as `0,1`.

    Raises:
        UsageError: the run cannot record these steps on these ranks.
    """
    state = current_state(run_dir.read_status())
    resolved = run_dir.read_resolved()
    if resolved.plan is None:
        raise UsageError(f"run {run_dir.run_id} runs a command; only a workload can be profiled")
    if state.is_final:
        raise UsageError(
            f"run {run_dir.run_id} is {state}", hint="profile a running one, or put `profile:` in the run file"
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
    recorded = read_columns(run_dir.metrics_file).steps()["step"]
    done = int(recorded[-1]) if len(recorded) else 0
    seen_at = (done // plan.log_every_steps + 1) * plan.log_every_steps if done else 0
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
        raise UsageError(f"rank {ranks[-1]} does not exist: the run has ranks 0 to {world_size - 1}")
    return tuple(ranks)


def _answer(run_dir: RunDir, follower: RunFollower, request: ProfileRequest) -> Path:
    """Wait for the folder of the traces.

    Raises:
        UsageError: the ranks refused it.
        RunFailedError: the run ended first.
    """
    while True:
        snapshot = follower.look()
        for event in snapshot.new_events:
            if event["kind"] == "profile" and event["first_step"] == request.first_step:
                return run_dir.path / str(event["folder"])
            if event["kind"] == "profile_refused":
                raise UsageError(str(event["message"]))
        if snapshot.state.is_final:
            run_dir.profile_request_file.unlink(missing_ok=True)
            raise RunFailedError(f"run {run_dir.run_id} is {snapshot.state}; the steps were not recorded")
        SystemClock().sleep(_POLL_S)
