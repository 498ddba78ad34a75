"""A run that costs more than the table of costs says so, on a machine of any speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.growth import COSTS, TABLE, read_costs, warning, write_costs
from tests.lanes import Lane

TESTS = {f"tests/test_{name}.py::test_{number}": 2.0 for name in "abcde" for number in range(5)} | {
    "tests/test_small.py::test_one": 0.1
}


@pytest.fixture
def costs(tmp_path: Path) -> dict[str, float]:
    """Of a run of these tests."""
    (tmp_path / COSTS).parent.mkdir()
    (tmp_path / TABLE).parent.mkdir()
    rows = [f"{test},9.0,{seconds}" for test, seconds in TESTS.items()]
    (tmp_path / TABLE).write_text("\n".join(["test,clock_s,processor_s", *rows]))
    write_costs(tmp_path, Lane.TEST)
    return read_costs(tmp_path, Lane.TEST)


def test_files_below_a_second_are_one_row(costs: dict[str, float]) -> None:
    assert costs == {f"tests/test_{name}.py": 10.0 for name in "abcde"} | {"others": 0.1}


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
def test_a_machine_of_another_speed_is_not_growth(costs: dict[str, float], speed: float) -> None:
    assert warning(costs, {test: seconds * speed for test, seconds in TESTS.items()}) is None


@pytest.mark.parametrize("speed", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("grown", ["tests/test_a.py::test_0", "tests/test_new.py::test_it"])
def test_a_file_that_grew_or_is_new_is_named_with_its_seconds(
    costs: dict[str, float], speed: float, grown: str
) -> None:
    now = {test: seconds * speed for test, seconds in (TESTS | {grown: TESTS.get(grown, 0.0) + 4.0}).items()}
    said = warning(costs, now)
    assert said is not None
    assert said.startswith(f"WARNING: the tests cost 8% more than in tests/costs ({grown.partition('::')[0]} +4,")


def test_many_small_new_tests_are_growth(costs: dict[str, float]) -> None:
    now = TESTS | {f"tests/test_many_{number}.py::test_it": 0.5 for number in range(10)}
    assert "(others +5," in str(warning(costs, now))


def test_tests_that_were_deleted_make_room_for_others(costs: dict[str, float]) -> None:
    now = {test: seconds for test, seconds in TESTS.items() if "test_e" not in test}
    assert warning(costs, now | {"tests/test_new.py::test_it": 10.0}) is None


def test_without_a_table_nothing_is_compared(tmp_path: Path) -> None:
    assert read_costs(tmp_path, Lane.TEST_ALL) == {}
