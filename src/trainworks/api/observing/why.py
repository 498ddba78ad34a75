"""What the record of a run explains: where its time was lost, and a profile of its steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from trainworks.agent.current_state import current_state
from trainworks.api.run_handle import Run, as_run
from trainworks.config.quantities import StepWindow
from trainworks.errors import QuantityError, RunFailedError, UsageError
from trainworks.host.clock import SystemClock
from trainworks.observe.diagnosis.layout_prices import LayoutPrices
from trainworks.observe.diagnosis.lost_time import WORTH, Diagnosis
from trainworks.observe.diagnosis.run_facts import NcclTransport, RunFacts, read_transport
from trainworks.observe.diagnosis.slow_steps import SLOW_STEP_CAUSES
from trainworks.observe.diagnosis.stops import STOP_CAUSES, first_start
from trainworks.plan.run.layout import choose_layouts
from trainworks.plan.run.pricing import pricing, run_job
from trainworks.plan.run.processes import memory_per_rank
from trainworks.plan.search import limit_bytes
from trainworks.record.history import read_history
from trainworks.record.ledger import build_ledger
from trainworks.record.measured.step_anchor import read_anchor
from trainworks.record.metric_columns import MetricColumns, read_columns
from trainworks.record.profile import ProfileRequest, write_request
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.comparison import compare_anchor
from trainworks.report.runs.run_progress import RunFollower

__all__ = ["Diagnosis", "diagnosis_of", "why"]

_MOST_NCCL_LINES = 20_000
"""Lines of a log in which NCCL is looked for; it prints how it connects the ranks before the first step."""
_MOST_LOGS = 16
"""Logs in which NCCL is looked for, those of the first ranks."""


def why(run: Run | str | None = None, *, folder: Path | str = "runs") -> Diagnosis:
    """Find the causes of lost time in a run, those first whose remedy gains most, each with evidence.

    Args:
        run: a run, or its id or path, or number of its job; the newest run of the folder when None.
        folder: folder of all runs.

    Raises:
        UnknownRunError: no such run.

    >>> import tempfile, trainworks
    >>> ended = trainworks.run(["true"], folder=tempfile.mkdtemp())
    >>> why(str(ended.path)).num_steps
    0
    """
    return diagnosis_of(as_run(run, folder).with_record())


def diagnosis_of(found: Run, metrics: MetricColumns | None = None) -> Diagnosis:
    """The diagnosis of a run, which may still be going."""
    resolved, run_dir, state = found.resolved, found.run_dir, found.state
    history = read_history(run_dir, created_at=resolved.created_at, now=time.time(), state=str(state), metrics=metrics)
    anchor = read_anchor(run_dir.anchor_file)
    facts = RunFacts(
        resolved=resolved,
        history=history,
        ledger=build_ledger(history),
        nccl=_transport(run_dir) if resolved.processes.nodes > 1 else NcclTransport(),
        prices=_prices(resolved),
        others_share=found.others_share(),
        anchor=anchor if anchor and resolved.plan and anchor.layout == resolved.plan.layout else None,
    )
    return diagnose(facts, state=state)


def _transport(run_dir: RunDir) -> NcclTransport:
    """How NCCL connects the first ranks; each of them says it of its own channels alone."""
    logs = sorted(run_dir.logs.glob("rank-*.log"), key=lambda log: (len(log.name), log.name))[:_MOST_LOGS]
    found = read_transport(line for log in logs for line in _first_lines(log))
    return found if found.network is not None else NcclTransport()


def _first_lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as lines:
        yield from islice(lines, _MOST_NCCL_LINES)


def _prices(resolved: ResolvedRun) -> LayoutPrices | None:
    """Prices of other layouts; None for a command, a measured model, and ranks without a calibration."""
    workload, plan, calibration = resolved.workload, resolved.plan, resolved.calibration
    if workload is None or plan is None or calibration is None or not plan.model.is_described:
        return None
    memory = memory_per_rank(resolved.host, resolved.processes)
    job = run_job(
        workload, plan.model, resolved.processes, memory_per_rank_bytes=memory, support=plan.support
    ).calibrated(calibration)
    return LayoutPrices(
        price=pricing(workload, plan.model, resolved.processes, calibration),
        workload=workload,
        shape=plan.model,
        layout=plan.layout,
        limit_bytes=limit_bytes(job),
        search=lambda: [one.layout for one in choose_layouts(job, None)],
        support=plan.support,
    )


def diagnose(facts: RunFacts, *, state: str) -> Diagnosis:
    """Every cause of lost time in the record of a run, by what its remedy can gain, then by its seconds.

    What a run pays once, its first start, stands apart: in a short run it would hide every cause that lasts. `state` of
    the run is for the heading.
    """
    found = [
        cause for judge in (*SLOW_STEP_CAUSES, *STOP_CAUSES) if (cause := judge(facts)) is not None and cause.lost_s > 0
    ]
    found.sort(key=lambda cause: (-cause.mendable_s, -cause.lost_s))
    least_s = WORTH * facts.ledger.held_s
    return Diagnosis(
        run_id=facts.resolved.run_id,
        state=state,
        held_s=facts.ledger.held_s,
        runtime_goodput=facts.ledger.runtime_goodput,
        num_steps=int(facts.rows.num_steps.sum()),
        step_s=facts.median_of("step_s") if facts.steady else None,
        planned_step_s=facts.plan.step_time.total_s if facts.plan else None,
        anchor=facts.anchor,
        causes=tuple(cause for cause in found if cause.lost_s >= least_s),
        start=first_start(facts),
        small_s=sum(cause.lost_s for cause in found if cause.lost_s < least_s),
        notes=tuple(_notes(facts)),
    )


def _notes(facts: RunFacts) -> Iterator[str]:
    processes = facts.resolved.processes
    if not facts.rows:
        yield "No step is recorded: only the start and failures can be judged"
        if not facts.resolved.is_workload:
            yield "Lines that have a loss in another form than the known ones are named by `metrics: {pattern: ...}`"
            yield "A tag of a tracker, or a key of JSON, is named by `metrics: {names: {loss: TAG}}`"
    elif processes.world_size > 1 and np.isnan(facts.rows["slowest_rank"]).all():
        yield "The record has no times of single ranks: a slow rank shows as communication"
    yield from _notes_on_plan(facts)
    if processes.nodes > 1 and processes.backend == "nccl" and facts.nccl.network is None:
        yield "The logs do not say which network NCCL uses: set NCCL_DEBUG=INFO in `envs`"


def _notes_on_plan(facts: RunFacts) -> Iterator[str]:
    if facts.plan is None:
        yield "The run has no plan: compute is not held against a prediction"
        return
    if facts.plan.of_command:
        yield from _notes_on_command(facts)
    elif facts.prices is None:
        yield "The ranks were not calibrated: other layouts are not priced"
    if facts.anchor is not None:
        text = compare_anchor(facts.plan, facts.anchor, facts.history.effective).text
        yield f"{text[:1].upper()}{text[1:]}"
    if (facts.others_share or 0.0) > facts.resolved.planned_others_share:
        share = f"{facts.others_share:.0%} of the cores of a node"
        yield f"Other programs used {share}, more than the plan allows for: all times include waits for them"


_OTHER_STEP = 3.0
"""Ratio of the steps of a program to the planned ones, or its inverse, from which they may be of another kind."""


def _notes_on_command(facts: RunFacts) -> Iterator[str]:
    yield "The program lays out its own ranks: other layouts are not priced"
    planned_s, measured_s = facts.plan.step_time.total_s if facts.plan else 0.0, facts.median_of("step_s")
    if measured_s > 0 and not 1 / _OTHER_STEP < measured_s / planned_s < _OTHER_STEP:
        yield (
            f"A step takes {measured_s / planned_s:.2g} of the planned time: if the program does not count steps of "
            "`trains.global_batch`, `metrics: {samples_per_step: ...}` says what it counts"
        )


_POLL_S = 0.1


def profile(run_dir: RunDir, request: ProfileRequest) -> Callable[[], Path]:
    """Ask the ranks of a run to record steps; the result is a function that waits for the folder of their traces."""
    follower = RunFollower(run_dir)
    follower.look()  # events from here on are new
    write_request(run_dir, request)
    return lambda: _answer(run_dir, follower, request)


def profile_request(run_dir: RunDir, steps: str, ranks: str = "0") -> ProfileRequest:
    """Check a request to profile the first to the last of these steps, such as `20:25`, on ranks such as `0,1` of a
    live run.

    Raises:
        UsageError: the run cannot record these steps on these ranks.
    """
    state = current_state(run_dir.read_status())
    resolved = run_dir.read_resolved()
    if resolved.plan is None or not resolved.is_workload:
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
    """Wait for the folder of the traces."""
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
