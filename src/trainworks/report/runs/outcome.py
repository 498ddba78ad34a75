"""The end of a failed run: an error with its log and how to resume, and an out-of-memory failure explained by term."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainworks.errors import RunFailedError
from trainworks.jobs.state import JobState
from trainworks.record.events.job import RestartRefusedEvent
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.manifest import complete_checkpoints, damaged_checkpoints
from trainworks.record.memory import MemoryAtFailure, MemoryTerms
from trainworks.record.resolved import Plan, ResolvedRun
from trainworks.record.run_dir import RunDir
from trainworks.recover.failures import first_failure, latest_launch_events
from trainworks.report.runs.part import ReportPart, printable
from trainworks.units import format_bytes

_FAR = 0.05
"""Share of the planned total; a term that is further off is named."""
_UNKNOWN = 0.1
"""Share of the planned total assumed to be missing if it is unknown."""
_MEASURED_TERMS = ("weights", "gradients", "optimizer")


class MemoryTerm(ReportPart):
    """One term of the rank's memory."""

    name: str
    planned_bytes: int
    measured_bytes: int | None
    """None where only the sum of several is known."""


class PricedRemedy(ReportPart):
    """Another layout, what it saves on the fullest rank and what it costs in step time, as predicted."""

    changes: dict[str, tuple[Any, Any]]
    """What is other than it was: before and after."""
    layout: Mapping[str, object]
    """What to write as `layout` in the run file."""
    saves_bytes: int
    step_time_ratio: float
    """Over the step time of the layout that failed."""
    is_enough: bool

    @property
    def setting(self) -> str:
        """Line of the run file."""
        return f"layout: {{{', '.join(f'{name}: {_text(value)}' for name, value in self.layout.items())}}}"


class OutOfMemory(ReportPart):
    """The failure of one rank."""

    rank: int
    step: int
    """0 before the first."""
    phase: str
    limited_by: str
    planned_bytes: int
    held_bytes: int
    """When it failed; at its peak, as far as that was seen, if the kernel ended it."""
    requested_bytes: int | None
    """What it asked for in vain."""
    piece: str | None
    """The tensor that is as large as that."""
    room_bytes: int
    """What it could have held."""
    terms: tuple[MemoryTerm, ...]
    outgrown: str | None
    """The term that took more than planned; None if none did by much, or if it is unknown."""
    outgrown_bytes: int | None
    remedies: tuple[PricedRemedy, ...]


def build_out_of_memory(resolved: ResolvedRun, events: Sequence[Event]) -> OutOfMemory | None:
    """Memory at the failure that ended the run; None if it ended otherwise, or was not measured."""
    failure = first_failure(events)
    plan = resolved.plan
    rank = failure.get("rank") if failure else None
    if failure is None or failure.get("cause") != "oom" or rank is None or plan is None:
        return None
    try:
        memory = MemoryAtFailure.model_validate(failure.get("memory"))
    except ValidationError:
        return None
    terms = _terms(plan.memory, memory)
    beyond = [
        (term.name, term.measured_bytes - term.planned_bytes) for term in terms if term.measured_bytes is not None
    ]
    outgrown, outgrown_bytes = max(beyond, key=lambda named: named[1], default=("", 0))
    is_far = outgrown_bytes > _FAR * plan.memory.total_bytes
    return OutOfMemory(
        rank=int(rank),
        step=int(failure.get("step") or 0),
        phase=printable(failure.get("phase")),
        limited_by=printable(memory.limited_by),
        planned_bytes=plan.memory.total_bytes,
        held_bytes=memory.peak_bytes if memory.held_bytes is None else memory.held_bytes,
        requested_bytes=memory.requested_bytes,
        piece=_piece(memory.requested_bytes, resolved, plan),
        room_bytes=memory.room_bytes,
        terms=terms,
        outgrown=outgrown if is_far else None,
        outgrown_bytes=outgrown_bytes if is_far else None,
        remedies=_remedies(resolved, plan, memory),
    )


def _piece(num_bytes: int | None, resolved: ResolvedRun, plan: Plan) -> str | None:
    workload = resolved.run_file.workload
    if num_bytes is None or workload is None or not plan.model.is_described:
        return None
    from trainworks.plan.run.remedies import piece_of  # noqa: PLC0415, as in `_remedies`

    return piece_of(num_bytes, plan.model, plan.layout, sequence_length=workload.data.sequence_length)


def _remedies(resolved: ResolvedRun, plan: Plan, memory: MemoryAtFailure) -> tuple[PricedRemedy, ...]:
    """Remedies for the missing memory: that of the plan if it exceeds the limit, else the failed allocation."""
    workload, calibration = resolved.run_file.workload, resolved.calibration
    if workload is None or calibration is None:
        return ()
    planner = import_module("trainworks.plan.run.pricing")  # slow to import, and here for all that reads a run
    neighbours = import_module("trainworks.plan.run.remedies")
    planned = plan.memory.total_bytes
    least = memory.requested_bytes or round(_UNKNOWN * planned)
    found = neighbours.cheapest_remedies(
        workload,
        plan.model,
        plan.layout,
        planner.pricing(workload, plan.model, resolved.processes, calibration),
        needed_bytes=max(planned - memory.room_bytes, memory.needed_bytes - memory.room_bytes, least),
        support=plan.support,
    )
    return tuple(
        PricedRemedy(
            changes={name: (getattr(plan.layout, name), value) for name, value in remedy.changes.items()},
            layout=neighbours.as_written(remedy.layout),
            saves_bytes=remedy.saves_bytes,
            step_time_ratio=remedy.step_time_ratio,
            is_enough=remedy.is_enough,
        )
        for remedy in found
    )


