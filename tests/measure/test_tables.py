"""Tables as people keep them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainworks.errors import UsageError
from trainworks.measure.tables import check_readable, flag_of, line_of, number_of, read_table, text_of, whole_of

COLUMNS = ("id", "model", "seq_len")


def table(folder: Path, content: str | bytes) -> Path:
    path = folder / "runs.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_columns_are_found_whatever_parts_them(tmp_path: Path, mark: str) -> None:
    path = table(tmp_path, f"\ufeffID{mark}Seq Len{mark}extra\na{mark} 2048 {mark}x\n")
    assert read_table(path, COLUMNS) == [{"id": "a", "seq_len": "2048", "extra": "x"}]


def test_a_row_without_an_id_is_called_by_its_line(tmp_path: Path) -> None:
    path = table(tmp_path, "model,seq_len\nx,1\n\ny,2\n")
    assert [row["id"] for row in read_table(path, COLUMNS)] == ["line 2", "line 4"]


def test_a_row_may_be_shorter_or_longer_than_the_header(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, "id,model\na\nb,x,y,z\n"), COLUMNS) == [{"id": "a"}, {"id": "b", "model": "x"}]


def test_a_table_of_a_header_alone_is_empty(tmp_path: Path) -> None:
    assert read_table(table(tmp_path, "id,model\n"), COLUMNS) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no columns"),
        (b"name,size\nx,1\n", "has no known column: `name`, `size`"),
        (b"PK\x03\x04\0\0", "is not a text table"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        read_table(table(tmp_path, content), COLUMNS)
    assert raised.value.hint is not None


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        read_table(tmp_path / "none.csv", COLUMNS)
    with pytest.raises(UsageError, match="is a directory"):
        read_table(tmp_path, COLUMNS)


@pytest.mark.parametrize("text", ["", "  ", "n/a", "N/A", "NaN", "-", "null", "not printed"])
def test_what_says_that_it_has_nothing_is_empty(text: str) -> None:
    row = {"seq_len": text}
    assert (text_of(row, "seq_len"), number_of(row, "seq_len"), whole_of(row, "seq_len")) == ("", None, None)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("global_batch", "1,536", 1536.0),
        ("global_batch", "1 048 576", 1048576.0),
        ("tflops_per_gpu", "149-150", 149.5),
        ("iteration_time_s", "~3.5 s", 3.5),
        ("memory_gb_per_gpu", "47GB", 47.0),
        ("mfu", "38 %", 38.0),
        ("layers", "1e2", 100.0),
    ],
)
def test_numbers_are_read_as_people_write_them(name: str, text: str, value: float) -> None:
    assert number_of({name: text}, name) == value


@pytest.mark.parametrize("text", ["abc", "inf", "-3", "3.5 ms", "47 GiB", "1,53"])
def test_any_other_number_is_refused_with_the_cell(text: str) -> None:
    with pytest.raises(UsageError, match=f"iteration_time_s `{text}` is not a number"):
        number_of({"iteration_time_s": text}, "iteration_time_s")


def test_a_degree_of_zero_is_none_and_of_a_half_refused() -> None:
    assert whole_of({"ep": "0"}, "ep") is None
    with pytest.raises(UsageError, match=r"ep `0\.5` is not a whole number"):
        whole_of({"ep": "0.5"}, "ep")


@pytest.mark.parametrize(("text", "flag"), [("TRUE", True), ("no", False), ("1", True), ("", None), ("maybe", None)])
def test_a_flag_is_yes_no_or_open(text: str, flag: bool | None) -> None:
    assert flag_of({"seqpar": text}, "seqpar") is flag


@given(st.integers(1, 10**12))
def test_thousands_may_be_set_off(value: int) -> None:
    assert whole_of({"batch": f"{value:,}"}, "batch") == whole_of({"batch": f"{value}"}, "batch") == value


def test_a_line_that_is_not_comma_separated_text_is_refused_alone(tmp_path: Path) -> None:
    cell = "x" * 200_000  # longer than csv allows
    rows = read_table(table(tmp_path, f"id,model\na,x\nb,{cell}\nc,y\n"), COLUMNS)
    assert [line_of(row) for row in rows] == [2, 3, 4]
    assert [row["id"] for row in rows] == ["a", "line 3", "c"]
    check_readable(rows[0])
    with pytest.raises(UsageError, match="the line cannot be read: field larger than"):
        check_readable(rows[1])


@pytest.mark.parametrize(
    "name", ["num_gpus", "layers", "hidden", "heads", "vocab", "seq_len", "global_batch", "dp", "tp"]
)
def test_a_count_above_its_limit_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 1e\\+19, above the limit of"):
        whole_of({name: "1e19"}, name)
