"""Pareto front of two quantities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")


def pareto(items: Iterable[_T], at: Callable[[_T], tuple[float, float]]) -> list[_T]:
    """Items that no other one beats in both quantities, by the first of them; of equal ones the first.

    >>> pareto([(2, 1), (1, 2), (2, 2)], at=lambda pair: pair)
    [(1, 2), (2, 1)]
    """
    front: list[_T] = []
    least = float("inf")
    for (_, second), item in sorted(((at(item), item) for item in items), key=lambda pair: pair[0]):
        if not front or second < least:
            front.append(item)
            least = second
    return front
