"""Warnings of the use cases: Python warnings by default, lines on stderr in the command line."""

from __future__ import annotations

import warnings
from collections.abc import Callable

Notify = Callable[[str], None]
"""Receives warnings that do not fail a use case, such as a backend that does not answer."""


def silent(message: str) -> None:
    """Drop a message."""


def warn(message: str) -> None:
    """Issue a Python warning."""
    warnings.warn(message, stacklevel=3)
