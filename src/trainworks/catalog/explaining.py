"""Explain known words in the errors of a file; the catalogue is read only if there is an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from trainworks.errors import RunFileError


@contextmanager
def explaining_names() -> Iterator[None]:
    """Explain known words in the errors of a file that does not take them: `framework: horovod`.

    Raises:
        RunFileError: the same problems; one about a word that Trainworks leaves out says why.
    """
    try:
        yield
    except RunFileError as error:
        from trainworks.catalog.left_out import explained  # noqa: PLC0415  # reads the catalogue

        raise RunFileError([explained(problem) for problem in error.problems]) from None
