"""Every error that a user can meet.

TrainworksError                 what every door of the program catches; carries value, limit, place and hint
├── UsageError                  exit 2: what was asked for cannot be right
│   ├── QuantityError           a number or unit that cannot be read
│   ├── RunFileError            a run file with one or more problems, each with file:line
│   ├── LayoutError             a parallel layout that does not fit the world size or the batch
│   ├── InfeasibleError         a job that no node of this cluster can ever hold
│   ├── NotOwnerError           a job, or a run directory, of another user
│   └── UnknownRunError         no such run
├── EnvironmentProblem          exit 3: the machine, not the request, is in the way
│   ├── MissingExtraError       an optional dependency is not installed
│   ├── DamagedStoreError       the job store holds something else than jobs; it can be rebuilt
│   ├── DiskFullError           no space left, or not enough for what was planned
│   ├── PortInUseError          somebody else listens there
│   └── UnreachableError        an engine does not answer; that says nothing about its jobs
│       └── UnansweredError     a submission was sent and not answered; the engine may have the job
└── RunFailedError              exit 1: the job ran and failed
    └── DivergedError           a step was not finite or a spike, and the policy is to end the run
"""

from __future__ import annotations

__all__ = [
    "DamagedStoreError",
    "DiskFullError",
    "DivergedError",
    "EnvironmentProblem",
    "InfeasibleError",
    "LayoutError",
    "MissingExtraError",
    "NotOwnerError",
    "PortInUseError",
    "QuantityError",
    "RunFailedError",
    "RunFileError",
    "TrainworksError",
    "UnansweredError",
    "UnknownRunError",
    "UnreachableError",
    "UsageError",
]


class TrainworksError(Exception):
    """An error with a message, an optional place (`file:line  field`) and an optional next step.

    Args:
        message: what is wrong, with the value and the limit.
        place: where it was written, printed after an arrow.
        hint: the next step to take, printed last.
    """

    exit_code = 1

    def __init__(self, message: str, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint

    def render(self) -> str:
        """The text that the command line prints: error, place, hint."""
        lines = [f"error: {self.message}"]
        if self.place:
            lines.append(f"  --> {self.place}")
        if self.hint:
            lines += ["", f"hint: {self.hint}"]
        return "\n".join(lines)


class UsageError(TrainworksError):
    """What was asked for cannot be right; asking again unchanged will not help."""

    exit_code = 2


class QuantityError(UsageError):
    """A number or unit that cannot be read."""


class RunFileError(UsageError):
    """A run file with one or more problems; all of them are reported at once."""

    def __init__(self, problems: list[TrainworksError]) -> None:
        super().__init__(problems[0].message, place=problems[0].place, hint=problems[0].hint)
        self.problems = problems

    def render(self) -> str:
        """Every problem in the order of the file."""
        return "\n\n".join(TrainworksError.render(problem) for problem in self.problems)


class LayoutError(UsageError):
    """A parallel layout that does not fit the world size or the batch.

    Args:
        field: the layout field to blame, so that the loader can point at its line.
    """

    def __init__(self, message: str, *, field: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InfeasibleError(UsageError):
    """A job that no node of this cluster can ever hold; the hint says what would fit."""


class NotOwnerError(UsageError):
    """A job, or a run directory, that belongs to another user."""


class UnknownRunError(UsageError):
    """No such run."""


class EnvironmentProblem(TrainworksError):
    """The machine, not the request, is in the way."""

    exit_code = 3


class MissingExtraError(EnvironmentProblem):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"`{package}` is not installed", hint=f"pip install 'trainworks[{extra}]'")


class DamagedStoreError(EnvironmentProblem):
    """The job store holds something else than jobs; it can be rebuilt from the run directories."""


class DiskFullError(EnvironmentProblem):
    """No space left, or not enough for what was planned."""


class PortInUseError(EnvironmentProblem):
    """Somebody else listens there."""


class UnreachableError(EnvironmentProblem):
    """An engine does not answer; that says nothing about its jobs."""


class UnansweredError(UnreachableError):
    """A submission was sent and not answered: the engine may have the job, and a later look finds it."""


class RunFailedError(TrainworksError):
    """The job ran and failed; the message names the first rank that failed."""


class DivergedError(RunFailedError):
    """A step was not finite or a spike, and the policy is to end the run."""
