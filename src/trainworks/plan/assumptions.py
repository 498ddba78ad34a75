"""Assumptions of the catalogue as numbers with their sources."""

from __future__ import annotations

from collections.abc import Mapping

from trainworks.catalog.catalog import assumption, find_row
from trainworks.plan.trace import Traced, fact

GIVEN = "given by you"
"""Source of a number that the user replaced."""


def assumed(name: str, given: Mapping[str, float] | float | None = None) -> Traced:
    """The assumption of that name with its range, or the value the user gave, without a range.

    Args:
        name: of the assumption.
        given: its value, or values of assumptions by their names.

    Raises:
        UsageError: the catalogue has no such assumption.

    >>> assumed("electricity").value, assumed("electricity", 0.3).source
    (0.1, 'given by you')
    """
    known = assumption(name)
    value = given.get(name) if isinstance(given, Mapping) else given
    if value is not None:
        return fact(name, value, known.unit, source=GIVEN)
    source = find_row(name, "assumptions").figure("typical").cited
    return fact(name, known.typical, known.unit, source=source, low=known.low, high=known.high)
