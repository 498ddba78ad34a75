"""What a rule of the lint says of one fact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainworks.catalog.catalog import Catalog

__all__ = ["Check", "Problem", "giga", "tera"]

Problem = tuple[str, str, str]
"""Value, limit, and what it probably means."""
Check = Callable[[Any, Catalog], Iterator[Problem]]
"""A rule: one fact, and the others."""


def tera(rate: float) -> str:
    """A rate of products."""
    return f"{rate / 1e12:g} TFLOP/s"


def giga(rate: float) -> str:
    """A bandwidth."""
    return f"{rate / 1e9:.4g} GB/s"
