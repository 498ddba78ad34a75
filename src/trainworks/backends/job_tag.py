"""The mark of a run: what a backend keeps beside a job, so that a run that was submitted is found again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress

from trainworks.errors import EnvironmentProblem, UnansweredError, UnreachableError
from trainworks.host.clock import Clock
from trainworks.record.run_dir import RunDir

_LOOKS_AFTER_A_LOST_ANSWER = 5
_LOOK_S = 1.0


def mark_of(run_dir: RunDir, machine: str = "") -> str:
    """Run and folder of a job: run ids repeat, folders do not.

    Args:
        run_dir: absolute.
        machine: where the folder is; "" where all that submit share it.
    """
    return f"trainworks:{run_dir.run_id}:{folder_mark(run_dir, machine)}"


def folder_mark(run_dir: RunDir, machine: str = "") -> str:
    """Twelve hexadecimal digits of the folder's path, and of the machine where one is given."""
    place = f"{machine}:{run_dir.path}" if machine else str(run_dir.path)
    return hashlib.sha256(place.encode()).hexdigest()[:12]


def find_patiently(find: Callable[[], str | None], problem: EnvironmentProblem, clock: Clock) -> str:
    """The job of a run whose submission was not answered: the backend may have it, and show it a little later.

    Args:
        find: looks for it; None where the backend does not know of it.
        problem: why there was no answer.
        clock: waits between two looks.

    Raises:
        UnansweredError: the backend does not show the job, and may have it nevertheless.
    """
    for _ in range(_LOOKS_AFTER_A_LOST_ANSWER):
        clock.sleep(_LOOK_S)
        with suppress(UnreachableError):
            if (found := find()) is not None:
                return found
    raise UnansweredError(problem.message, hint=problem.hint) from None
