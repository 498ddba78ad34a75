"""Jobs of engines that have a queue of their own: submitted once, and followed by whoever looks.

Nobody of ours waits beside them. The store says where a job stood when somebody last looked; the engine says where it
stands; the run directory says why it failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainworks.backends.backend import Engine, Sight
from trainworks.backends.ownership import check_run_dir, is_private
from trainworks.backends.registry import cluster_of, cluster_of_job, engine_of_job
from trainworks.backends.reported_attempts import columns_of, ended_at, told_attempts
from trainworks.backends.submission import check_dependencies, status_restored, submit_lock
from trainworks.errors import (
    EnvironmentProblem,
    NotOwnerError,
    TrainworksError,
    UnansweredError,
    UnreachableError,
    UsageError,
)
from trainworks.host.clock import Clock
from trainworks.host.users import user_name
from trainworks.jobs.attempts import placement_on
from trainworks.jobs.state import CAUSES, Cause, JobState, parse_cause, parse_state
from trainworks.jobs.store import JobRow, JobStore
from trainworks.jobs.ticket import Ticket
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus

__all__ = ["Step", "follow_all", "hand_over", "hand_over_again", "next_step", "withdraw"]

_NOWHERE: dict[str, Any] = {"placement": (), "reachable": True}
"""Of a job that was seen, and holds nothing."""
_FORGOTTEN_S = 30.0
"""An engine that does not know a job so long after its last change has none; it may be slow to show a new one."""


def hand_over(store: JobStore, engine: Engine, ticket: Ticket, run_dir: RunDir, clock: Clock) -> JobRow:
    """Submit a run; afterwards its job is accepted, or nothing of it is left.

    The job is in the store before its engine is called: if this process is killed in between, the next command that
    looks finishes the submission. A submission that was sent and not answered is accepted too. Its job has no handle
    until a later look finds it by its mark, or submits it.

    Raises:
        TrainworksError: the engine has not got the job; the store and the run directory are as they were.
    """
    folder = str(run_dir.path.resolve())
    with submit_lock(run_dir):
        known = store.find(folder, uid=os.getuid())
        is_ours = known is not None and (known.run_dir, known.uid) == (folder, os.getuid())
        if known is not None and is_ours and not known.state.is_final:
            return known if known.handle else _give(store, engine, known, clock)
        check_dependencies(store, ticket, engine.name)
        with status_restored(run_dir):
            run_dir.write_status(RunStatus(state=JobState.QUEUED, updated_at=clock.now()))
            cluster = cluster_of(run_dir.path)
            row = store.add(
                ticket,
                run_dir=folder,
                owner=user_name(),
                engine=engine.name,
                cluster=cluster.model_dump_json(exclude_unset=True) if cluster else None,
                now=clock.now(),
            )
            with _undone_by(lambda: store.remove(row.id)):
                return _accepted(store, engine, row, clock)


def hand_over_again(store: JobStore, engine: Engine, row: JobRow, clock: Clock, ticket: Ticket | None = None) -> JobRow:
    """Submit a job anew that has ended without success; it goes on in its run directory, with another ticket
    if there is one.

    Raises: as `hand_over`; and a UsageError for one that has not ended, or has succeeded.
    """
    if row.uid != os.getuid():  # it would run as this user
        raise NotOwnerError(f"cannot submit job {row.id} ({row.run_id}) again: it belongs to {row.owner}")
    again = (JobState.FAILED, JobState.STOPPED, JobState.LOST)
    if row.state not in again:
        raise UsageError(f"job {row.id} ({row.run_id}) is {row.state}", hint="retry one that failed or was stopped")
    run_dir, ticket = RunDir(Path(row.run_dir)), ticket or row.ticket
    _check_is_there(row)
    with submit_lock(run_dir):
        check_dependencies(store, ticket, engine.name)
        if (current := store.get(row.id)) is not None and current.state not in again:
            raise UsageError(f"job {row.id} ({row.run_id}) is in the queue again already", hint="trainworks ps")
        with status_restored(run_dir), _undone_by(lambda: _put_back(store, row)):
            run_dir.write_status(RunStatus(state=JobState.QUEUED, updated_at=clock.now()))
            forgotten = dict.fromkeys(("asked_to_end", "asked_by", "handle"))
            changes: dict[str, Any] = forgotten | {"restarts": 0, "ticket": ticket}
            store.move(row.id, JobState.QUEUED, since=again, now=clock.now(), **changes)
            return _accepted(store, engine, store.get(row.id) or row, clock, before=row.handle)


def withdraw(store: JobStore, row: JobRow, clock: Clock) -> None:
    """Stop a job that its engine has never had.

    Raises:
        UnreachableError: the engine does not answer, and may have it.
    """
    if not row.reachable:
        raise UnreachableError(
            f"cannot stop job {row.id} ({row.run_id}): {row.engine} does not answer, and may have it",
            hint="try again when it answers",
        )
    _end(store, row, Step(JobState.STOPPED, {"exit_code": 0}), clock)


@contextmanager
def _undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what is in the store if the submission inside the block fails."""
    try:
        yield
    except (TrainworksError, OSError):
        undo()
        raise


