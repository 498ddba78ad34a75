"""Send messages about a run: `python -m trainworks.api.observing.notify RUN_DIR notify|waiting`.

The resolved run names this module, and the supervisor of the run starts it as `notify`. A submission starts it as
`waiting`, for the time in the queue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from trainworks.api.run_handle import Run, backend_poller
from trainworks.config.notify import Notifications
from trainworks.errors import EnvironmentProblem
from trainworks.files import write_atomic
from trainworks.host.clock import Clock, SystemClock
from trainworks.jobs.state import JobState
from trainworks.observe import notify
from trainworks.observe.following import report_beside, secrets_of
from trainworks.record.events.log import read_events_from
from trainworks.record.history import read_history
from trainworks.record.run_dir import RunDir
from trainworks.report.runs.outcome import failure_of
from trainworks.report.runs.run_progress import Progress, RunFollower, state_of

_QUEUE_POLL_S = 30.0
_NAME = "notify"


class Messenger:
    """Sends the messages that the record of a run gives reason for.

    `deliver` delivers one message to one recipient. `state` of the run is LOST if its supervisor is gone.
    """

    def __init__(
        self,
        run_dir: RunDir,
        options: Notifications,
        deliver: notify.Deliver,
        state: Callable[[], JobState],
        clock: Clock,
    ) -> None:
        self._run_dir = run_dir
        self._options = options
        self._deliver = deliver
        self._state = state
        self._clock = clock
        self._file = run_dir.observer_file(_NAME)
        self._file.parent.mkdir(exist_ok=True)
        self._follower = RunFollower(run_dir)
        self._held_before_s, self._held_before = 0.0, float("-inf")
        """Time for which the launches before this one held their machines, and the time of this one."""
        self.box = _read_box(self._file)

    def send(self) -> JobState:
        """Send the messages of new events; returns the state of the run up to which all were sent.

        Raises:
            EnvironmentProblem: a recipient did not take a message, which stays in the outbox.
        """
        look = self._look()
        events, events_bytes = read_events_from(self._run_dir.events_file, self.box.events_bytes)
        box = notify.apply_events(self.box, events, look, self._options).model_copy(
            update={"events_bytes": events_bytes}
        )
        self._store(self._with_danger(box, look))
        for box in notify.deliveries(self.box, self._options, self._deliver):
            self._store(box.model_copy(update={"problem": None}))
        return look.state

    def note(self, problem: str) -> None:
        """Store why a message could not be delivered."""
        self._store(self.box.model_copy(update={"problem": problem}))

    def close(self) -> None:
        """Nothing stays open between two messages."""

    def put_waiting(self, waits_s: float, reason: str | None) -> None:
        """Put the message of a run that waits too long into the outbox."""
        message = notify.waiting_message(self._run_dir.run_id, waits_s, reason)
        self._store(self.box.with_message(message, self._options, self._clock.now()))

    def _with_danger(self, box: notify.Outbox, look: notify.RunLook) -> notify.Outbox:
        if box.danger_told or box.launch_at is None:
            return box
        now = self._clock.now()
        message = notify.danger_message(self._run_dir.read_resolved().run_file, look, now)
        if message is None:
            return box
        return box.with_message(message, self._options, now).model_copy(update={"danger_told": True})

    def _look(self) -> notify.RunLook:
        state = self._state()  # before the record: what was written before a final state is then read below
        progress = self._follower.look()
        resolved = self._run_dir.read_resolved()
        num_steps = resolved.plan.num_steps if resolved.plan else None
        failure = failure_of(self._run_dir, state)
        return notify.RunLook(
            run=self._run_dir.run_id,
            state=state,
            updated_at=progress.status.updated_at,
            cause=notify.cause_text(progress.status.end),
            step=progress.latest["step"] if progress.latest else 0,
            num_steps=num_steps,
            loss=progress.latest.get("loss") if progress.latest else None,
            deadline_at=progress.deadline_at(resolved.run_file.goal),
            eta_s=progress.eta_s(num_steps) if num_steps else None,
            anchored_eta_s=progress.anchored_eta_s(num_steps) if num_steps else None,
            failure="" if failure is None else "\n".join(filter(None, [failure.message, failure.place, failure.hint])),
            num_accelerators=resolved.processes.num_accelerators,
            held_s=None if resolved.run_file.goal.budget is None else self._held_s(progress, resolved.created_at),
        )

    def _held_s(self, progress: Progress, created_at: float) -> float:
        """Time for which the run has held its machines, over all of its launches."""
        now, launched_at = self._clock.now(), progress.relaunched_at or created_at
        if launched_at != self._held_before:  # once per launch, because it reads the whole record
            history = read_history(self._run_dir, created_at=created_at, now=now)
            self._held_before_s = history.held_s - history.launches[-1].duration_s
            self._held_before = launched_at
        return self._held_before_s + max(0.0, now - launched_at)

    def _store(self, box: notify.Outbox) -> None:
        if box != self.box:
            self.box = box
            write_atomic(self._file, box.model_dump_json(indent=2) + "\n", durable=False)


def _read_box(file: Path) -> notify.Outbox:
    try:
        return notify.Outbox.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return notify.Outbox()


def wait_for_start(run: Run, waiting_after_s: float, clock: Clock) -> float | None:
    """Wait until a run has been in the queue for some time; returns that time, or None once it has left the queue."""
    submitted_at, poll_backend = clock.now(), backend_poller(run.run_dir, clock)
    while True:
        poll_backend()
        state, note = run.standing()
        if not state.waits and (state is not JobState.CREATED or note is not None):
            return None
        waits_s = clock.now() - submitted_at
        if waits_s >= waiting_after_s:
            return waits_s
        clock.sleep(min(_QUEUE_POLL_S, waiting_after_s - waits_s))


def main(run_folder: str, name: str) -> int:
    """Send the messages of a run while it runs, or while it waits; returns the exit code, 1 if some are left."""
    run_dir, clock = RunDir(Path(run_folder)), SystemClock()
    run_file = run_dir.read_resolved().run_file
    options, secrets = run_file.notify, secrets_of(run_file, os.environ)
    if options is None:
        raise EnvironmentProblem(f"run {run_dir.run_id} has no `notify`")
    run, waits_s = Run(run_dir), None
    if name == "waiting" and (waits_s := wait_for_start(run, options.waiting_after, clock)) is None:
        return 0

    def start(state: Callable[[], JobState]) -> Messenger:
        messenger = Messenger(run_dir, options, notify.apprise_delivery(options, os.environ, secrets), state, clock)
        if waits_s is not None:
            messenger.put_waiting(waits_s, run.status.message)
        return messenger

    return report_beside(run_dir, _NAME, partial(state_of, run_dir), clock, start)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
