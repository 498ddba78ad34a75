"""Jobs on backends with a queue of their own. No local daemon watches them: every command that reads a job polls.

The store has a job's state at the last poll, the backend its state now, and the run directory the cause of a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from trainworks.backends import submission
from trainworks.backends.asking import Backends, Question, Silence
from trainworks.backends.backend import Backend, JobStatus
from trainworks.backends.kept_output import keep_output
from trainworks.backends.next_state import (
    StateChange,
    as_a_gang,
    columns_of,
    ended_at,
    is_requeue_lost,
    may_be_lost,
    next_step,
    of_this_job,
    placement_on,
    recorded_end,
    reported_attempts,
)
from trainworks.backends.ownership import check_run_dir, is_private
from trainworks.backends.registry import backend_of_job, cluster_of, group_by_backend
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
from trainworks.jobs.job_row import JobChanges, JobRow
from trainworks.jobs.job_spec import JobSpec
from trainworks.jobs.state import Cause, JobState, parse_cause, parse_state
from trainworks.jobs.store import JobStore
from trainworks.record.events.job import SubmittedEvent
from trainworks.record.events.log import Event, of_kind, read_events
from trainworks.record.exit_code import End
from trainworks.record.run_dir import RunDir
from trainworks.record.status import RunStatus
from trainworks.system import user_id

_LOG = logging.getLogger(__name__)

_NOWHERE: JobChanges = {"placement": (), "reachable": True}
"""Columns to reset when a job gives up its nodes."""


def hand_over(store: JobStore, backend: Backend, spec: JobSpec, run_dir: RunDir, clock: Clock) -> JobRow:
    """Submit a run, or leave no trace of it; one that waits for a job that has failed is recorded as failed.

    The job is in the store before its backend is called: if this process is killed in between, the next command that
    polls finishes the submission. A submission that was sent but not answered counts as accepted. Its job has no handle
    until a later poll finds it by its tag, or submits it.

    Raises:
        TrainworksError: the backend does not have the job; the store and the run directory are as they were.
    """
    folder = str(run_dir.path.resolve())
    with submission.submit_lock(run_dir):
        known = store.find(folder, uid=user_id())
        is_ours = known is not None and (known.run_dir, known.uid) == (folder, user_id())
        if known is not None and is_ours and not known.state.is_final:
            return known if known.handle else _give(store, backend, known, clock)
        submission.find_dependencies(store, spec, backend.name)
        with submission.status_restored(run_dir):
            run_dir.write_status(RunStatus(state=JobState.QUEUED, updated_at=clock.now()))
            cluster = cluster_of(run_dir.path)
            row = store.add(
                spec,
                run_dir=folder,
                owner=user_name(),
                engine=backend.name,
                cluster=cluster.model_dump_json(exclude_unset=True) if cluster else None,
                now=clock.now(),
            )
            with _undone_by(lambda: store.remove(row.id)):
                return _accepted(store, backend, row, clock)


def hand_over_again(
    store: JobStore, backend: Backend, row: JobRow, clock: Clock, spec: JobSpec | None = None
) -> JobRow:
    """Submit a job again that ended; it continues in its run directory, with another spec if given.

    Raises: as `hand_over`; and a UsageError for one that has not ended.
    """
    if row.uid != user_id():  # it would run as this user
        raise NotOwnerError(f"cannot submit job {row.id} ({row.run_id}) again: it belongs to {row.owner}")
    again = (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED, JobState.LOST)
    if row.state not in again:
        raise UsageError(f"job {row.id} ({row.run_id}) is {row.state}", hint="retry one that failed or was stopped")
    run_dir, spec = RunDir(Path(row.run_dir)), spec or row.spec
    _check_is_there(row)
    with submission.submit_lock(run_dir):
        submission.check_dependencies(store, spec, backend.name)
        if (current := store.get(row.id)) is not None and current.state not in again:
            raise UsageError(f"job {row.id} ({row.run_id}) is in the queue again already", hint="trainworks ps")
        with submission.status_restored(run_dir), _undone_by(lambda: _put_back(store, row)):
            run_dir.write_status(RunStatus(state=JobState.QUEUED, updated_at=clock.now()))
            changes: JobChanges = {"asked_to_end": None, "asked_by": None, "handle": None, "restarts": 0, "spec": spec}
            store.move(row.id, JobState.QUEUED, since=again, now=clock.now(), **changes)
            return _accepted(store, backend, store.get(row.id) or row, clock, before=row.handle)


def withdraw(store: JobStore, row: JobRow, clock: Clock) -> None:
    """Stop a job that its backend has not accepted.

    Raises:
        UnreachableError: the backend does not answer, and may have it.
    """
    if not row.reachable:
        raise UnreachableError(
            f"cannot stop job {row.id} ({row.run_id}): {row.engine} does not answer, and may have it",
            hint="try again when it answers",
        )
    end = End(JobState.STOPPED, exit_code=0).because(f"stopped by {user_name()}")
    _end(store, row, StateChange(end), clock)


@contextmanager
def _undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what is in the store if the submission inside the block fails."""
    try:
        yield
    except (TrainworksError, OSError):
        undo()
        raise


