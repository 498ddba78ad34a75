"""All errors of Trainworks, with their exit codes.

TrainworksError                 base of all; carries a message, a place and a hint
├── UsageError                  exit 2: the request is wrong
│   ├── ArgumentError           an argument of a public function, or the option of the same name
│   ├── QuantityError           a number or unit that cannot be parsed
│   ├── RunFileError            one or more problems of a run file, each with file:line
│   ├── LayoutError             a parallel layout that does not fit the world size or the batch
│   ├── InfeasibleError         a job that does not fit any node of the cluster
│   ├── NotOwnerError           a job, or a run directory, of another user
│   └── UnknownRunError         no such run
├── EnvironmentProblem          exit 3: the machine cannot do what was requested
│   ├── MissingExtraError       an optional dependency is not installed
│   ├── DamagedStoreError       the job store cannot be read; it can be rebuilt
│   ├── DiskFullError           no space left, or less than the plan needs
│   ├── PortInUseError          another process listens on the port
│   ├── NodeLostError           the connection to a node was lost while a job was starting there
│   ├── SupersededError         a later start of the run writes its record now
│   └── UnreachableError        a backend does not answer; its jobs may be fine
│       └── UnansweredError     a submission got no answer; the backend may have the job
└── RunFailedError              exit 1: the job ran and failed
    └── DivergedError           the loss or gradient norm was not finite or spiked, and the policy ends the run
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import takewhile
from traceback import extract_tb
from typing import TypedDict

__all__ = [
    "ArgumentError",
    "DamagedStoreError",
    "DiskFullError",
    "DivergedError",
    "EnvironmentProblem",
    "InfeasibleError",
    "LayoutError",
    "MissingExtraError",
    "NodeLostError",
    "NotOwnerError",
    "PortInUseError",
    "QuantityError",
    "RunFailedError",
    "RunFileError",
    "SupersededError",
    "TrainworksError",
    "UnansweredError",
    "UnknownRunError",
    "UnreachableError",
    "UsageError",
    "suggest",
]


class ErrorFacts(TypedDict):
    """An error as data: what failed, where, the next step, and the exit code of the command line."""

    message: str
    place: str | None
    hint: str | None
    exit_code: int


class TrainworksError(Exception):
    """An error with a message, an optional place (`file:line  field`) and an optional next step.

    Args:
        message: what failed and why, with the value and the limit.
        place: file, line and field, printed after an arrow.
        hint: the next step in the imperative, printed last.
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

    def _render_traceback_(self) -> list[str]:
        """The lines that a notebook shows: of the frames only the caller's, unless `%tb` or `%xmode` asks for them."""
        shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
        if shell is not None and shell.InteractiveTB.mode in _MODES_WITH_FRAMES:
            frames: list[str] = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
            return frames
        return [*_calling_line(self), *self.render().splitlines(), "", "frames: %tb Verbose"]

    def to_json(self) -> ErrorFacts:
        """The error as data, for another process."""
        return {"message": self.message, "place": self.place, "hint": self.hint, "exit_code": self.exit_code}


class UsageError(TrainworksError):
    """The request is wrong; the same request fails again."""

    exit_code = 2


class ArgumentError(UsageError):
    """An argument of a public function, or the option of the same name, is not valid.

    Args:
        argument: its name in Python; the command line shows `--name`.
    """

    def __init__(self, message: str, *, argument: str, hint: str | None = None) -> None:
        super().__init__(message, place=argument, hint=hint)
        self.argument = argument

    @property
    def option(self) -> str:
        """The same argument on the command line."""
        return f"--{self.argument.replace('_', '-')}"


class QuantityError(UsageError):
    """A number or unit that cannot be parsed."""


class RunFileError(UsageError):
    """One or more problems of a run file, reported together."""

    def __init__(self, problems: list[TrainworksError]) -> None:
        super().__init__(problems[0].message, place=problems[0].place, hint=problems[0].hint)
        self.problems = problems

    def render(self) -> str:
        """Every problem in the order of the file."""
        return "\n\n".join(TrainworksError.render(problem) for problem in self.problems)