def _put_back(store: JobStore, row: JobRow) -> None:
    """A job as it was before it was submitted anew."""
    kept = {name: getattr(row, name) for name in ("asked_to_end", "asked_by", "handle", "restarts", "ticket")}
    store.move(row.id, row.state, since=(JobState.QUEUED,), now=row.ended_at or row.changed_at, **kept)


def _accepted(store: JobStore, engine: Engine, row: JobRow, clock: Clock, *, before: str | None = None) -> JobRow:
    """The job, which its engine has got; or may have got, where it did not answer."""
    try:
        return _give(store, engine, row, clock, before=before)
    except UnansweredError as lost:
        store.change(row.id, now=clock.now(), reachable=False, reason=lost.message)
        return store.get(row.id) or row
    except UnreachableError as away:
        away.hint = f"the job was not submitted; {away.hint or 'try again later'}"
        raise


def _give(store: JobStore, engine: Engine, row: JobRow, clock: Clock, *, before: str | None = None) -> JobRow:
    """Submit a job, or anew one that its engine knew by the name `before`."""
    run_dir = RunDir(Path(row.run_dir))
    check_run_dir(run_dir.path, shared=not is_private(store.url))
    ticket = replace(row.ticket, depends_on=_handles(store, row))
    script = engine.render(engine.adapted(ticket), run_dir)
    handle = engine.retry(script, run_dir, before) if before else engine.submit(script, run_dir)
    store.change(row.id, now=clock.now(), handle=handle, reachable=True, reason=None)
    return store.get(row.id) or row


def _check_is_there(row: JobRow) -> None:
    if not RunDir(Path(row.run_dir)).resolved_file.exists():
        raise UsageError(f"cannot submit job {row.id} to {row.engine}: its run directory `{row.run_dir}` is gone")