def _put_back(store: JobStore, row: JobRow) -> None:
    """Restore the row of a job as it was before it was submitted again."""
    store.move(
        row.id,
        row.end,
        since=(JobState.QUEUED,),
        now=row.ended_at or row.changed_at,
        asked_to_end=row.asked_to_end,
        asked_by=row.asked_by,
        handle=row.handle,
        restarts=row.restarts,
        spec=row.spec,
    )


def _accepted(store: JobStore, backend: Backend, row: JobRow, clock: Clock, *, before: str | None = None) -> JobRow:
    """Submit a job; one that its backend did not answer counts as accepted."""
    try:
        return _give(store, backend, row, clock, before=before)
    except UnansweredError as lost:
        store.change(row.id, now=clock.now(), reachable=False, reason=lost.message)
        return store.get(row.id) or row
    except UnreachableError as away:
        away.hint = f"the job was not submitted; {away.hint or 'try again later'}"
        raise


def _give(store: JobStore, backend: Backend, row: JobRow, clock: Clock, *, before: str | None = None) -> JobRow:
    """Submit a job, again if its backend knew it as `before`; one whose dependency has failed has failed too."""
    run_dir = RunDir(Path(row.run_dir))
    check_run_dir(run_dir.path, shared=not is_private(store.url))
    dependencies = submission.find_dependencies(store, row.spec, row.engine)
    if unmet := submission.unmet_dependencies(dependencies):
        _end(store, row, StateChange(submission.end_of_dependent(unmet)), clock)
        return store.get(row.id) or row
    spec = replace(row.spec, depends_on=submission.resolve_dependencies(dependencies))
    script = backend.render(backend.adapted(spec), run_dir)
    handle = backend.retry(script, run_dir, before) if before else backend.submit(script, run_dir)
    if not handle:  # the job would be submitted again by every poll
        hint = "the `submit` of a backend returns the name that its queue has for the job"
        raise EnvironmentProblem(f"{backend.name} gave no handle for {row.run_id}, which it may have", hint=hint)
    _LOG.info("job %d (%s) is %s on %s", row.id, row.run_id, handle, backend.name)
    store.change(row.id, now=clock.now(), handle=handle, reachable=True, reason=None)
    return store.get(row.id) or row


def _check_is_there(row: JobRow) -> None:
    if not RunDir(Path(row.run_dir)).resolved_file.exists():
        raise UsageError(f"cannot submit job {row.id} to {row.engine}: its run directory `{row.run_dir}` is gone")


def follow_all(
    store: JobStore,
    clock: Clock,
    backends: Backends = backend_of_job,
    *,
    silence: Silence | None = None,
    awaited: int | None = None,
) -> list[TrainworksError]:
    """Update this user's jobs from their backends; returns the errors of backends that could not be polled.

    One query per backend covers all its jobs. A job whose backend does not answer keeps its state. Jobs of other users
    are left to them: an interrupted submission would be finished under the wrong account. With a `silence`, backends
    are asked at the same time, and one that is silent is not waited for, unless it has the job of number `awaited`.
    Without, they are asked one after the other, and each is waited for.
    """
    live = [state for state in JobState if not state.is_final]
    rows = [row for row in store.search(states=live, uid=user_id()) if row.engine != "local"]
    questions = [
        Question(key, group, backends, silence, is_awaited=any(row.id == awaited for row in group))
        for key, group in group_by_backend(rows).items()
    ]
    silent: list[TrainworksError] = []
    for question in questions:
        try:
            _follow(store, question, backends, clock)
        except (EnvironmentProblem, UsageError) as error:
            _LOG.info("%d jobs keep their state: %s", len(question.rows), error.message)
            silent.append(error)
            for row in question.rows:
                if row.reachable:
                    store.change(row.id, reachable=False)  # the job itself has not changed
    return silent


