"""Fitted numbers stay within what is physical, whatever a fit says."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from trainworks.plan.coefficients import COEFFICIENTS

SHARES = [name for name in asdict(COEFFICIENTS) if name.endswith(("_share", "_hidden", "_exposed", "_loss"))]


@pytest.mark.parametrize("name", [*SHARES, "fragmentation", "pipelining"])
def test_a_share_is_between_nothing_and_all(name: str) -> None:
    assert 0 <= asdict(COEFFICIENTS)[name] <= 1


@pytest.mark.parametrize("name", asdict(COEFFICIENTS))
def test_no_coefficient_is_negative(name: str) -> None:
    assert asdict(COEFFICIENTS)[name] >= 0


@pytest.mark.parametrize("name", [name for name in SHARES if name.endswith("_share")])
def test_a_rate_is_never_nothing(name: str) -> None:
    assert asdict(COEFFICIENTS)[name] > 0
