"""Tag stored with a submitted job, used to find it again after a lost answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

from trainworks.errors import EnvironmentProblem, UnansweredError, UnreachableError
from trainworks.host.clock import Clock
from trainworks.record.run_dir import RunDir

_LOOKS_AFTER_A_LOST_ANSWER = 5
_LOOK_S = 1.0
_MARK = "trainworks:"


def mark_of(run_dir: RunDir, machine: str = "") -> str:
    """Tag of a job, from its run id and its folder: run ids repeat, folders do not.

    `run_dir` is absolute. `machine` is its host; "" if all submitting hosts share it.
    """
    return f"{_MARK}{run_dir.run_id}:{folder_mark(run_dir, machine)}"


def is_mark(text: str | None) -> bool:
    """Whether a comment of a job is a tag; a site may replace it by words of its own."""
    return text is not None and text.startswith(_MARK)


def folder_mark(run_dir: RunDir, machine: str = "") -> str:
    """Hash of the folder's path and of its machine, as twelve hexadecimal digits."""
    place = f"{machine}:{run_dir.path}" if machine else str(run_dir.path)
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def find_patiently(find: Callable[[], str | None], problem: EnvironmentProblem, clock: Clock) -> str:
    """Find the job of a run whose submission was not answered: the backend may list it a few seconds later.

    `find` returns the handle, or None if the backend does not list the job. `problem` is the error of the submission.

    Raises:
        UnansweredError: the backend does not list the job, but may still have it.
    """
    for _ in range(_LOOKS_AFTER_A_LOST_ANSWER):
        clock.sleep(_LOOK_S)
        with suppress(UnreachableError):
            if (found := find()) is not None:
                return found
    raise UnansweredError(problem.message, hint=problem.hint) from None