def _follow(store: JobStore, question: Question, backends: Backends, clock: Clock) -> None:
    backend, statuses = question.answer()
    oldest_first = sorted(question.rows, key=lambda row: row.id)  # a job may depend on an older one
    given = [row if row.handle else _give_again(store, row, backends, clock) for row in oldest_first]
    known = [row for row in given if row.handle and not row.state.is_final]
    if backend is None:
        return
    asked = {row.handle for row in question.rows}
    if new := [row.handle for row in known if row.handle and row.handle not in asked]:
        statuses = statuses | backend.poll(new)
    is_whole = not backend.shares_files or backend.fetch([RunDir(Path(row.run_dir)) for row in known])
    for row in known:
        status = of_this_job(row, statuses.get(row.handle or ""))
        if status is not None or not _submit_lost(store, backend, row, clock):
            _update_from(store, backend, row, status, clock, is_whole=is_whole)


def _give_again(store: JobStore, row: JobRow, backends: Backends, clock: Clock) -> JobRow:
    """Finish an interrupted submission, unless another process is submitting it now."""
    try:
        _check_is_there(row)
        backend = backends(row)
        with submission.submit_lock(RunDir(Path(row.run_dir))):
            row = store.get(row.id) or row
            return row if backend is None or row.handle else _give(store, backend, row, clock)
    except UnreachableError:
        raise
    except EnvironmentProblem:
        return row
    except UsageError as refused:
        end = End(JobState.FAILED, Cause.LAUNCH_FAILED, refused.message, hint=refused.hint)
        _end(store, row, StateChange(end), clock)
        return store.get(row.id) or row


def _recorded(backend: Backend, run_dir: RunDir, status: JobStatus | None) -> tuple[RunStatus, Sequence[Event]]:
    """Status and events in the record of a job; of one whose nodes do not share it, how it ended alone."""
    if backend.shares_files:
        return run_dir.read_status(), read_events(run_dir.events_file)
    is_over = status is not None and status.state.is_final
    return backend.last_status(run_dir) if is_over else RunStatus(state=JobState.UNKNOWN), []


def _update_from(
    store: JobStore, backend: Backend, row: JobRow, status: JobStatus | None, clock: Clock, *, is_whole: bool
) -> None:
    """Update the store from the reported status of one job; it ends when its whole record is here."""
    run_dir = RunDir(Path(row.run_dir))
    run_status, events = _recorded(backend, run_dir, status)
    if status is not None:
        row = _requeue(store, row, status, events, clock)
        status = as_a_gang(row, status)
        _requeue_again(backend, row, status, run_status, clock.now())
    step = next_step(row, status, run_status, clock.now())
    if step is None or (step.state.is_final and not is_whole):
        return
    attempts = reported_attempts(row, backend, status, events, step.end) if events else None
    if attempts is not None:
        # what the record says about the latest attempt completes the change
        preempted = step.state.waits and attempts[-1].state is JobState.PREEMPTED
        state = JobState.PREEMPTED if preempted else step.state
        last = attempts[-1].end
        end = replace(last, at=None) if state.waits and last.cause is not None else step.end
        step = StateChange(replace(end, state=state), step.columns | columns_of(attempts, row, events, state))
    elif status is not None and not step.state.waits:
        row = _attempt(store, row, status, clock)
    if step.state.is_final:
        recorded = recorded_end(attempts, step.state) or step.end.at
        _end(store, row, step, clock, ended_at=recorded or _ended_at(backend, row, run_dir, status), of=backend)
    else:
        _update(store, row, step, status, clock)
    if attempts is not None:
        store.write_attempts(row.id, attempts)
    # the job's nodes do not see this run directory, which gets the backend's state
    is_apart = not (backend.shares_files or step.state.is_final) and run_dir.path.exists()
    if is_apart and run_dir.read_status().state != step.state:
        run_dir.write_status(RunStatus(state=step.state, supervisor_host=backend.name, updated_at=clock.now()))


def _requeue_again(backend: Backend, row: JobRow, status: JobStatus, run_status: RunStatus, now: float) -> None:
    if is_requeue_lost(status, run_status, now):
        _LOG.info("job %d: its request to be queued again was lost, and is repeated", row.id)
        with suppress(UsageError):  # it has ended meanwhile
            backend.requeue(row.handle or "")


