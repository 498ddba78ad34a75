"""Check a stack file, and render the configuration of its cluster."""

from __future__ import annotations

from pathlib import Path

from trainworks.config.load import Source
from trainworks.config.stack import Stack, load_stack
from trainworks.deploy.hardware import check_names
from trainworks.errors import ArgumentError, RunFileError, UsageError
from trainworks.review.check import check_text
from trainworks.review.finding import ReviewReport
from trainworks.review.registry import selected_rules

_RULES = ("TW73",)


def check_stack(path: Path | str) -> ReviewReport:
    """Judge whether the releases of a stack file fit together, and are supported.

    The rules are those of `review` for stack files, over the facts of `trainworks catalog list software`. Findings are
    in the order of the file.

    Args:
        path: of the stack file.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key or a value of it is not valid.

    >>> [finding.rule for finding in check_stack("examples/stack.yaml").findings]
    []
    """
    _, source = _read(Path(path))
    return ReviewReport(check_text(source.text, selected_rules(_RULES, ()), name=source.name), 1)


def _read(path: Path) -> tuple[Stack, Source]:
    """A stack file whose names the catalogue has.

    Raises:
        UsageError: the file does not exist or cannot be read.
        RunFileError: a key, a value or a name of it is not valid.
    """
    stack, source = load_stack(path)
    try:
        check_names(stack)
    except ArgumentError as error:
        place = source.place(tuple(error.argument.split(".")))
        raise RunFileError([UsageError(error.message, place=place, hint=error.hint)]) from None
    return stack, source