def _handles(store: JobStore, row: JobRow) -> tuple[str, ...]:
    """The jobs that this one waits for, by the engine's own names; without those that have succeeded already."""
    waits = [job for job in check_dependencies(store, row.ticket, row.engine) if not job.state.is_final]
    if nameless := [job.run_id for job in waits if job.handle is None]:
        raise UnreachableError(
            f"{row.engine} has not confirmed job `{nameless[0]}` yet, which this job depends on",
            hint="try again when `trainworks ps` shows that it has",
        )
    return tuple(job.handle for job in waits if job.handle)


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a job: its state, and columns of its row."""

    state: JobState
    columns: dict[str, Any] = field(default_factory=dict)
    since: float | None = None
    """When it came to that, where that is known."""


def next_step(job: JobRow, sight: Sight | None, status: RunStatus, now: float) -> Step | None:
    """The state that a job has, from what its engine and its run directory say; None where nobody can say yet.

    | the engine says       | the run directory says | then                                                  |
    |-----------------------|------------------------|-------------------------------------------------------|
    | it has ended          | so too                 | as the run directory says, which knows why            |
    | it has ended          | anything else          | as the engine says                                    |
    | it waits              | anything               | it waits; preempted, if either says so                |
    | it has its nodes      | starting, running, ... | as the run directory says                             |
    | it has its nodes      | that it waits          | it starts: its supervisor has not spoken yet          |
    | it has its nodes      | anything else          | as the engine says                                    |
    | a word that is new    | anything               | unknown, until the word is another one                |
    | it knows no such job  | it has ended           | as the run directory says                             |
    | it knows no such job  | anything else          | stopped, if somebody asked for that; else failed, and |
    |                       |                        | that only after a while                               |
    """
    said = parse_state(status.state)
    if sight is None:
        return _forgotten(job, said, status, now)
    if sight.state.is_final:
        step = _as_recorded(said, status) if said.is_final else _as_seen(sight)
        return replace(step, columns=step.columns | {"raw": sight.raw, "restarts": sight.restarts})
    columns: dict[str, Any] = {"raw": sight.raw, "restarts": sight.restarts}
    if sight.state.waits:
        preempted = sight.state is JobState.PREEMPTED or said is JobState.PREEMPTED
        columns |= {"cause": status.cause, "message": status.message} if said.waits else {}
        return Step(JobState.PREEMPTED if preempted else JobState.QUEUED, columns)
    if sight.state.holds_resources and said.holds_resources:
        return Step(said, columns)
    return Step(JobState.STARTING if sight.state.holds_resources and said.waits else sight.state, columns)


def _as_recorded(said: JobState, status: RunStatus) -> Step:
    columns = {"cause": status.cause, "message": status.message, "exit_code": status.exit_code}
    return Step(said, columns, since=status.updated_at or None)


def _as_seen(sight: Sight) -> Step:
    cause = sight.cause
    words = sight.reason or sight.raw
    message = f"{CAUSES[cause].words}{f': {words}' if words else ''}" if cause else None
    columns = {"cause": cause, "message": message, "exit_code": sight.exit_code}
    return Step(sight.state, columns)


def _forgotten(job: JobRow, said: JobState, status: RunStatus, now: float) -> Step | None:
    if said.is_final:
        return _as_recorded(said, status)
    if job.asked_to_end is not None:
        return Step(JobState.STOPPED, {"exit_code": 0})
    if now - job.changed_at < _FORGOTTEN_S:
        return None
    message = f"{job.engine} does not know job {job.handle} any more, and it left no last word"
    return Step(JobState.FAILED, {"cause": Cause.UNKNOWN, "message": message, "exit_code": 1})


Engines = Callable[[JobRow], Engine | None]
"""The engine of a job."""


def follow_all(store: JobStore, clock: Clock, engines: Engines = engine_of_job) -> list[TrainworksError]:
    """Bring this user's jobs of such engines up to date; returns why an engine could not be asked.

    Every engine is asked one question for all its jobs. A job whose engine does not answer keeps its state. The jobs of
    other users are theirs to follow: a submission that was cut off would be finished under the wrong account.
    """
    live = [state for state in JobState if not state.is_final]
    rows = [row for row in store.search(states=live, uid=os.getuid()) if row.engine != "local"]
    silent: list[TrainworksError] = []
    for group in _by_cluster(rows):
        try:
            _follow(store, group, engines, clock)
        except (EnvironmentProblem, UsageError) as error:
            silent.append(error)
            for row in group:
                if row.reachable:
                    store.change(row.id, now=clock.now(), reachable=False)
    return silent


def _by_cluster(rows: Iterable[JobRow]) -> list[list[JobRow]]:
    """Jobs of one engine with the same words for it are asked for together."""
    found: dict[str, list[JobRow]] = {}
    for row in rows:
        if (cluster := cluster_of_job(row)) is not None:
            own = getattr(cluster, cluster.engine, None)
            key = json.dumps([cluster.engine, own.model_dump(mode="json") if own else None])
            found.setdefault(key, []).append(row)
    return list(found.values())


def _follow(store: JobStore, rows: Sequence[JobRow], engines: Engines, clock: Clock) -> None:
    oldest_first = sorted(rows, key=lambda row: row.id)  # a job may depend on an older one
    given = [row if row.handle else _give_again(store, row, engines, clock) for row in oldest_first]
    known = [row for row in given if row.handle and not row.state.is_final]
    engine = engines(known[0]) if known else None
    if engine is not None:
        sights = engine.look([row.handle for row in known if row.handle])
        for row in known:
            _take(store, engine, row, sights, clock)


def _give_again(store: JobStore, row: JobRow, engines: Engines, clock: Clock) -> JobRow:
    """Finish a submission that was cut off; leave alone one that another process is at now."""
    try:
        _check_is_there(row)
        engine = engines(row)
        with submit_lock(RunDir(Path(row.run_dir))):
            row = store.get(row.id) or row
            return row if engine is None or row.handle else _give(store, engine, row, clock)
    except UnreachableError:
        raise
    except EnvironmentProblem:
        return row
    except UsageError as refused:
        _end(store, row, Step(JobState.FAILED, {"cause": Cause.LAUNCH_FAILED, "message": refused.message}), clock)
        return store.get(row.id) or row


def _take(store: JobStore, engine: Engine, row: JobRow, sights: Mapping[str, Sight], clock: Clock) -> None:
    """Write down what was seen of one job."""
    run_dir = RunDir(Path(row.run_dir))
    sight = sights.get(row.handle or "")
    status = run_dir.read_status() if engine.shares_files else RunStatus(state=JobState.UNKNOWN)
    if sight is not None and sight.restarts > row.restarts and row.state.holds_resources:
        ended_at = min(clock.now(), sight.starts_at or clock.now())
        cause = sight.last_cause or parse_cause(row.cause) or Cause.UNKNOWN
        changes = {"cause": cause, "message": CAUSES[cause].words} | _NOWHERE
        store.move(row.id, JobState.QUEUED, since=(row.state,), now=clock.now(), ended_at=ended_at, **changes)
        row = store.get(row.id) or row
    sight = _as_a_gang(row, sight) if sight is not None else None
    step = next_step(row, sight, status, clock.now())
    if step is None:
        return
    attempts = told_attempts(row, engine, sight, step.state, step.columns) if engine.shares_files else None
    if attempts is not None:
        preempted = step.state.waits and attempts[-1].state is JobState.PREEMPTED
        state = JobState.PREEMPTED if preempted else step.state
        step = Step(state, step.columns | columns_of(attempts, row, state), step.since)
    elif sight is not None and not step.state.waits:
        row = _attempt(store, row, sight, clock)
    if step.state.is_final:
        ended = attempts[-1].ended_at if attempts and attempts[-1].state is step.state else None
        _end(store, row, step, clock, ended_at=ended or step.since or _ended_at(engine, row, run_dir, sight))
    else:
        _go_on(store, row, step, sight, clock)
    if attempts is not None:
        store.write_attempts(row.id, attempts)
    if not (engine.shares_files or step.state.is_final):
        _mirror(run_dir, step.state, engine.name, clock)


def _ended_at(engine: Engine, row: JobRow, run_dir: RunDir, sight: Sight | None) -> float:
    """When a job ended, which may be long before this look."""
    seen = ended_at(run_dir, sight) if engine.shares_files else sight.ended_at if sight is not None else None
    return max(seen or row.changed_at, row.started_at or row.submitted_at)


def _as_a_gang(row: JobRow, sight: Sight) -> Sight:
    """A job that has got some of its nodes waits for the others."""
    got, wanted = len(sight.nodes), row.ticket.min_nodes
    if not (row.state.waits and sight.state.holds_resources and got < wanted):
        return sight
    return replace(sight, state=JobState.QUEUED, reason=f"{got} of {wanted} nodes are there", starts_at=None)


def _attempt(store: JobStore, row: JobRow, sight: Sight, clock: Clock) -> JobRow:
    """The job in the attempt that its engine is at, which begins when it is seen with its nodes."""
    placement = placement_on(row, sight.nodes)
    if row.state.waits and placement:
        return store.start(row, placement, now=sight.starts_at or sight.ended_at or clock.now()) or row
    return row


def _go_on(store: JobStore, row: JobRow, step: Step, sight: Sight | None, clock: Clock) -> None:
    changes = step.columns | (_NOWHERE if step.state.waits else {"reachable": True})
    if step.state is not row.state:
        store.move(row.id, step.state, since=(row.state,), now=clock.now(), **changes)
    elif any(getattr(row, name) != value for name, value in changes.items()):
        store.change(row.id, now=clock.now(), **changes)
    if step.state.waits and sight is not None:
        why = (sight.reason or sight.raw, "", None, sight.starts_at)
        if why != (row.reason, row.detail, row.position, row.starts_at):
            store.explain({row.id: why})


def _end(store: JobStore, row: JobRow, step: Step, clock: Clock, *, ended_at: float | None = None) -> None:
    now = ended_at or clock.now()
    _tell(RunDir(Path(row.run_dir)), step, now)
    store.move(row.id, step.state, since=(row.state,), now=now, **step.columns | _NOWHERE)


def _tell(run_dir: RunDir, step: Step, now: float) -> None:
    """The end of a job that could not write it down itself."""
    if not run_dir.path.exists() or parse_state(run_dir.read_status().state).is_final:
        return
    words = {name: step.columns.get(name) for name in ("cause", "message", "exit_code")}
    run_dir.write_status(RunStatus(state=step.state, updated_at=now, **words))


def _mirror(run_dir: RunDir, state: JobState, where: str, clock: Clock) -> None:
    """Where the job's own record is elsewhere, this one says the state that its engine says."""
    if run_dir.path.exists() and run_dir.read_status().state != state:
        run_dir.write_status(RunStatus(state=state, supervisor_host=where, updated_at=clock.now()))
