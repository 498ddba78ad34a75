"""Findings of a lint rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trainworks.catalog.catalog import Catalog

Problem = tuple[str, str, str]
"""Value, limit and probable cause."""
Check = Callable[[Any, Catalog], Iterator[Problem]]
"""A rule: yields the problems of one fact, given the catalogue."""


def tera(rate: float) -> str:
    """Format a FLOP rate."""
    return f"{rate / 1e12:g} TFLOP/s"


def giga(rate: float) -> str:
    """Format a bandwidth."""
    return f"{rate / 1e9:.4g} GB/s"
