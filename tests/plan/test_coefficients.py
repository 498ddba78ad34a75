"""The planner's numbers: each is from somewhere, and stays within what is physical, whatever a fit says."""

from __future__ import annotations

from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from statistics import mean, median
from types import ModuleType

import pytest

from trainworks.catalog.catalog import accelerator
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


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("planner_accuracy")


def test_every_number_is_fitted_or_says_where_it_is_from(accuracy: ModuleType) -> None:
    """A new one fails here: fit it, or write `Source:`, `Count:`, `Set to:` or `Assumed:` into its docstring."""
    found = accuracy.numbers()
    assert len(found) > 50
    assert [number.name for number in found if not number.origin] == []


def test_a_typed_number_without_an_origin_is_found(accuracy: ModuleType) -> None:
    module = '_SHARE = 0.5\n"Of the rate."\n_OTHER = {1: 2}\n"Per value. Count: bf16."\n_NAME = 1 > 0\n'
    found = [(each.name, each.origin) for each in accuracy.numbers_of(module)]
    assert found == [("_SHARE", ""), ("_OTHER", "count"), ("_NAME", "")]


def test_the_table_of_the_page_has_every_number(accuracy: ModuleType) -> None:
    page = accuracy.PAGE.read_text(encoding="utf-8")
    rows = [f"| `{each.name}` | {each.value} | {each.origin} | {each.meaning} |" for each in accuracy.numbers()]
    missing = [row for row in rows if row not in page]
    assert missing == [], "run: python benchmarks/planner_accuracy.py --write"


def products(*names: str) -> list[float]:
    """Fastest published product over the peak in 16 bits."""
    return [part.matmul_flops_per_s / part.peak_flops_per_s["bf16"] for part in map(accelerator, names)]  # type: ignore[operator]


def test_the_share_of_parts_without_a_published_product_is_that_of_the_latest_that_have_one() -> None:
    assert median(products("B200-180GB", "B300-288GB", "GB200-186GB")) == pytest.approx(
        COEFFICIENTS.default_peak_share, abs=0.005
    )
    assert mean(products("MI300X-192GB", "MI325X-256GB", "MI355X-288GB")) == pytest.approx(
        COEFFICIENTS.amd_peak_share, abs=0.005
    )