def _terms(planned: MemoryTerms, memory: MemoryAtFailure) -> tuple[MemoryTerm, ...]:
    """The planned terms; tensors that the rank could count are measured, the rest of what it needed is one sum."""
    values = {name.removesuffix("_bytes"): value for name, value in planned.model_dump().items()}
    measured = {name: getattr(memory, f"{name}_bytes") for name in _MEASURED_TERMS}
    terms = [
        MemoryTerm(name=name, planned_bytes=value, measured_bytes=measured.get(name)) for name, value in values.items()
    ]
    known = sum(value or 0 for value in measured.values())
    rest = sum(value for name, value in values.items() if name not in _MEASURED_TERMS)
    has_all = all(value is not None for value in measured.values())
    together = memory.needed_bytes - known if has_all else None
    return (*terms, MemoryTerm(name="everything else", planned_bytes=rest, measured_bytes=together))


def finding(failure: OutOfMemory) -> str:
    """One sentence: what was held, what was asked for, and how that compares to the plan."""
    return f"{_event(failure)}; {_compare_with_plan(failure)}"


def _event(failure: OutOfMemory) -> str:
    during = f"in {failure.phase} of step {failure.step}" if failure.step else f"in its {failure.phase}"
    held, what = format_bytes(failure.held_bytes), f"the {failure.limited_by}"
    if failure.requested_bytes is None:
        return f"rank {failure.rank} held up to {held} {during}, and {what} was full"
    piece = f" ({failure.piece})" if failure.piece else ""
    more = f"asked for {format_bytes(failure.requested_bytes)} more{piece}"
    left = format_bytes(max(0, failure.room_bytes - failure.held_bytes))
    return f"rank {failure.rank} held {held} {during} and {more}; {what} had {left} left"


def _compare_with_plan(failure: OutOfMemory) -> str:
    planned = f"{format_bytes(failure.planned_bytes)} were planned"
    if failure.outgrown is not None:
        return f"{planned}, and {failure.outgrown} took {format_bytes(failure.outgrown_bytes or 0)} more than its share"
    if failure.planned_bytes > failure.room_bytes:
        return f"{planned}: there was less memory than the plan counted on"
    return planned


def remedy_lines(failure: OutOfMemory) -> list[str]:
    """Two lines for each remedy: what it changes, saves and costs; what to write."""
    return [line for remedy in failure.remedies for line in _remedy(remedy)]


def _remedy(remedy: PricedRemedy) -> tuple[str, str]:
    changes = ", ".join(
        f"{name} {_text(after)} instead of {_text(before)}" for name, (before, after) in remedy.changes.items()
    )
    enough = "" if remedy.is_enough else "; not enough by itself"
    percent = round((remedy.step_time_ratio - 1) * 100)
    step = f"{percent:+d} %" if percent else "unchanged"
    price = f"saves {format_bytes(remedy.saves_bytes)}, step time {step}"
    return f"{changes}: {price}{enough}", f"  {remedy.setting}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def failure_of(run_dir: RunDir, state: JobState) -> RunFailedError | None:
    """The error of a failed or lost run, with the exit code of its ranks; None for any other state."""
    if state not in (JobState.FAILED, JobState.LOST):
        return None
    status, events = run_dir.read_status(), read_events(run_dir.events_file)
    message = "its supervisor is gone" if state is JobState.LOST else status.message
    hint = status.hint
    if status.cause == "oom" and (explained := build_out_of_memory(run_dir.read_resolved(), events)):
        message = f"out of memory: {finding(explained)}"
        remedies = ["the cheapest ways to need less, as predicted", *remedy_lines(explained)]
        hint = "\n      ".join(remedies) if explained.remedies else None
    error = RunFailedError(
        f"run {run_dir.run_id} failed: {message}",
        place=_place(run_dir, events),
        hint=hint or _resume_hint(run_dir, events),
    )
    error.exit_code = status.exit_code or 1
    return error


def _place(run_dir: RunDir, events: list[Event]) -> str:
    failure = first_failure(events)
    if failure is None:
        return str(run_dir.supervisor_log)
    if (rank := failure.get("rank")) is None:
        return str(run_dir.node_log(failure["node"]))
    return f"{run_dir.rank_log(rank)}  rank {rank} on node {failure['node']}"


def _resume_hint(run_dir: RunDir, events: list[Event]) -> str | None:
    damaged = damaged_checkpoints(events)
    steps = [manifest.step for manifest, _ in complete_checkpoints(run_dir) if manifest.step not in damaged]
    if not steps:
        return None
    restart_refused = of_kind(latest_launch_events(events), RestartRefusedEvent)
    then = "fix the cause, then" if restart_refused else "resume with"
    return f"the checkpoint of step {steps[-1]:,} is complete; {then}: {resume_command(run_dir)}"


def resume_command(run_dir: RunDir, name: str = "resume") -> str:
    """The command that resumes a run, or another one of that name, from the current folder."""
    is_default_folder = (Path("runs") / run_dir.run_id).absolute() == run_dir.path.absolute()
    return f"trainworks {name} {run_dir.run_id if is_default_folder else run_dir.path}"
