"""Times, sizes and lists of nodes, in Slurm's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.config.slurm.sbatch_amounts import expand_nodes, parse_slurm_memory, parse_slurm_time
from trainworks.errors import QuantityError

SMALL = st.integers(0, 400)


@given(SMALL)
def test_a_bare_number_is_minutes(minutes: int) -> None:
    assert (parse_slurm_time(str(minutes)) or 0) == 60 * minutes


@given(SMALL, SMALL)
def test_two_numbers_are_minutes_and_seconds(minutes: int, seconds: int) -> None:
    assert (parse_slurm_time(f"{minutes}:{seconds}") or 0) == 60 * minutes + seconds


@given(SMALL, SMALL, SMALL)
def test_three_numbers_begin_with_hours(hours: int, minutes: int, seconds: int) -> None:
    assert (parse_slurm_time(f"{hours}:{minutes}:{seconds}") or 0) == 3600 * hours + 60 * minutes + seconds


@given(SMALL, SMALL, SMALL, SMALL)
def test_behind_days_come_hours(days: int, hours: int, minutes: int, seconds: int) -> None:
    begin = 86400 * days + 3600 * hours
    assert (parse_slurm_time(f"{days}-{hours}") or 0) == begin
    assert (parse_slurm_time(f"{days}-{hours}:{minutes}") or 0) == begin + 60 * minutes
    assert (parse_slurm_time(f"{days}-{hours}:{minutes}:{seconds}") or 0) == begin + 60 * minutes + seconds


@pytest.mark.parametrize("text", ["0", "UNLIMITED", "infinite", "0:00"])
def test_a_job_may_have_no_limit(text: str) -> None:
    assert parse_slurm_time(text) is None


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "-5", "1-", "1-2-3", "1.5", "1-2:3:4:5", "\u0663"])
def test_no_other_text_is_a_time(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_slurm_time(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 2**20), ("2K", 2**11), ("3m", 3 * 2**20), ("64G", 2**36), ("64GB", 2**36), ("1T", 2**40), ("0", 0)],
)
def test_memory_is_counted_in_powers_of_1024(text: str, size: int) -> None:
    assert parse_slurm_memory(text) == size


@pytest.mark.parametrize("text", ["", "1.5G", "64x", "1GiB", "64GG", "-1"])
def test_no_other_text_is_memory(text: str) -> None:
    with pytest.raises(QuantityError):
        parse_slurm_memory(text)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node1", ("node1",)),
        ("a,b,a", ("a", "b")),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("r[1-2]n[1,3]-ib", ("r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib")),
        ("a[1-2],login.x,b[3]", ("a1", "a2", "login.x", "b3")),
    ],
)
def test_a_list_of_nodes_is_spelled_out(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(text) == names


@given(st.lists(st.integers(0, 99), min_size=1, unique=True))
def test_every_number_of_a_list_is_a_node(numbers: list[int]) -> None:
    assert expand_nodes(f"n[{','.join(map(str, numbers))}]") == tuple(f"n{number}" for number in numbers)


@pytest.mark.parametrize(
    "text", ["", ",", "n[1", "n1]", "n[]", "n[3-1]", "n[a-b]", "n[1-2-3]", "[1-2]", "n[0-9999999]"]
)
def test_a_broken_list_of_nodes_is_refused(text: str) -> None:
    with pytest.raises(QuantityError):
        expand_nodes(text)
