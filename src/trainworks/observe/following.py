"""The loop of a process that reports a run while it runs, and what it needs: its library, and no secrets."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from typing import Protocol

from trainworks.config.run_file import RunFile
from trainworks.errors import MissingExtraError, TrainworksError
from trainworks.files import take_lock
from trainworks.host.clock import Clock
from trainworks.jobs.state import JobState
from trainworks.masking import is_secret
from trainworks.record.run_dir import RunDir

EVERY_S = 2.0
"""Time between two looks at the record."""
LONGEST_PAUSE_S = 60.0
"""Longest time between two attempts to reach a recipient that is down."""
PATIENCE_S = 60.0
"""Time after the end of the run in which a recipient that is down is tried again."""
SETTLES_S = 3.0
"""Time for which a failure has to last: a queue that starts the run again says so at once."""
_LONGEST_S = 3600.0
"""Time after the end of the run after which a call that hangs ends with its process."""
_NICENESS = 19
_LOCK_POLL_S = 0.5
_SHORTEST_SECRET = 6
_PASSWORD = re.compile(r"://[^/\s:@]*:([^/\s@]+)@")
"""In a URL, such as that of a tracking server."""


class RunReporter(Protocol):
    """Reports what is new in the record of a run."""

    def send(self) -> JobState:
        """Report everything that is new; returns the state of the run up to which all was reported."""

    def note(self, problem: str) -> None:
        """Store why a report failed."""

    def close(self) -> None:
        """Release what is open."""


class SettledState:
    """State of a run in which a failure or a stop counts once it has lasted for three seconds.

    The supervisor writes FAILED, and its backend may then put the run back into the queue.
    """

    def __init__(self, state: Callable[[], JobState], clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._final_at: float | None = None

    def __call__(self) -> JobState:
        """The state; RECOVERING until a final one has lasted."""
        state = self._state()
        if not state.is_final or state is JobState.SUCCEEDED:
            self._final_at = None
            return state
        now = self._clock.now()
        self._final_at = now if self._final_at is None else self._final_at
        return state if now - self._final_at >= SETTLES_S else JobState.RECOVERING


def follow(reporter: RunReporter, state: Callable[[], JobState], clock: Clock) -> bool:
    """Report a run until it ends or waits again, and repeat what fails, with growing pauses.

    Returns:
        True if everything was reported; False if the recipient was still down a minute after the end of the run.
    """
    pause, ended_at = EVERY_S, None
    while True:
        try:
            if _has_left(reporter.send()):
                return True
            pause = EVERY_S
        except Exception as error:  # libraries of trackers raise anything, and the next attempt may succeed
            problem = describe(error)
            reporter.note(problem)
            sys.stdout.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {problem}; next attempt in {pause:.0f} s\n")
            sys.stdout.flush()
        if _has_left(state()):
            ended_at = clock.now() if ended_at is None else ended_at
            if clock.now() - ended_at >= PATIENCE_S:
                return False
        clock.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S) if ended_at is None else EVERY_S


def report_beside(
    run_dir: RunDir,
    name: str,
    state: Callable[[], JobState],
    clock: Clock,
    start: Callable[[Callable[[], JobState]], RunReporter],
) -> int:
    """The whole life of a process that reports a run beside it; the exit code is 1 if something is left to report.

    One process at a time reports to the recipient of that name: `start` makes the reporter once it is this one's turn.
    `state` of the run is LOST if its supervisor is gone.
    """
    settled = SettledState(state, clock)
    stay_behind(settled, clock)
    take_turn(run_dir, name, clock)
    reporter = start(settled)
    all_told = follow(reporter, settled, clock)
    reporter.close()
    return 0 if all_told else 1


def _has_left(state: JobState) -> bool:
    """Whether the supervisor that started this process has finished: a run that waits again gets new processes."""
    return state.is_final or state.waits


def describe(error: Exception) -> str:
    """An error in one line, without the secrets of this process's environment."""
    text = error.message if isinstance(error, TrainworksError) else f"{type(error).__name__}: {str(error).strip()}"
    return hide_secrets(next(iter(text.splitlines()), ""), secrets_in(os.environ))[:500]


def secrets_in(environment: Mapping[str, str]) -> set[str]:
    """Values of the variables whose names say that they are secret, and passwords in the URLs of others.

    >>> secrets_in({"MLFLOW_TRACKING_URI": "https://ada:hunter22@host"})
    {'hunter22'}
    """
    named = {value for name, value in environment.items() if is_secret(name)}
    return named | {password for value in environment.values() for password in _PASSWORD.findall(value)}


def secrets_of(run_file: RunFile, environment: Mapping[str, str]) -> set[str]:
    """Secret values of a run: those of this process's variables, and those of the variables that the run file sets."""
    found, names = secrets_in(environment), set(run_file.written_secrets)
    for each in (run_file, *map(run_file.of_role, run_file.roles)):
        written = each.written_envs
        found |= secrets_in(written) | {written[name] for name in names & written.keys()}
    return found


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """A text without these values; values of fewer than six characters are too common to be hidden.

    >>> hide_secrets("refused for hunter22", {"hunter22"})
    'refused for ***'
    """
    for value in sorted(secrets, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text


def take_turn(run_dir: RunDir, name: str, clock: Clock) -> int:
    """Wait until no other process reports this run under this name; returns the lock, which ends with the process.

    The process of an earlier attempt may still be sending.
    """
    while (lock := try_turn(run_dir, name)) is None:
        clock.sleep(_LOCK_POLL_S)
    return lock


def try_turn(run_dir: RunDir, name: str) -> int | None:
    """The lock of `take_turn`; None while another process has it."""
    lock_file = run_dir.observer_file(name).with_suffix(".lock")
    lock_file.parent.mkdir(exist_ok=True)
    return take_lock(lock_file)


def stay_behind(state: Callable[[], JobState], clock: Clock) -> None:
    """Leave the processors to the run, and end this process an hour after the run though a call hangs.

    Signals that ask for an end are ignored: Slurm sends them to every process of a job that it cancels, and this one
    still has to report the end.
    """
    os.nice(_NICENESS)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def leave() -> None:
        while not _has_left(state()):
            clock.sleep(LONGEST_PAUSE_S)
        clock.sleep(_LONGEST_S)
        os._exit(1)

    threading.Thread(target=leave, name="leave", daemon=True).start()


TRACKER_LIBRARIES = {"mlflow": "mlflow", "wandb": "wandb"}
"""Package of a tracker, and of its extra; TensorBoard's files need none."""


def check_library(package: str | None, extra: str) -> None:
    """Refuse what needs a package that is not installed.

    Raises:
        MissingExtraError: it is not.
    """
    if package is not None and find_spec(package) is None:
        raise MissingExtraError(package, extra)