def _requeue(store: JobStore, row: JobRow, status: JobStatus, events: Sequence[Event], clock: Clock) -> JobRow:
    """End the attempt of a job that has lost its nodes since the last poll, unless the record has its attempts."""
    has_record = bool(of_kind(events, SubmittedEvent))
    if has_record or status.restarts <= row.restarts or not row.state.holds_resources:
        return row
    ended_at = min(clock.now(), status.starts_at or clock.now())
    cause = status.last_cause or parse_cause(row.end.cause) or Cause.UNKNOWN
    end = End(JobState.QUEUED, cause, cause.words, at=ended_at)
    store.move(row.id, end, since=(row.state,), now=clock.now(), **_NOWHERE)
    return store.get(row.id) or row


def _submit_lost(store: JobStore, backend: Backend, row: JobRow, clock: Clock) -> bool:
    """Submit a job again that its backend has lost in a crash, and True; False if it has not.

    A job that had begun continues in its run directory. If this process is killed, the next poll submits the job.
    """
    run_dir, now = RunDir(Path(row.run_dir)), clock.now()
    run_status = run_dir.read_status()
    if not (may_be_lost(row, run_status, now) and backend.has_lost(row.changed_at, now)):
        return False
    try:
        with submission.submit_lock(run_dir):
            current = store.get(row.id)
            if current is not None and current.handle == row.handle and not current.state.is_final:
                _LOG.info("job %d: %s has lost it as %s, and gets it again", row.id, backend.name, row.handle)
                has_begun = parse_state(run_status.state).holds_resources
                # without its handle the job is submitted again; one that has begun starts again
                end = replace(row.end, state=JobState.QUEUED)
                if has_begun:
                    end = End(JobState.QUEUED, Cause.SCHEDULER_LOST, f"{row.engine} crashed and lost job {row.handle}")
                    run_dir.enter(RunStatus.of(end, updated_at=now))
                if row.state.waits:
                    store.change(row.id, now=now, end=end, **_NOWHERE | JobChanges(handle=None))
                else:
                    store.move(row.id, end, since=(row.state,), now=now, **_NOWHERE | JobChanges(handle=None))
                _give_again(store, store.get(row.id) or row, lambda _: backend, clock)
    except UnreachableError:
        raise
    except EnvironmentProblem:  # another process submits it now
        pass
    return True


def _ended_at(backend: Backend, row: JobRow, run_dir: RunDir, status: JobStatus | None) -> float:
    """When a job ended, which may be long before this poll."""
    seen = ended_at(run_dir, status) if backend.shares_files else status.ended_at if status is not None else None
    return max(seen or row.changed_at, row.started_at or row.submitted_at)


def _attempt(store: JobStore, row: JobRow, status: JobStatus, clock: Clock) -> JobRow:
    """Begin an attempt of a job that now has its nodes, and was waiting, or had lost those of its last attempt."""
    placement = placement_on(row, status.nodes)
    if placement and (row.state.waits or not row.placement):
        started_at = status.starts_at or status.ended_at or clock.now()
        earlier = (attempt.ended_at or 0.0 for attempt in store.attempts(row.id))
        return store.start(row, placement, now=max(started_at, *earlier, 0.0)) or row  # Kubernetes truncates to seconds
    return row


def _update(store: JobStore, row: JobRow, step: StateChange, status: JobStatus | None, clock: Clock) -> None:
    changes = step.columns | (_NOWHERE if step.state.waits else JobChanges(reachable=True))
    if step.state is not row.state:
        store.move(row.id, step.end, since=(row.state,), now=clock.now(), **changes)
    elif step.end != row.end or any(getattr(row, name) != value for name, value in changes.items()):
        store.change(row.id, now=clock.now(), end=step.end, **changes)
    if step.state.waits and status is not None:
        why = (status.reason or status.raw, "", None, status.starts_at)
        if why != (row.reason, row.detail, row.position, row.starts_at):
            store.explain({row.id: why})


def _end(
    store: JobStore,
    row: JobRow,
    step: StateChange,
    clock: Clock,
    *,
    ended_at: float | None = None,
    of: Backend | None = None,
) -> None:
    """Write the end of a job; of a backend that has had it, first what its nodes printed last."""
    now = ended_at or clock.now()
    if of is not None and row.handle is not None:
        keep_output(of, row.handle, RunDir(Path(row.run_dir)))
    run_dir = RunDir(Path(row.run_dir))
    if run_dir.path.exists() and not parse_state(run_dir.read_status().state).is_final:  # it could not write it itself
        run_dir.write_status(RunStatus.of(step.end, updated_at=now))
    store.move(row.id, replace(step.end, at=now), since=(row.state,), now=now, **step.columns | _NOWHERE)