class LayoutError(UsageError):
    """A parallel layout that does not fit the world size or the batch.

    Args:
        field: the layout field at fault; the loader adds its line.
    """

    def __init__(self, message: str, *, field: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class InfeasibleError(UsageError):
    """A job that does not fit any node of the cluster; the hint names one that would."""


class NotOwnerError(UsageError):
    """A job, or a run directory, that belongs to another user."""


class UnknownRunError(UsageError):
    """No such run."""


class EnvironmentProblem(TrainworksError):
    """The machine cannot do what was requested."""

    exit_code = 3


class MissingExtraError(EnvironmentProblem):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"`{package}` is not installed", hint=f"pip install 'trainworks[{extra}]'")


class DamagedStoreError(EnvironmentProblem):
    """The job store cannot be read; it can be rebuilt from the run directories."""


class DiskFullError(EnvironmentProblem):
    """No space left, or less than the plan needs."""


class PortInUseError(EnvironmentProblem):
    """Another process listens on the port."""


class UnreachableError(EnvironmentProblem):
    """A backend does not answer; its jobs may be fine."""


class UnansweredError(UnreachableError):
    """A submission got no answer: the backend may have the job, and a later poll finds it."""


class NodeLostError(EnvironmentProblem):
    """The connection to a node was lost while a job was starting there; the job can start again on others."""


class SupersededError(EnvironmentProblem):
    """A later start of the run has taken its record over; this one must not write any more."""


class RunFailedError(TrainworksError):
    """The job ran and failed; the message names the first rank that failed."""


class DivergedError(RunFailedError):
    """The loss or gradient norm was not finite or spiked, and the policy ends the run."""


def suggest(
    word: str,
    known: Iterable[str],
    *,
    otherwise: str | None = None,
    form: str = "{}",
    count: int = 1,
    cutoff: float = 0.6,
) -> str | None:
    """A hint with the known words that are most similar to an unknown one.

    Args:
        word: the unknown word.
        known: all words that would be right.
        otherwise: the hint when none is similar.
        form: how a known word is written: `--{}`.
        count: most words to name.
        cutoff: least similarity, 0 to 1.

    >>> suggest("lama", ["llama", "gpt2"])
    'did you mean `llama`?'
    """
    near = [f"`{form.replace('{}', match)}`" for match in get_close_matches(word, known, n=count, cutoff=cutoff)]
    return f"did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?" if near else otherwise


_MODES_WITH_FRAMES = ("Plain", "Verbose")
"""Modes of IPython that show the frames of Trainworks, too."""


def _calling_line(error: TrainworksError) -> list[str]:
    """The line of the caller's code from which Trainworks was entered; none without a traceback."""
    ours = os.path.dirname(__file__)  # noqa: PTH120, before pathlib is needed
    called = takewhile(lambda frame: not frame.filename.startswith(ours), extract_tb(error.__traceback__))
    *_, last = [None, *called]
    if last is None:
        return []
    file = f"{last.filename}, " if os.path.isfile(last.filename) else ""  # noqa: PTH113, a cell is not a file
    return [f"{file}line {last.lineno}: {last.line}".removesuffix(": "), ""]


_LONGEST_PATH = 200
"""Characters of a path that an error shows."""
_WRITABLE = "name a place where you can write: TRAINWORKS_DATA, TRAINWORKS_CACHE, TRAINWORKS_RUNS"
_BAD_PLACE = {
    errno.EACCES: _WRITABLE,
    errno.EPERM: _WRITABLE,
    errno.EROFS: _WRITABLE,
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.ENOTDIR: "a part of the path is a file: name another place",
    errno.ENAMETOOLONG: "take a shorter path",
    errno.EIO: "the disk reports an error: name a place on another one",
}
"""Errors of a place and not of the program, and the next step to take."""


def problem_of_place(error: OSError) -> EnvironmentProblem:
    """The problem of a path or a disk that an error reports.

    Raises:
        OSError: the error itself, if it is about something else.
    """
    if error.filename is None and error.errno == errno.ENOSPC:
        return DiskFullError("no space left for what is printed")
    if error.filename is None or error.errno not in _BAD_PLACE:
        raise error
    path = str(error.filename)
    shown = path if len(path) <= _LONGEST_PATH else f"{path[:_LONGEST_PATH]}..."
    return EnvironmentProblem(f"cannot use `{shown}`: {error.strerror}", hint=_BAD_PLACE[error.errno])
